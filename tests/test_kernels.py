"""The compiled kernels on rows over the vocabulary against torch in float64 and against the reference forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import kernels, rng
from draftproof.kernels import Filters
from draftproof.sampling import Stages, nucleus_by_sort, probabilities
from draftproof.types import SamplingParams

_kernels = pytest.importorskip("draftproof._kernels", reason="the kernels are not compiled here")
SIZES = (1, 2, 15, 16, 17, 48, 255, 256, 257, 5000)


def rows_of(scores: torch.Tensor, filters: Filters) -> torch.Tensor:
    out = torch.empty_like(scores)
    kernels.distributions(scores.numpy(), filters, out.numpy())
    return out


def random_scores(rows: int, size: int, seed: int, spread: float = 3) -> torch.Tensor:
    return spread * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1e-6, 0.1, 0.7, 1.0, 10.0])
def test_softmax(size: int, temperature: float) -> None:
    scores = random_scores(3, size, size, 5)
    scores[0, : size // 2] = float("-inf")
    expected = torch.softmax(scores.double() / temperature, -1)
    got = rows_of(scores, Filters(temperature))
    torch.testing.assert_close(got.double(), expected, rtol=3e-5, atol=1e-9)
    assert not got[0, : size // 2].any()


@pytest.mark.parametrize("scores", [[float("-inf")] * 20, [1.0] * 19 + [float("nan")], [float("nan")] + [0.0] * 19])
@pytest.mark.parametrize("filters", [Filters(), Filters(0.7, 0.9, 0.1)])
def test_a_row_without_a_softmax_is_nan_throughout(scores: list[float], filters: Filters) -> None:
    assert rows_of(torch.tensor([scores]), filters).isnan().all()
    assert torch.softmax(torch.tensor([scores]), -1).isnan().all()


@pytest.mark.parametrize("isa", _kernels.isas())
@pytest.mark.parametrize("size", [*SIZES, 256, 257, 49_152])
def test_the_best_token_and_its_share(size: int, isa: str) -> None:
    for seed in range(20):
        scores = random_scores(1, size, seed, 5)[0]
        if seed % 2:
            scores = scores.round()  # many ties
        if seed % 3 == 0:
            scores[: size // 2] = float("-inf")
        token, share = _kernels.best(scores.numpy(), isa)
        assert token == int(scores.numpy().argmax())
        assert share == pytest.approx(float(torch.softmax(scores.double(), 0)[token]), rel=3e-5)


@pytest.mark.parametrize("scores", [[], [float("-inf")] * 20, [1.0] * 19 + [float("nan")], [float("inf")] + [0.0] * 19])
def test_a_row_without_a_softmax_has_no_best_token(scores: list[float]) -> None:
    assert kernels.best(np.array(scores, np.float32))[0] == -1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("filters", [Filters(0.7), Filters(1.0, 0.9, 0.01)])
def test_a_row_has_the_same_bits_in_any_company(size: int, filters: Filters) -> None:
    scores = random_scores(9, size, size)
    together = rows_of(scores, filters)
    assert all(torch.equal(rows_of(scores[i : i + 1], filters), together[i : i + 1]) for i in range(9))


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([*SIZES, 49_152]),
    st.integers(0, 10_000),
    st.floats(0.01, 0.9999),
    st.sampled_from([0.0, 0.001, 0.3, 1.0]),
    st.sampled_from([0.3, 1.0, 4.0]),
)
def test_filters_are_the_references(size: int, seed: int, top_p: float, min_p: float, temperature: float) -> None:
    scores = random_scores(3, size, seed)
    scores[0] = scores[0].round()  # many ties
    scores[2, : size // 3] = float("-inf")
    whole = rows_of(scores, Filters(temperature))
    for filters in (Filters(temperature, top_p), Filters(temperature, 1.0, min_p)):
        # The reference's filters on the compiled softmax, so that a token at the edge is the same one.
        params = SamplingParams(temperature=1, top_p=filters.top_p, min_p=filters.min_p)
        expected = probabilities(scores, params, Stages(lambda *_: whole, nucleus_by_sort))
        got = rows_of(scores, filters)
        assert torch.equal(got > 0, expected > 0)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("top_p, kept", [(0.5, 1), (0.75, 2), (0.7500001, 4), (1 - 1e-9, 4)])
def test_a_nucleus_that_holds_the_mass_exactly_ends_there(top_p: float, kept: int) -> None:
    row = rows_of(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log2() * np.log(2), Filters(1.0, top_p))
    assert int((row > 0).sum()) == kept


@pytest.mark.parametrize("size", SIZES)
def test_what_a_draft_leaves(size: int) -> None:
    p, q = (torch.softmax(random_scores(3, size, seed, 1), -1) for seed in (size, size + 1))
    for scale in (1.0, 0.3):
        expected = (p.double() * scale - q.double()).clamp(min=0)
        for row in range(3):
            left = kernels.residual(p[row].numpy(), q[row].numpy(), scale)
            np.testing.assert_allclose(left, expected[row].numpy(), rtol=0, atol=1e-7)
            mass, overlap = kernels.compare(p[row].numpy(), q[row].numpy(), scale)
            assert mass == pytest.approx(float(expected[row].sum()), rel=1e-5, abs=1e-7)
            assert overlap == pytest.approx(float(torch.minimum(p[row], q[row]).double().sum()), rel=1e-5, abs=1e-7)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([*SIZES, 47, 49, 95, 96, 97]),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**40),
    st.sampled_from([0.0, 0.5, 0.95]),
    st.sampled_from([0.1, 3.0, 20.0]),
)
def test_the_race_is_won_by_the_references_winner(
    size: int, seed: int, position: int, empty: float, spread: float
) -> None:
    speeds = (1 / rng.exponentials(seed, position, size)).astype(np.float32)
    gaps = np.zeros(size, np.float32)
    for company in range(3):  # the gaps of one row serve the next
        row = torch.softmax(random_scores(1, size, seed % 1000 + company, spread)[0], 0)
        row[torch.rand(size, generator=torch.Generator().manual_seed(company)) < empty] = 0
        won = kernels.race(row.numpy(), gaps, seed, position)
        assert won == (int((row.numpy() * speeds).argmax()) if row.any() else -1)


def test_a_race_that_gets_ever_faster_is_still_the_references() -> None:
    """Ascending rows make every token a candidate."""
    row = np.exp(np.linspace(-80, 0, 5000)).astype(np.float32)
    speeds = (1 / rng.exponentials(3, 8, 5000)).astype(np.float32)
    assert kernels.race(row, np.zeros(5000, np.float32), 3, 8) == int((row * speeds).argmax())


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.sampled_from(["draft", "stop", "next"]), st.integers(0, 9))
def test_uniforms_are_the_references(seed: int, position: int, use: str, index: int) -> None:
    number = {"draft": 1, "stop": 2, "next": 3}[use]
    assert kernels.uniform(seed, position, number, index) == rng.uniform(seed, position, use, index)


@pytest.mark.parametrize("isa", _kernels.isas())
@pytest.mark.parametrize("size", SIZES)
def test_every_instruction_set_gives_the_same_answers(isa: str, size: int) -> None:
    """Rows agree up to a fused multiply-add; winners, whose arithmetic has none, to the bit."""
    scores, other = random_scores(2, size, size), random_scores(1, size, size + 1)[0]
    for filters in (Filters(), Filters(0.7, 0.9, 0.01)):
        expected, made = rows_of(scores, filters), torch.empty_like(scores)
        _kernels.distributions(scores.numpy(), *filters, made.numpy(), isa)
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-9)
    p, q = expected[0].numpy(), torch.softmax(other, 0).numpy()
    left = np.empty_like(p)
    _kernels.residual(p, q, 0.7, left, isa)
    np.testing.assert_array_equal(left, kernels.residual(p, q, 0.7))
    assert _kernels.compare(p, q, 0.7, isa) == kernels.compare(p, q, 0.7)
    assert [_kernels.draw(q, u, isa) for u in np.arange(100) / 100] == [
        kernels.draw(q, u) for u in np.arange(100) / 100
    ]
    for position in range(20):
        mine, best = np.zeros(size, np.float32), np.zeros(size, np.float32)
        assert _kernels.race(q, mine, 7, position, isa) == kernels.race(q, best, 7, position)
        np.testing.assert_array_equal(mine, best)


def test_what_is_not_theirs() -> None:
    assert not kernels.usable(torch.zeros(2, 2, dtype=torch.float64)) and not kernels.usable(torch.zeros(4, 4).T[1:])
