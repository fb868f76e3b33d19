"""Drafters in a chain: who is asked, who made it, and what each is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from toys import RULES, near, run, shared_target

from draftproof.contracts import Ask
from draftproof.drafters.chained import ChainedDrafter
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import Engine
from draftproof.stats import Stats
from draftproof.types import Proposal, SamplingParams, chain

PARAMS = SamplingParams(temperature=0.5, max_tokens=120, seed=3)


class Recorder:
    """Proposes its token at even context lengths only; writes down what it is told."""

    draws = branches = False

    def __init__(self, name: str, layers: tuple[int, ...] = (), always: bool = True, gamma: int = 2) -> None:
        self.name, self.layers, self.always, self.gamma = name, layers, always, gamma
        self.asked: list[tuple[int, int]] = []
        self.told: list[tuple[list[int], Tensor | None]] = []

    def start(self, target: Any) -> Any:
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        self.told.append((list(drafted), hidden))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self.asked += [(len(ask.context), ask.depth) for ask in asks]
        return [chain([1] * ask.depth if self.always or len(ask.context) % 2 == 0 else []) for ask in asks]


def test_the_second_is_asked_where_the_first_has_nothing() -> None:
    first, second = Recorder("first", always=False), Recorder("second", gamma=4)
    engine = Engine(shared_target(), ChainedDrafter([first, second]), RULES["coupled"]())
    _, steps = run(engine, PARAMS)
    for step in steps:
        assert step.drafter in ("first", "second", "first+second")
    assert [length for length, _ in second.asked] == [length for length, _ in first.asked if length % 2]
    assert max(depth for _, depth in first.asked) == 2 and max(depth for _, depth in second.asked) == 4
    by = Stats.of(steps).by_drafter
    assert set(by) == {"first", "second"}
    assert by["first"]["steps"] == sum(length % 2 == 0 for length, _ in first.asked)
    assert by["second"]["steps"] == len(second.asked)


def test_each_is_told_of_its_own_draft_and_states_alone() -> None:
    first, second = Recorder("first", layers=(4, 1), always=False), Recorder("second", layers=(2,))
    chained = ChainedDrafter([first, second])
    assert chained.layers == (1, 2, 4) and chained.gamma == 2
    session = chained.start(type("Target", (), {"model": shared_target()}))
    hidden = torch.arange(12.0).view(2, 3, 2)
    for length, owner in ((3, second), (4, first)):
        (proposal,) = chained.propose([Ask(session, [0] * length, 2, None, None)])  # type: ignore[arg-type]
        assert proposal.drafter == owner.name
        session.observe([0] * (length + 1), [1, 1], hidden)
    assert [drafted for drafted, _ in first.told] == [[], [1, 1]]
    assert [drafted for drafted, _ in second.told] == [[1, 1], []]
    assert torch.equal(first.told[0][1], hidden[:, [2, 0]]) and torch.equal(second.told[0][1], hidden[:, [1]])


def test_a_draft_model_that_was_passed_over_stays_right() -> None:
    """Its cache holds the context, whoever drafted in between."""
    target, model = shared_target(), near(shared_target())
    drafter = ModelDrafter(model, target.vocab_size, Shape.of(4))
    chained = ChainedDrafter([NgramDrafter(4, min=2), drafter])
    engine = Engine(target, chained, RULES["coupled"]())
    request = engine.submit([0, 1, 0], PARAMS)
    made = 0
    while request.finish_reason is None:
        before = list(request.context)
        (step,) = engine.step([request])
        if step.drafter == "model" and request.running is not None:
            made += 1
            cached = request.running.draft.parts[1].cached.cache.tokens  # type: ignore[attr-defined]
            assert cached[: len(before)] == before
    assert made > 5
