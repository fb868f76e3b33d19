from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof import kernels, rng
from draftproof.contracts import Key

WORD = st.integers(0, 2**64 - 1)


@given(WORD, WORD, st.integers(0, 2**40))
def test_philox_gives_numpys_bits(seed: int, second: int, position: int) -> None:
    own = rng.philox((1, position, 0, 0), (seed, second))
    key, counter = np.array([seed, second], np.uint64), np.array([0, position, 0, 0], np.uint64)
    assert list(own) == np.random.Philox(key=key, counter=counter).random_raw(4).tolist()


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_quantile_and_never_of_probability_zero(weights: list[float], u: float) -> None:
    row = torch.tensor(weights, dtype=torch.float64)
    token = int(rng.draw(row, u))
    if not row.sum() > 0:
        assert token == -1
        return
    below, total = float(row[:token].sum()), float(row.sum())
    assert row[token] > 0
    assert below / total <= u + 1e-12 and u <= (below + float(row[token])) / total + 1e-12


@pytest.mark.skipif(not kernels.usable(torch.zeros(1)), reason="the kernels are not compiled here")
def test_the_compiled_draw_is_the_draw() -> None:
    generator = torch.Generator().manual_seed(3)
    for size in (1, 15, 16, 17, 257, 1000, 49152):
        row = torch.softmax(4 * torch.randn(size, generator=generator), 0)
        row[torch.rand(size, generator=generator) < 0.5] = 0
        row[size // 2] = 0.01
        for u in [0.0, 1 - 2**-53, *np.random.default_rng(size).random(300)]:
            quick, plain = kernels.draw(row.numpy(), u), int(rng.draw(row, u))
            between = float(row[min(quick, plain) : max(quick, plain)].sum() / row.sum())
            assert row[quick] > 0
            assert quick == plain or between < 2e-6  # float32 block sums may move a quantile by their rounding


def test_rows_without_mass_or_with_nan_name_no_token() -> None:
    for bad in (torch.zeros(300), torch.full((300,), float("nan"))):
        assert int(rng.draw(bad, 0.5)) == -1
        assert int(rng.PhiloxSource(1).draw(bad, Key(1, "next"))) == -1


def test_the_race_has_the_law_of_the_row() -> None:
    """Chi-square of 20,000 positions; false-alarm rate 1e-6 for this fixed seed, met once and for all."""
    row = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])
    source = rng.PhiloxSource(5)
    counts = np.bincount([int(source.ranked(row, 1, position)[0]) for position in range(20_000)], minlength=5)
    expected = 20_000 * row[:4].numpy()
    assert counts[4] == 0
    assert float(((counts[:4] - expected) ** 2 / expected).sum()) < 30.7


def test_numbers_depend_on_seed_position_use_and_index_alone() -> None:
    row = torch.full((1000,), 0.001)
    keys = [Key(p, use, i) for p in range(5) for use in ("draft", "stop", "next") for i in range(6)]  # type: ignore[arg-type]
    first = [int(rng.PhiloxSource(1).draw(row, key)) for key in keys]
    again = rng.PhiloxSource(1)
    assert [int(again.draw(row, key)) for key in reversed(keys)][::-1] == first
    assert len(set(first)) > 80  # 90 draws from 1,000 tokens: about 4 collisions
    assert [int(rng.PhiloxSource(2).draw(row, key)) for key in keys] != first


def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    assert np.array_equal(rng.exponentials(9, 4, 50), rng.exponentials(9, 4, 500)[:50])


def test_unseeded_sources_differ() -> None:
    assert len({rng.PhiloxSource().seed for _ in range(100)}) == 100
