"""The matrix kernels of the native backend against float64, for every instruction set and weight format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.models import native

if not native.available():
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

from draftproof import _kernels
from draftproof.models.lowbit.rounding import nearest
from draftproof.models.native.grid import Grid
from draftproof.models.native.pack import pack, quantise_int4, quantise_int8

ISAS = _kernels.isas()
FORMATS = ["f32", "bf16", "int8", "int8 groups", "int4", "int4 64", "int4 128"]


def grid_of_eight(weight: Tensor) -> Grid:
    """The nearest values with a scale a group of 32."""
    groups = weight.view(len(weight), -1, 32)
    scales = (groups.abs().amax(dim=2) / 127).half()
    codes = (groups / scales.float()[:, :, None]).round().clamp(-128, 127).to(torch.int8)
    return Grid(codes.view_as(weight), scales)


def times(fmt: str) -> int:
    """How much larger than 32 its groups are."""
    return int(fmt.split()[1]) // 32 if fmt.startswith("int4 ") else 1


def grid_of_four(weight: Tensor, group: int) -> Grid:
    rounded = nearest(weight, group)
    return Grid(rounded.codes, rounded.scales, rounded.minima)


def packed(weight: Tensor, fmt: Any) -> Any:
    if fmt.startswith("int4 "):
        return pack(grid_of_four(weight, 32 * times(fmt)), "int4")
    return pack(grid_of_eight(weight), "int8") if fmt == "int8 groups" else pack(weight, fmt)


def dequantised(weight: Tensor, fmt: str) -> np.ndarray[Any, Any]:
    """What the format holds, in float64."""
    if fmt == "bf16":
        return weight.bfloat16().double().numpy()
    if fmt == "int8":
        codes, scales = quantise_int8(weight)
        return (codes.double() * scales.double()[:, None]).numpy()
    if fmt == "int8 groups":
        return grid_of_eight(weight).dense().double().numpy()
    if fmt.startswith("int4 "):
        return grid_of_four(weight, 32 * times(fmt)).dense().double().numpy()
    if fmt == "int4":
        return quantise_int4(weight).dense().double().numpy()
    return weight.double().numpy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_matmul_is_the_product_of_what_the_format_holds(fmt: Any, isa: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for outputs, depth, rows in [(1, 32, 1), (16, 64, 2), (37, 96, 5), (80, 160, 13), (203, 64, 31)]:
        depth *= times(fmt)
        weight = torch.randn(outputs, depth, generator=generator)
        x = torch.randn(rows, depth, generator=generator)
        y = np.empty((rows, outputs), dtype=np.float32)
        _kernels.matmul(packed(weight, fmt), x.numpy(), y, isa=isa, threads=2)
        exact = x.double().numpy() @ dequantised(weight, fmt).T
        assert np.abs(y - exact).max() <= 2e-6 * depth**0.5 * np.abs(exact).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS[2:])
def test_integer_products_are_those_of_the_quantised_row(fmt: Any, isa: str) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(50, 256, generator=generator)
    x = torch.randn(9, 256, generator=generator) * 3
    x[3] = 0
    y = np.empty((9, 50), dtype=np.float32)
    _kernels.matmul(packed(weight, fmt), x.numpy(), y, quantise=True, isa=isa)
    groups = x.view(9, -1, 32)
    scales = groups.abs().amax(dim=2, keepdim=True) / 127
    rounded = torch.where(scales > 0, (groups / scales).round() * scales, torch.zeros(())).view(9, 256)
    exact = rounded.double().numpy() @ dequantised(weight, fmt).T
    # A value on the edge between two codes may fall on either side: one code of one value, seldom.
    assert np.abs(y - exact).max() <= 0.01 * np.abs(exact).max()
    assert np.median(np.abs(y - exact)) <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("quantise", [False, True])
def test_a_row_of_a_product_does_not_see_the_others(fmt: Any, isa: str, quantise: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    depth = 96 * times(fmt)
    weight = packed(torch.randn(70, depth, generator=generator), fmt)
    x = torch.randn(29, depth, generator=generator)
    alone = np.empty((29, 70), dtype=np.float32)
    for row in range(29):
        _kernels.matmul(weight, x[row : row + 1].numpy(), alone[row : row + 1], quantise=quantise, isa=isa)
    for rows in range(2, 30):
        for threads in (1, 2):
            together = np.empty((rows, 70), dtype=np.float32)
            _kernels.matmul(weight, x[:rows].numpy(), together, quantise=quantise, isa=isa, threads=threads)
            assert together.tobytes() == alone[:rows].tobytes()


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_packed_row_is_the_row(fmt: Any) -> None:
    depth = 64 * times(fmt)
    weight = torch.randn(21, depth, generator=torch.Generator().manual_seed(4))
    matrix, out = packed(weight, fmt), np.empty(depth, dtype=np.float32)
    for output in range(21):
        matrix.unpack_row(output, out)
        assert np.abs(out - dequantised(weight, fmt)[output]).max() <= 1e-6


@pytest.mark.parametrize("bits", [4, 8])
def test_a_grid_is_held_exactly(bits: int) -> None:
    generator = torch.Generator().manual_seed(5)
    scales, minima = (torch.randn(18, 2, generator=generator).half() for _ in range(2))
    if bits == 4:
        codes = torch.randint(0, 16, (18, 64), generator=generator, dtype=torch.uint8)
        grid = Grid(codes, scales, minima)
    else:
        codes, minima = torch.randint(-128, 128, (18, 64), generator=generator, dtype=torch.int8), minima * 0
        grid = Grid(codes, scales)
    matrix, out = pack(grid, "int4"), np.empty(64, dtype=np.float32)
    exact = codes.view(18, 2, 32).float() * scales.float()[:, :, None] + minima.float()[:, :, None]
    for output in range(18):
        matrix.unpack_row(output, out)
        assert out.tobytes() == exact[output].flatten().numpy().tobytes()


def test_groups_that_the_kernels_do_not_take_are_refused() -> None:
    codes = torch.zeros(16, 96, dtype=torch.uint8)
    for groups in (1, 6):
        half = torch.zeros(16, groups).half()
        with pytest.raises(ValueError, match="groups of 32, 64 or 128"):
            pack(Grid(codes, half, half), "int4")
