"""Every architecture with every drafter: greedy ids are those of transformers' own decoding (R1.1, R6.2, R10.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from models.hf_models import FAMILIES, VOCABULARY, build, tokens

from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.contracts import Drafter
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.models.hf import HfModel
from draftproof.types import SamplingParams

DRAFTERS = ("null", "ngram:min=1", "ngram:min=1,width=3", "early-exit:layer=2", "early-exit:layer=3,shape=2x2x1")
LOWBIT = "lowbit:rounding=nearest,group=32,vocab=0"
MODELS = ("model", "model-tree", "itself")
PROMPTS = (tokens(40, 1), tokens(1, 2), tokens(7, 3) * 4)


@cache
def target(family: str) -> tuple[Any, HfModel]:
    model = build(family)
    return model, HfModel.wrap(model, family)


def drafter(name: str, family: str, gamma: int = 5) -> Drafter:
    """The draft model is another architecture of the same vocabulary, or the target itself."""
    if name in MODELS:
        draft = target(family if name == "itself" else "llama" if family != "llama" else "qwen2")[1]
        shape = Shape.of(gamma, "2x2x1" if "tree" in name else "", "mixed" if "tree" in name else "drawn")
        return ModelDrafter(draft, VOCABULARY, shape)
    spec = name if "shape" in name or name == "null" else f"{name},gamma={gamma}"
    return load_drafter(spec, Loaded(target(family)[1], None))


def emitted(
    family: str, made: Drafter, prompts: Sequence[Sequence[int]], *ways: SamplingParams, rule: str = "auto"
) -> list[list[int]]:
    """Every prompt in every way, as one batch; at a temperature by the coupled rule."""
    engine = Engine(target(family)[1], made, load_rule("coupled" if ways[0].temperature else rule, made))
    requests = [engine.submit(prompt, params) for params in ways for prompt in prompts]
    while any(request.finish_reason is None for request in requests):
        engine.step(requests)
    return [request.output for request in requests]


@cache
def plain(family: str, prompt: int, length: int) -> list[int]:
    """transformers' own greedy decoding."""
    ids = torch.tensor([PROMPTS[prompt]])
    made = target(family)[0].generate(
        ids, max_new_tokens=length, min_new_tokens=length, do_sample=False, eos_token_id=None
    )
    out: list[int] = made[0, ids.shape[1] :].tolist()
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [*DRAFTERS, *MODELS, LOWBIT, f"ngram:min=2+{LOWBIT}"])
def test_a_ragged_batch_is_greedy_as_transformers_is(family: str, name: str) -> None:
    outputs = emitted(family, drafter(name, family), PROMPTS, SamplingParams(max_tokens=40))
    for i, output in enumerate(outputs):
        assert output == plain(family, i, 40)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["ngram:min=1", "early-exit:layer=2", "model-tree"])
def test_coupled_text_is_plain_text_of_the_same_seed(family: str, name: str) -> None:
    params = SamplingParams(temperature=1, top_k=40, max_tokens=30, seed=11)
    assert emitted(family, drafter(name, family), PROMPTS, params) == emitted(
        family, drafter("null", family), PROMPTS, params
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block", "tree", "coupled"])
@pytest.mark.parametrize("name", ["ngram:min=1", "early-exit:layer=2", "model", "itself"])
@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_for_every_gamma(family: str, name: str, rule: str) -> None:
    ways = [SamplingParams(max_tokens=256, gamma=gamma) for gamma in range(1, 17)]
    outputs = emitted(family, drafter(name, family, 16), PROMPTS, *ways, rule=rule)
    for i, output in enumerate(outputs):
        assert output == plain(family, i % len(PROMPTS), 256)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [*DRAFTERS[1:], *MODELS])
def test_a_hundred_seeds(family: str, name: str) -> None:
    ways = [SamplingParams(temperature=1, max_tokens=16, seed=seed) for seed in range(100)]
    outputs = emitted(family, drafter(name, family), PROMPTS[:1], *ways)
    assert outputs == emitted(family, drafter("null", family), PROMPTS[:1], *ways)
