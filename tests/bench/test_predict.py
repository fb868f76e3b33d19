"""The theory of the speed-up against its closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.bench import predict

ALPHA = st.floats(0.01, 0.99)


@given(ALPHA, st.integers(0, 16))
def test_expected_length_is_the_geometric_sum(alpha: float, gamma: int) -> None:
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert predict.expected_length(alpha, gamma) == pytest.approx(closed)
    assert predict.expected_length(1.0, gamma) == gamma + 1 and predict.expected_length(0.0, gamma) == 1


@given(ALPHA, st.integers(1, 16), st.floats(0, 2), st.integers(1, 50))
def test_with_a_flat_cost_it_is_theorem_3_8(alpha: float, gamma: int, c: float, steps: int) -> None:
    made = predict.from_alpha({(gamma, gamma): steps}, alpha, steps * gamma * c, {1: 1.0, 17: 1.0})
    assert made == pytest.approx((1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1)))
    one = predict.from_alpha({(1, 1): steps}, alpha, steps * c, {1: 1.0})
    assert (one > 1) == (alpha > c) or one == pytest.approx(1)


def test_steps_without_a_draft_are_plain_and_costs_between_two_sizes_lie_on_a_line() -> None:
    assert predict.from_alpha({(0, 0): 7}, 0.0, 0.0, {1: 1.0, 5: 3.0}) == 1
    assert predict.cost({(2, 2): 1, (0, 0): 1}, 0.5, {1: 1.0, 5: 3.0}) == pytest.approx(1 + 2 + 0.5)
    half = predict.from_lengths({(4, 4): 1, (0, 0): 1}, 2.0, 0.0, {1: 1.0, 5: 3.0})
    assert half == pytest.approx(2 * 2 / (1 + 3))
