"""Medians and intervals: known values, invariances, and how often the truth is inside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.bench.estimates import NO_DIFFERENCE, estimates, geometric_mean

RATIOS = st.lists(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), min_size=1, max_size=5)


def test_a_constant_speedup_has_no_width() -> None:
    made, overall = estimates({"a": [[2.0] * 5] * 3, "b": [[8.0] * 5] * 2})
    assert (made["a"].value, made["a"].low, made["a"].high, made["a"].verdict) == (2.0, 2.0, 2.0, "faster")
    assert (overall.value, overall.low, overall.high) == pytest.approx((4.0, 4.0, 4.0))


def test_prompts_count_by_the_median_of_their_repeats_and_categories_by_that_of_their_prompts() -> None:
    made, _ = estimates({"a": [[1.0, 1.0, 50.0], [2.0, 2.0, 0.01], [3.0, 3.0, 3.0]]})
    assert made["a"].value == 2.0


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([[0.9, 1.1, 0.95, 1.05, 1.0]] * 6, NO_DIFFERENCE),
        ([[1.5, 0.7], [0.8, 1.4]], NO_DIFFERENCE),
        ([[1.2, 1.3, 1.25]] * 4, "faster"),
        ([[0.8, 0.7, 0.75]] * 4, "slower"),
        ([[1.0] * 5] * 3, NO_DIFFERENCE),
    ],
)
def test_an_interval_that_holds_1_is_no_measurable_difference(ratios: list[list[float]], verdict: str) -> None:
    made, overall = estimates({"a": ratios})
    assert made["a"].verdict == overall.verdict == verdict
    assert (verdict == NO_DIFFERENCE) == (made["a"].low <= 1 <= made["a"].high)


@settings(max_examples=30)
@given(RATIOS, RATIOS, st.floats(0.1, 10))
def test_intervals_hold_their_value_and_scale_with_it(a: list[list[float]], b: list[list[float]], by: float) -> None:
    made, overall = estimates({"a": a, "b": b})
    assert overall.value == pytest.approx(geometric_mean([made["a"].value, made["b"].value]))
    scaled, _ = estimates({name: [[by * r for r in row] for row in rows] for name, rows in (("a", a), ("b", b))})
    for name, one in made.items():
        assert one.low <= one.value <= one.high
        low, high = min(map(min, {"a": a, "b": b}[name])), max(map(max, {"a": a, "b": b}[name]))
        assert low * (1 - 1e-9) <= one.low and one.high <= high * (1 + 1e-9)
        assert (scaled[name].low, scaled[name].high) == pytest.approx((by * one.low, by * one.high))


def test_the_same_ratios_give_the_same_interval() -> None:
    ratios = {"a": [[1.1, 0.9, 1.4], [1.3, 1.2, 0.8]]}
    assert estimates(ratios) == estimates(ratios)


def test_the_truth_is_inside_about_as_often_as_promised() -> None:
    # Seeds are fixed, so this cannot fail by chance; 15 prompts whose medians scatter, 5 repeats with noise of 10 %.
    random, hits, trials = np.random.default_rng(7), 0, 100
    for _ in range(trials):
        prompts = 1.3 * np.exp(0.2 * random.standard_normal((15, 1)) + 0.1 * random.standard_normal((15, 5)))
        made, _ = estimates({"a": prompts.tolist()})
        hits += made["a"].low <= 1.3 <= made["a"].high
    assert 88 <= hits <= 100
