"""The branching source: probabilities sum to one, polygons tile the triangle, what is known is not drawn again."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.audit.branching import Branching, Fixed, Noise, explore
from draftproof.audit.polygon import TRIANGLE, Polygon, area, centre, clip, winners
from draftproof.contracts import Key

weights = st.floats(0.001, 1.0)
rows = st.tuples(weights, weights, weights).map(lambda row: tuple(x / sum(row) for x in row))
sparse = (
    st.tuples(*[st.one_of(st.just(0.0), weights)] * 3).filter(any).map(lambda row: tuple(x / sum(row) for x in row))
)


def tensor(row: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(row, dtype=torch.float64)


@given(rows, st.lists(rows, max_size=3))
def test_the_parts_of_a_polygon_tile_it(row: tuple[float, ...], earlier: list[tuple[float, ...]]) -> None:
    polygon: Polygon = TRIANGLE
    for known in earlier:
        polygon = winners(polygon, known, (0, 1, 2))[0][2]
    parts = winners(polygon, row, (0, 1, 2))
    assert sum(area(part) for *_, part in parts) == pytest.approx(area(polygon), rel=1e-9, abs=1e-13)
    assert sum(weight for _, weight, _ in parts) == pytest.approx(1, abs=1e-12)


@given(sparse)
def test_a_token_wins_the_race_with_its_probability(row: tuple[float, ...]) -> None:
    won = {token: weight for token, weight, _ in winners(TRIANGLE, row, tuple(i for i in range(3) if row[i] > 0))}
    assert won == pytest.approx({token: p for token, p in enumerate(row) if p > 0}, abs=1e-12)


@given(rows)
def test_the_order_is_drawing_without_replacement(row: tuple[float, ...]) -> None:
    law = {
        tuple(order.tolist()): weight for weight, order, _ in explore(lambda source: source.ranked(tensor(row), 3, 0))
    }
    exact = {(a, b, c): row[a] * row[b] / (1 - row[a]) for a, b, c in itertools.permutations(range(3))}
    assert law == pytest.approx(exact, abs=1e-12)


@given(rows, rows)
def test_two_rows_under_the_same_noise_agree_as_daliri_says(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    def both(source: Branching) -> bool:
        return bool(source.ranked(tensor(p), 1, 4) == source.ranked(tensor(q), 1, 4))

    agreed = sum(weight for weight, same, _ in explore(both) if same)
    exact = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(3)) for x in range(3))
    assert agreed == pytest.approx(exact, abs=1e-12)  # arXiv 2408.07978, the law of weighted MinHash


@given(rows, rows)
def test_a_point_inside_a_cell_ranks_as_the_cell(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    for _, orders, noise in explore(lambda source: [source.ranked(tensor(row), 3, 2).tolist() for row in (p, q)]):
        polygon = dict(noise.positions)[2]
        if area(polygon) > 1e-9:
            assert [Fixed(noise).ranked(tensor(row), 3, 2).tolist() for row in (p, q)] == orders


def test_positions_have_noise_of_their_own() -> None:
    row = tensor((0.5, 0.3, 0.2))
    law = dict.fromkeys(itertools.product(range(3), repeat=2), 0.0)
    for weight, picks, _ in explore(lambda source: [int(source.ranked(row, 1, at)[0]) for at in (0, 1)]):
        law[picks[0], picks[1]] += weight
    assert law == pytest.approx({(a, b): float(row[a] * row[b]) for a, b in law}, abs=1e-12)


def test_noise_of_an_earlier_exploration_is_kept() -> None:
    row = tensor((0.5, 0.3, 0.2))
    for _, pick, noise in explore(lambda source: int(source.ranked(row, 1, 0)[0])):
        assert [int(again) for _, again, _ in explore(lambda source: source.ranked(row, 1, 0)[0], noise)] == [pick]
        assert noise.behind(1) == Noise()


def test_draws_meet_every_combination_once() -> None:
    row = tensor((0.5, 0.0, 0.5))
    keys = [Key(0, "draft"), Key(0, "stop"), Key(1, "draft")]
    met = [(weight, draws) for weight, draws, _ in explore(lambda source: [int(source.draw(row, key)) for key in keys])]
    assert [weight for weight, _ in met] == [0.125] * 8
    assert sorted(draws for _, draws in met) == sorted(map(list, itertools.product((0, 2), repeat=3)))


def test_a_uniform_used_twice_is_the_same_one() -> None:
    key = Key(0, "draft")
    first, second = tensor((0.5, 0.5, 0.0)), tensor((0.25, 0.5, 0.25))
    law = {
        tuple(draws): weight
        for weight, draws, _ in explore(lambda source: [int(source.draw(row, key)) for row in (first, second)])
    }
    assert law == pytest.approx({(0, 0): 0.25, (0, 1): 0.25, (1, 1): 0.25, (1, 2): 0.25})


def test_a_row_without_mass_gives_no_token() -> None:
    assert [int(token) for _, token, _ in explore(lambda source: source.draw(torch.zeros(3), Key(0, "next")))] == [-1]


def test_a_function_that_depends_on_more_than_its_draws_is_refused() -> None:
    calls = itertools.count()

    def moody(source: Branching) -> None:
        source.draw(tensor((0.5, 0.5, 0.0) if next(calls) % 2 else (0.2, 0.3, 0.5)), Key(0, "draft"))

    with pytest.raises(RuntimeError, match="function of its draws"):
        list(explore(moody))


def test_only_three_tokens_have_a_triangle() -> None:
    with pytest.raises(ValueError, match="3 tokens"):
        list(explore(lambda source: source.ranked(torch.ones(4) / 4, 1, 0)))


def test_clipping_and_centres() -> None:
    half = clip(TRIANGLE, 0, 1, (0.5, 0.5, 0.0))
    assert area(half) == pytest.approx(0.5)
    assert centre(half)[0] < centre(half)[1]
    assert area(TRIANGLE[:2]) == 0
