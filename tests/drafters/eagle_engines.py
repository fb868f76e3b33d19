"""Engines with a random head that tests of the eagle drafter share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from models.hf_models import build, tokens

from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.contracts import Ask
from draftproof.drafters.eagle import EagleDrafter, EagleSession
from draftproof.engine import Engine
from draftproof.models import native
from draftproof.models.hf import HfModel
from draftproof.request import Request
from draftproof.session import Session
from draftproof.types import SamplingParams

D = 40
BACKENDS = ["hf", *(["native"] if native.available() else [])]
SHAPES = ["gamma=5", "shape=3x2x1", "shape=3x2x1,children=mixed", "gamma=4,children=chosen", "nodes=12,gamma=4,width=3"]
PROMPTS = (tokens(40, 1), tokens(1, 2), tokens(7, 3) * 4)
GREEDY = SamplingParams(max_tokens=30)


@cache
def _hf() -> HfModel:
    return HfModel.wrap(build("llama"), "llama")


@cache
def _native(folder: Path) -> Any:
    return native.load_native(folder, weights="f32", threads=1)


def target(backend: str, root: Path) -> Loaded:
    return Loaded(_hf() if backend == "hf" else _native(root / "native"), None)


def engine(backend: str, root: Path, options: str, rule: str = "auto", layout: str = "eagle3") -> Engine:
    loaded = target(backend, root)
    spec = f"eagle:{root / backend / layout},{options}" if options else "null"
    made = load_drafter(spec, loaded)
    return Engine(loaded.model, made, load_rule(rule, made))


def outputs(made: Engine, params: SamplingParams, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    """All prompts as one batch."""
    requests = [made.submit(prompt, params) for prompt in prompts]
    while any(request.finish_reason is None for request in requests):
        made.step(requests)
    return [request.output for request in requests]


def asked_for(request: Request, depth: int, coupled: bool = False) -> Ask:
    assert request.running is not None
    return Ask(request.running.draft, request.context, depth, request.sampler, request.source, coupled)


def advanced(made: Engine, prompt: Sequence[int], params: SamplingParams, steps: int) -> Request:
    request = made.submit(prompt, params)
    for _ in range(steps):
        made.step([request])
    return request


def states_of(made: Engine, context: Sequence[int]) -> torch.Tensor:
    (output,) = made.target.forward([Session(made.target).plan(context[:-1])], made.drafter.layers)
    assert output.hidden is not None
    return output.hidden


def read_at_once(made: Engine, context: Sequence[int]) -> EagleSession:
    assert isinstance(made.drafter, EagleDrafter)
    fresh = EagleSession(made.drafter)
    fresh.observe(list(context), (), states_of(made, context))
    made.drafter.call([fresh.plan(list(context))])
    fresh.cache.cut(len(context))
    return fresh


def row_behind(made: Engine, state: EagleSession, context: Sequence[int]) -> torch.Tensor:
    """[draft vocabulary]: the head's finite logits behind the context, its last entry read once more."""
    assert isinstance(made.drafter, EagleDrafter)
    state.observe(context, (), states_of(made, context)[-1:])
    row = made.drafter.call([state.plan(context)])[0][-1]
    return row[torch.isfinite(row)]
