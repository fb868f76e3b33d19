"""The compiled kernels on rows over the vocabulary against torch in float64."""

from __future__ import annotations

import pytest
import torch

from draftproof import kernels

pytestmark = pytest.mark.skipif(not kernels.usable(torch.zeros(1)), reason="the kernels are not compiled here")
SIZES = (1, 2, 15, 16, 17, 255, 256, 257, 5000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1e-6, 0.1, 0.7, 1.0, 10.0])
def test_softmax(size: int, temperature: float) -> None:
    scores = 5 * torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    scores[0, : size // 2] = float("-inf")
    expected = torch.softmax(scores.double() / temperature, -1)
    got = kernels.softmax(scores, temperature)
    torch.testing.assert_close(got.double(), expected, rtol=3e-5, atol=1e-9)
    assert not got[0, : size // 2].any()


@pytest.mark.parametrize("scores", [[float("-inf")] * 20, [1.0] * 19 + [float("nan")], [float("nan")] + [0.0] * 19])
def test_a_row_without_a_softmax_is_nan_throughout(scores: list[float]) -> None:
    assert kernels.softmax(torch.tensor([scores]), 1.0).isnan().all()
    assert torch.softmax(torch.tensor([scores]), -1).isnan().all()


@pytest.mark.parametrize("size", SIZES)
def test_a_row_has_the_same_bits_in_any_company(size: int) -> None:
    scores = torch.randn(9, size, generator=torch.Generator().manual_seed(size))
    together = kernels.softmax(scores, 0.7)
    assert all(torch.equal(kernels.softmax(scores[i : i + 1], 0.7), together[i : i + 1]) for i in range(9))


@pytest.mark.parametrize("size", SIZES)
def test_residual(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    p = torch.softmax(torch.randn(4, size, generator=generator), -1)
    q = torch.softmax(torch.randn(3, size, generator=generator), -1)
    scale = torch.rand(3, generator=generator, dtype=torch.float64)
    left, mass, overlap = kernels.residual(p, q, scale)
    expected = (p[:3].double() * scale[:, None] - q.double()).clamp(min=0)
    torch.testing.assert_close(left.double(), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(mass, expected.sum(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(overlap, torch.minimum(p[:3], q).double().sum(1), rtol=1e-5, atol=1e-7)


def test_what_is_not_theirs() -> None:
    assert not kernels.usable(torch.zeros(2, 2, dtype=torch.float64)) and not kernels.usable(torch.zeros(4, 4).T[1:])
