"""The draft length by cost: the arithmetic, what it settles on with perfect and useless drafters, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import COSTS, near, run, shared_target

from draftproof.contracts import Ask
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve, Tuned
from draftproof.drafters.length import AutoLength, best_depth
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.types import Proposal, SamplingParams, Step, chain
from draftproof.verify import BlockRule, CoupledRule


class Told:
    """Proposes what the plain text says at each place, changed to another token where `wrong` says so."""

    name = "told"
    layers: tuple[int, ...] = ()
    draws = branches = False
    gamma = 16

    def __init__(self, text: Sequence[int], wrong: bool, sure: bool) -> None:
        self.text, self.wrong, self.sure = text, wrong, sure

    def start(self, target: Any) -> Told:
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Proposal:
        tokens = self.text[len(ask.context) : len(ask.context) + ask.depth]
        made = chain([(token + self.wrong) % 16 for token in tokens])
        confidence = (0.5,) * len(tokens) if self.sure else ()
        return Proposal(made.tokens, made.parents, confidence=confidence)


def steps_with(drafter: AutoLength, params: SamplingParams) -> list[Step]:
    return run(Engine(shared_target(), drafter, CoupledRule()), params)[1]


def plain_text(length: int) -> list[int]:
    made = Engine(shared_target(), NullDrafter(), CoupledRule())
    return [0, 1, 0, *run(made, SamplingParams(max_tokens=length))[0]]


curves = st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6).map(lambda s: Curve(tuple(enumerate(s, 1))))


@given(curves, st.floats(1, 30))
def test_a_curve_never_falls_and_is_never_above_a_measurement_behind(curve: Curve, count: float) -> None:
    assert curve.at(count) <= curve.at(count + 0.5) + 1e-12
    assert all(curve.at(count) <= seconds + 1e-12 for at, seconds in curve.points if at >= count)


def test_a_curve_is_linear_between_and_behind_its_points() -> None:
    curve = Curve(((1, 1.0), (5, 2.0), (9, 4.0)))
    assert [curve.at(n) for n in (0, 1, 3, 5, 7, 9, 11)] == [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("points", [(), ((2, 1.0), (1, 2.0)), ((1, 1.0), (1, 2.0)), ((1, float("nan")),)])
def test_a_curve_refuses_what_is_none(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        Curve(points)


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.1, 8))
def test_the_best_depth_is_the_best_of_all(chances: list[float], rate: float) -> None:
    def price(depth: int) -> float:
        return rate * COSTS.step(depth, "model")

    def worth(depth: int) -> float:
        reach, expected = 1.0, 1.0
        for chance in chances[:depth]:
            reach *= chance
            expected += reach
        return expected - price(depth)

    best = best_depth(lambda depth: chances[depth - 1], len(chances), price, "model")
    assert best.worth == pytest.approx(max(worth(depth) for depth in range(len(chances) + 1)))
    assert best.worth == pytest.approx(worth(best.depth))


@pytest.mark.parametrize("sure", [True, False])
def test_a_useless_drafter_leaves_plain_decoding(sure: bool) -> None:
    """Behind the first 64 tokens less than 5 % of the curve's seconds go to drafts (R2.1)."""
    told = Told(plain_text(700), wrong=True, sure=sure)
    made = AutoLength(*(([told], []) if sure else ([], [told])), Costs(COSTS.verify, {"told": Curve(((1, 0.5),))}))
    steps = steps_with(made, SamplingParams(max_tokens=600))
    late = steps[64:]
    spent = sum(made.costs.step(step.num_draft_tokens, "told") for step in late)
    assert spent < 1.05 * len(late) * made.costs.step(0, "")
    assert sum(step.num_draft_tokens for step in steps[:64]) > 0


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("knee", [4, 9])
def test_a_perfect_drafter_is_asked_for_all_that_pays(sure: bool, knee: int) -> None:
    """Verification is free up to `knee` tokens, and dearer than the tokens are worth behind it."""
    told = Told(plain_text(500), wrong=False, sure=sure)
    curve = Curve(((1, 1.0), (knee, 1.0), (knee + 1, 9.0)))
    made = AutoLength(*(([told], []) if sure else ([], [told])), Costs(curve))
    steps = steps_with(made, SamplingParams(max_tokens=400))
    assert [step.num_draft_tokens for step in steps[-12:-2]] == [knee - 1] * 10
    assert all(step.num_accepted_tokens == step.num_draft_tokens for step in steps[:-2])


@given(st.floats(0.4, 2.5), st.floats(0.4, 2.5), st.floats(0.4, 2.5))
def test_costs_follow_a_machine_that_has_changed(base: float, slope: float, dear: float) -> None:
    tuned = Tuned(COSTS)
    for depth in (0, 5, 11) * 60:
        seconds = base + slope * (COSTS.verify.at(1 + depth) - COSTS.verify.at(1))
        tuned.learn(depth, "model", dear * COSTS.drafts["model"].at(depth), seconds)
    for depth in (0, 2, 5, 11):
        drafted = dear * COSTS.drafts["model"].at(depth) if depth else 0.0
        expected = base + slope * (COSTS.verify.at(1 + depth) - COSTS.verify.at(1)) + drafted
        assert tuned.step(depth, "model") == pytest.approx(expected, rel=0.15, abs=0.1)


def test_plain_steps_move_the_whole_curve_and_one_slow_step_hardly_anything() -> None:
    tuned = Tuned(COSTS)
    for _ in range(200):
        tuned.learn(0, "", 0.0, 1.5)
    assert tuned.step(0, "") == pytest.approx(1.5, rel=0.05)
    assert tuned.step(11, "") == pytest.approx(0.5 + COSTS.verify.at(12), rel=0.1)
    tuned.learn(0, "", 0.0, 1000.0)
    assert tuned.step(0, "") < 2.0


def test_after_many_drafts_a_plain_step_is_due() -> None:
    tuned = Tuned(COSTS)
    for _ in range(64):
        assert not tuned.stale
        tuned.learn(3, "model", 0.6, 1.2)
    assert tuned.stale
    tuned.learn(0, "", 0.0, 1.0)
    assert not tuned.stale


class Machine:
    """A clock under which verifying n draft tokens takes `dear` plain steps each, whatever was measured."""

    def __init__(self, dear: float) -> None:
        self.now, self.dear = 0.0, dear

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("rule", "follows"), [(CoupledRule(), True), (BlockRule(), False)])
def test_the_clock_decides_only_where_no_length_can_change_the_text(
    rule: CoupledRule | BlockRule, follows: bool
) -> None:
    """Measured free, in truth a plain step each: drafting ends under the coupled rule; block's lengths stay."""
    free = Costs(Curve(((1, 1.0), (17, 1.0))), {"model": Curve(((1, 0.0), (16, 0.0)))})

    def steps_by(clock: Machine | None) -> list[int]:
        made = AutoLength([], [ModelDrafter(near(shared_target()), 16, Shape.of(6))], free, clock=clock)
        engine = Engine(shared_target(), made, rule)
        request = engine.submit([0, 1, 0], SamplingParams(temperature=1.0, max_tokens=300, seed=3))
        drafted = []
        while request.finish_reason is None:
            (step,) = engine.step([request])
            drafted.append(step.num_draft_tokens)
        return drafted

    unclocked = steps_by(None)
    clock = Machine(2.0)
    target = shared_target()
    forward = target.forward

    def slow(segments: Sequence[Any], *rest: Any, **more: Any) -> Any:
        clock.now += 1.0 + clock.dear * (sum(segment.rows for segment in segments) - 1)
        return forward(segments, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", slow)
        clocked = steps_by(clock)
    if follows:
        assert sum(clocked[:30]) > 0 and sum(clocked[30:60]) < 0.2 * sum(unclocked[30:60])
    else:
        assert clocked == unclocked


def test_a_drafter_that_gets_better_is_found_again() -> None:
    """Wrong for 100 tokens, right from then on: drafting is back within the longest wait."""
    text = plain_text(900)
    told = Told([*((token + 1) % 16 for token in text[:100]), *text[100:]], wrong=False, sure=False)
    made = AutoLength([], [told], Costs(COSTS.verify))
    steps = steps_with(made, SamplingParams(max_tokens=800))
    assert steps[-3].num_draft_tokens > 3


def test_the_part_that_promises_more_drafts_and_is_named() -> None:
    text = plain_text(300)
    look, dear = Told(text, wrong=True, sure=True), ModelDrafter(near(shared_target(), 1.0), 16, Shape.of(4))
    made = AutoLength([look], [dear], COSTS)
    steps = steps_with(made, SamplingParams(max_tokens=200))
    assert made.name == "told+model" and made.draws
    assert {step.drafter for step in steps[-20:] if step.num_draft_tokens} == {"model"}


def test_other_requests_do_not_change_a_seeds_text_under_a_ratio_rule() -> None:
    made = AutoLength([], [ModelDrafter(near(shared_target()), 16, Shape.of(6))], COSTS)
    engine = Engine(shared_target(), made, BlockRule())
    params = [SamplingParams(temperature=1, max_tokens=60, seed=seed) for seed in range(4)]
    together = [engine.submit([0, 1, 0], one) for one in params]
    while any(request.finish_reason is None for request in together):
        engine.step(together)
    assert [request.output for request in together] == [run(engine, one)[0] for one in params]


def test_many_requests_share_the_cost_of_a_step() -> None:
    flat_then_steep = Costs(Curve(((1, 1.0), (8, 1.0), (16, 4.0))))
    assert flat_then_steep.step(3, "", 2) == 0.5 and flat_then_steep.step(3, "", 4) == 1.0
