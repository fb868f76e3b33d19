"""Guesses in a draft's calls: they change how often the copy is called and never what it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import run, shared_target

from draftproof.contracts import Ask
from draftproof.drafters.ahead import Guesses
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AutoLength
from draftproof.drafters.lowbit import LowBitDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.fast_sampling import FastSampler
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.rng import PhiloxSource
from draftproof.session import Session
from draftproof.types import Output, Proposal, SamplingParams, chain
from draftproof.verify import CoupledRule

PARAMS = {
    "greedy": SamplingParams(),
    "drawn": SamplingParams(temperature=0.7),
    "penalised": SamplingParams(temperature=0.5, repetition_penalty=1.3, top_p=0.9),
    "min tokens": SamplingParams(min_tokens=5, stop_tokens=(3,)),
}
REPEATS = [1, 2, 3, 4] * 5


class Counting:
    """A model that counts its calls and rows."""

    def __init__(self, model: Any) -> None:
        self.model, self.calls, self.rows = model, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, segments: Any, layers: Any = (), exit_layer: int | None = None) -> list[Output]:
        self.calls += 1
        self.rows += sum(len(segment.tokens) for segment in segments)
        outputs: list[Output] = self.model.forward(segments, layers, exit_layer)
        return outputs


def drafter(ahead: int) -> tuple[LowBitDrafter, Counting]:
    target = shared_target()
    twin = target.lowbit(LowBit(vocab=0), Calibration(list))
    counting = Counting(twin.model)
    return LowBitDrafter(target, replace(twin, model=counting, ahead=ahead), Shape.of(6)), counting


def proposals(
    made: LowBitDrafter, texts: Sequence[Sequence[int]], params: SamplingParams, coupled: bool, go_on: Any = None
) -> list[Proposal]:
    asks = [
        Ask(made.start(Session(shared_target())), text, 6, FastSampler(params, 2), PhiloxSource(7), coupled, go_on)
        for text in texts
    ]
    return made.propose(asks)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("params", PARAMS)
@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=24), min_size=1, max_size=3))
def test_the_draft_is_the_one_without_guesses(params: str, coupled: bool, texts: list[list[int]]) -> None:
    plain, guessing = (proposals(drafter(ahead)[0], texts, PARAMS[params], coupled) for ahead in (0, 3))
    for expected, made in zip(plain, guessing, strict=True):
        assert torch.equal(made.tokens, expected.tokens) and made.parents == expected.parents
        assert (made.probs is None) == (expected.probs is None)
        assert made.probs is None or expected.probs is None or torch.equal(made.probs, expected.probs)


class Told(Guesses):
    """Guesses what it was told."""

    def __init__(self, tokens: Sequence[int], most: int) -> None:
        super().__init__(most)
        self.tokens = tokens

    def behind(self, context: Sequence[int], drafted: Sequence[int], most: int) -> list[int]:
        return list(self.tokens[len(drafted) : len(drafted) + min(most, self._most)])


@pytest.mark.parametrize("wrong, calls", [((), 2), ((2,), 2), ((0,), 3), ((0, 1, 2, 3, 4, 5), 6)])
def test_a_guess_that_is_right_saves_a_call(wrong: Sequence[int], calls: int) -> None:
    """Three guesses a call, six tokens: 4 + 2; a wrong one ends its call's row of tokens and is fed anew."""
    (plain,) = proposals(drafter(0)[0], [REPEATS], PARAMS["greedy"], False)
    tokens = [(token + (i in wrong)) % 16 for i, token in enumerate(plain.tokens.tolist())]
    made, counting = drafter(3)
    session = made.start(Session(shared_target()))
    session.guesses = Told(tokens, 3)  # type: ignore[attr-defined]
    (proposal,) = made.propose([Ask(session, REPEATS, 6, FastSampler(PARAMS["greedy"], 2), PhiloxSource(7))])
    assert torch.equal(proposal.tokens, plain.tokens) and counting.calls == calls
    assert proposal.guessed == 6 - calls


def test_nobody_is_asked_to_pay_for_a_row_that_is_there() -> None:
    (plain,) = proposals(drafter(0)[0], [REPEATS], PARAMS["greedy"], False)
    made, counting = drafter(3)
    session = made.start(Session(shared_target()))
    session.guesses = Told(plain.tokens.tolist(), 3)  # type: ignore[attr-defined]
    ask = Ask(session, REPEATS, 6, FastSampler(PARAMS["greedy"], 2), PhiloxSource(7), go_on=lambda sure: False)
    (proposal,) = made.propose([ask])
    assert proposal.tokens.tolist() == plain.tokens.tolist()[:4] and len(proposal.confidence) == 4
    assert counting.calls == 1


def test_the_longest_match_counts_and_among_equals_the_latest() -> None:
    guesses = Guesses(3)
    assert guesses.behind([1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2, 3], [], 9) == [9, 2, 3]
    assert guesses.behind([1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2, 3], [5, 2, 3], 9) == [8, 3, 7]
    assert guesses.behind([1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2, 3], [3], 1) == [7]
    assert guesses.behind([1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2, 3], [6], 9) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(0, 3), max_size=5), st.integers(0, 5))
def test_a_text_read_bit_by_bit_is_the_text_read_at_once(text: list[int], drafted: list[int], most: int) -> None:
    slowly = Guesses(4)
    for length in range(1, len(text)):
        slowly.behind(text[:length], [], most)
    guess = slowly.behind(text, drafted, most)
    assert guess == Guesses(4).behind(text, drafted, most) and len(guess) <= min(most, 4)
    end = [*text, *drafted]
    starts = [i for i in range(1, len(text)) if text[i - 1] == end[-1]]
    assert bool(guess) == (bool(starts) and most > 0)
    assert not guess or any(text[i : i + len(guess)] == guess for i in starts)


class Guessing:
    """Proposes the plain text with every sixth token wrong; look-up guesses a share of its tokens behind the first."""

    name, layers, draws, branches, gamma = "told", (), False, False, 16

    def __init__(self, text: Sequence[int], share: float) -> None:
        self.text, self.share = [(token + (i % 6 == 0)) % 16 for i, token in enumerate(text)], share

    def start(self, target: Any) -> Guessing:
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._one(self.text[len(ask.context) :][: ask.depth]) for ask in asks]

    def _one(self, tokens: Sequence[int]) -> Proposal:
        return replace(chain(tokens), guessed=round(self.share * max(0, len(tokens) - 1)))


DEAR = Costs(Curve(((1, 1.0), (17, 1.1))), {"told": Curve(((1, 0.3), (16, 7.0)))})


def test_tokens_that_look_up_guesses_are_cheap() -> None:
    """A draft whose tokens cost half a plain step, unless most of them need no call."""
    plain = Engine(shared_target(), NullDrafter(), CoupledRule())
    text = [0, 1, 0, *run(plain, SamplingParams(max_tokens=300))[0]]
    drafted = []
    for share in (0.0, 0.9):
        engine = Engine(shared_target(), AutoLength([], [Guessing(text, share)], DEAR), CoupledRule())
        written, steps = run(engine, SamplingParams(max_tokens=200))
        assert written == text[3:203]
        drafted.append(sum(step.num_draft_tokens for step in steps) / len(steps))
    assert drafted[1] > 1.5 * drafted[0]


@given(st.floats(0, 1))
def test_costs_of_a_draft_some_of_whose_tokens_need_no_call(share: float) -> None:
    costs = DEAR.called({"told": share})
    assert costs.verify == DEAR.verify and costs.draft(1, "told") == DEAR.draft(1, "told")
    for depth in (2, 7, 16):
        further = DEAR.draft(depth, "told") - DEAR.draft(1, "told")
        assert costs.draft(depth, "told") - costs.draft(1, "told") == pytest.approx(share * further)
    assert [DEAR.called({}).draft(depth, "told") for depth in (1, 9)] == [DEAR.draft(depth, "told") for depth in (1, 9)]
