"""Chains that go on while they pay: what a draft says of its tokens, when it is stopped, what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import COSTS, near, run, shared_target

from draftproof.contracts import Ask
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AutoLength
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.drafters.patience import Patience, class_of
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.rng import PhiloxSource
from draftproof.sampling import Sampler
from draftproof.session import Session
from draftproof.types import Proposal, SamplingParams, chain
from draftproof.verify import BlockRule, CoupledRule

CHEAP = Costs(Curve(((1, 1.0), (17, 1.6))), {"told": Curve(((1, 0.3), (16, 4.8)))})
PARAMS = SamplingParams(max_tokens=400)


class Told:
    """The plain text at each place, with another token and little trust at every fourth."""

    name, layers, draws, branches, gamma = "told", (), False, False, 16

    def __init__(self, text: Sequence[int], tells: bool = True) -> None:
        self.text, self.tells = text, tells

    def start(self, target: Any) -> Told:
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._one(ask, len(ask.context)) for ask in asks]

    def _one(self, ask: Ask, at: int) -> Proposal:
        tokens: list[int] = []
        sure: list[float] = []
        for place in range(at, min(at + ask.depth, len(self.text))):
            unsure = place % 4 == 0
            tokens.append((self.text[place] + unsure) % 16)
            sure.append(0.2 if unsure else 0.97)
            if self.tells and ask.go_on is not None and not ask.go_on(sure[-1]):
                break
        return replace(chain(tokens), confidence=tuple(sure) if self.tells and ask.go_on is not None else ())


def plain_text(length: int) -> list[int]:
    made = Engine(shared_target(), NullDrafter(), CoupledRule())
    return [0, 1, 0, *run(made, SamplingParams(max_tokens=length))[0]]


def test_a_chain_that_tells_ends_behind_the_token_it_is_unsure_of() -> None:
    text = plain_text(500)
    seconds = {}
    for tells in (True, False):
        steps = run(Engine(shared_target(), AutoLength([], [Told(text, tells)], CHEAP), CoupledRule()), PARAMS)[1]
        assert [token for step in steps for token in step.tokens] == text[3:403]
        late = [step for step in steps[40:-2] if step.num_draft_tokens > 1]
        seconds[tells] = sum(CHEAP.step(step.num_draft_tokens, "told") for step in steps)
        if tells:
            assert late and all(step.num_accepted_tokens >= step.num_draft_tokens - 1 for step in late)
    assert seconds[True] < seconds[False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1), st.floats(0, 2))
def test_patience_weighs_the_next_token_against_its_price(sure: list[float], following: float, price: float) -> None:
    asked = Patience(lambda one: one, lambda depth: following, lambda depth: price)
    reach = 1.0
    for one in sure:
        reach *= one
        assert asked(one) == (reach * following > price)


def test_classes_keep_a_chance() -> None:
    assert [class_of(one) for one in (0.0, 0.02, 0.03, 0.51, 0.98, 1.0)] == [0.0, 0.0, 0.05, 0.5, 1.0, 1.0]


def ask_of(target: ToyModel, drafter: Any, go_on: Callable[[float], bool] | None, **params: Any) -> Ask:
    sampler = Sampler(SamplingParams(**params), 3)
    return Ask(drafter.start(Session(target)), [0, 1, 0], 4, sampler, PhiloxSource(0), go_on=go_on)


@pytest.mark.parametrize("stop", [1, 3, 9])
def test_a_chosen_chain_tells_its_own_chances_and_obeys(stop: int) -> None:
    target, draft = shared_target(), near(shared_target(), 1.0)
    drafter, heard = ModelDrafter(draft, 16, Shape.of(4)), list[float]()

    def go_on(sure: float) -> bool:
        heard.append(sure)
        return len(heard) < stop

    (proposal,) = drafter.propose([ask_of(target, drafter, go_on)])
    assert len(proposal) == min(stop, 4) and proposal.confidence == tuple(heard)
    context = [0, 1, 0]
    for token, sure in zip(proposal.tokens.tolist(), heard, strict=True):
        row = torch.softmax(draft.row(context), 0)
        assert token == int(row.argmax()) and sure == pytest.approx(float(row[token]), rel=1e-4)
        context.append(token)


def test_tokens_that_nobody_asks_about_say_nothing() -> None:
    target, drafter = shared_target(), ModelDrafter(near(shared_target(), 1.0), 16, Shape.of(4))
    (proposal,) = drafter.propose([ask_of(target, drafter, None)])
    assert len(proposal) == 4 and proposal.confidence == ()


@pytest.mark.parametrize("stop", [1, 3, 9])
def test_a_drawn_chain_keeps_the_token_behind_which_it_ends(stop: int) -> None:
    target, drafter = shared_target(), ModelDrafter(near(shared_target(), 1.0), 16, Shape.of(4))
    (whole,) = drafter.propose([ask_of(target, drafter, None, temperature=1.0)])
    heard = list[float]()

    def go_on(sure: float) -> bool:
        heard.append(sure)
        return len(heard) < stop

    (proposal,) = drafter.propose([ask_of(target, drafter, go_on, temperature=1.0)])
    assert proposal.tokens.tolist() == whole.tokens.tolist()[:stop] and proposal.confidence == tuple(heard)
    assert proposal.probs is not None and whole.probs is not None
    assert torch.equal(proposal.probs, whole.probs[: len(proposal)])
    own = [float(row[token]) for row, token in zip(proposal.probs, proposal.tokens.tolist(), strict=True)]
    assert heard == pytest.approx(own)


def test_under_a_ratio_rule_a_seed_is_one_text_in_any_company() -> None:
    """Chains that end by their own drawn tokens, alone and beside others."""
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=60) for seed in range(4)]

    def engine() -> Engine:
        made = AutoLength([], [ModelDrafter(near(shared_target(), 1.0), 16, Shape.of(8))], COSTS, clock=clock)
        return Engine(shared_target(), made, BlockRule())

    ticks = iter(range(10**6))

    def clock() -> float:
        return float(next(ticks) ** 2 % 7)

    together = engine()
    requests = [together.submit([0, 1, 0], one) for one in params]
    while any(request.finish_reason is None for request in requests):
        together.step(requests)
    assert [request.output for request in requests] == [run(engine(), one)[0] for one in params]


def test_a_batch_of_patient_chains_has_the_plain_texts() -> None:
    made = AutoLength([], [ModelDrafter(near(shared_target(), 1.0), 16, Shape.of(8))], COSTS)
    engine = Engine(shared_target(), made, CoupledRule())
    requests = [engine.submit([0, 1, seed % 16], SamplingParams(max_tokens=60)) for seed in range(5)]
    while any(request.finish_reason is None for request in requests):
        engine.step(requests)
    plain = Engine(shared_target(), NullDrafter(), CoupledRule())
    for request in requests:
        assert request.output == run(plain, SamplingParams(max_tokens=60), request.context[:3])[0]
