"""What must hold on an accelerator, as functions of a device; the tests marked gpu and scripts/gpu_check.py call them.

Needs torch and transformers alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from models.hf_models import FAMILIES, VOCABULARY, build, tokens

from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.contracts import Drafter
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.models.hf import HfModel
from draftproof.types import SamplingParams

PROMPTS = (tokens(40, 1), tokens(1, 2), tokens(7, 3) * 4)
SPECS = ("null", "ngram:min=1,width=2", "early-exit:layer=2", "early-exit:layer=3,shape=2x2x1")


def drafters(target: HfModel) -> dict[str, Drafter]:
    """Every kind, the target as its own draft model among them."""
    made = {spec: load_drafter(spec, Loaded(target, None)) for spec in SPECS}
    return {**made, "itself": ModelDrafter(target, VOCABULARY, Shape.of(5, "", "drawn"))}


def emitted(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    """All prompts as one batch."""
    requests = [engine.submit(prompt, params) for prompt in prompts]
    while any(request.finish_reason is None for request in requests):
        engine.step(requests)
    return [request.output for request in requests]


def greedy_equals_transformers(device: str) -> int:
    """Float32, every family and drafter, a ragged batch; returns how many texts were compared."""
    compared = 0
    for family in FAMILIES:
        model = build(family).to(device)
        target = HfModel.wrap(model, family)
        plain = []
        for prompt in PROMPTS:
            ids = torch.tensor([prompt], device=device)
            made = model.generate(ids, max_new_tokens=40, min_new_tokens=40, do_sample=False, eos_token_id=None)
            plain.append(made[0, len(prompt) :].tolist())
        for name, drafter in drafters(target).items():
            texts = emitted(Engine(target, drafter, load_rule("auto", drafter)), PROMPTS, SamplingParams(max_tokens=40))
            assert texts == plain, (family, name)
            compared += len(texts)
    return compared


def seeds_give_the_text_of_the_cpu(device: str) -> int:
    """Coupled sampling in float32: the same seed, the same text, on the device and on the CPU."""
    params = SamplingParams(temperature=1, top_p=0.9, max_tokens=24, seed=5)
    model = build("llama")
    texts = []
    for place in ("cpu", device):
        target = HfModel.wrap(model.to(place), "llama")
        for drafter in drafters(target).values():
            texts.append(emitted(Engine(target, drafter, load_rule("coupled", drafter)), PROMPTS, params))
    assert all(text == texts[0] for text in texts)
    return len(texts)


def ratio_rules_run(device: str, dtype: torch.dtype) -> int:
    """Block and tree at temperature 1 in this dtype give as many tokens as asked for."""
    target = HfModel.wrap(build("qwen3").to(device, dtype), "qwen3")
    params = SamplingParams(temperature=1, max_tokens=24, seed=5)
    for drafter in drafters(target).values():
        rule = load_rule("tree" if drafter.draws else "auto", drafter)
        assert [len(text) for text in emitted(Engine(target, drafter, rule), PROMPTS, params)] == [24] * len(PROMPTS)
    return len(drafters(target))


def synchronisations(device: str) -> dict[str, float]:
    """Waits for the device in a step, by drafter, as CUDA counts them; greedy and at temperature 1."""
    target = HfModel.wrap(build("llama").to(device), "llama")
    most: dict[str, float] = {}
    for name, drafter in drafters(target).items():
        for temperature in (0.0, 1.0):
            engine = Engine(target, drafter, load_rule("auto", drafter))
            request = engine.submit(PROMPTS[0], SamplingParams(temperature=temperature, max_tokens=40, seed=1))
            engine.step([request])
            counts = [_waits(lambda engine=engine, request=request: engine.step([request])) for _ in range(6)]
            most[f"{name} at {temperature}"] = max(counts)
    return most


def _waits(action: Callable[[], object]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
