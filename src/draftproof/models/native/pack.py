"""Weight formats: from a tensor [outputs, depth] to the panels of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof import _kernels
from draftproof.int8 import quantise_int8
from draftproof.models.native.grid import GROUP, Grid, Weight, dense
from draftproof.types import InputError

WeightFormat = Literal["bf16", "f32", "int8", "int4"]
ActivationFormat = Literal["f32", "int8"]
_CHUNK_ROWS = 4096


def check_formats(weights: str, activations: str) -> None:
    """InputError unless the combination exists."""
    if weights not in get_args(WeightFormat):
        raise InputError(f"weights must be one of {', '.join(get_args(WeightFormat))}, not {weights}.")
    if activations not in get_args(ActivationFormat):
        raise InputError(f"activations must be one of {', '.join(get_args(ActivationFormat))}, not {activations}.")
    if activations == "int8" and weights in ("bf16", "f32"):
        raise InputError(f"activations=int8 needs weights=int8 or weights=int4, not {weights}.")


def pack(weight: Weight, fmt: WeightFormat, arena: _kernels.Arena | None = None) -> _kernels.Matrix:
    """Panels of a weight [outputs, depth], rounded to the nearest values of the format.

    int4 keeps a grid as it is, int8 one of eight bits. Matrices packed into one `_kernels.Arena` lie side by side.
    InputError for weights that the format has no room for.
    """
    arena = arena or _kernels.Arena()
    if isinstance(weight, Grid) and (fmt == "int4" or (fmt == "int8" and weight.minima is None)):
        return pack_grid(weight, arena)
    tensor = dense(weight)
    if fmt == "int4":
        return pack_grid(Grid(*_by_chunks(_grid_of_four, tensor)), arena)
    if fmt == "f32":
        return arena.pack_f32(tensor.float().contiguous().numpy())
    if fmt == "bf16":
        rounded = tensor.to(torch.bfloat16).contiguous()
        _check_room(rounded, fmt)
        return arena.pack_bf16(rounded.view(torch.uint16).numpy())
    codes, scales = _by_chunks(quantise_int8, tensor)
    return arena.pack_int8(codes.numpy(), scales.numpy())


def pack_grid(grid: Grid, arena: _kernels.Arena) -> _kernels.Matrix:
    """Panels of weights on their grid."""
    codes = grid.codes.contiguous().numpy()
    if grid.minima is None:
        return arena.pack_int8_groups(codes, _halves(grid.scales))
    return arena.pack_int4(codes, _halves(grid.scales), _halves(grid.minima))


def _halves(values: Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = values.to(torch.float16).contiguous().view(torch.uint16).numpy()
    return bits


def _by_chunks(quantise: Callable[[Tensor], tuple[Tensor, ...]], weight: Tensor) -> list[Tensor]:
    """Rows are quantised each by itself, so a part at a time will do: an embedding's copies in float32 are large."""
    starts = range(0, len(weight), _CHUNK_ROWS)
    chunks = [quantise(weight[start : start + _CHUNK_ROWS].float()) for start in starts]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


def _grid_of_four(weight: Tensor) -> tuple[Tensor, ...]:
    grid = quantise_int4(weight)
    assert grid.minima is not None
    return grid.codes, grid.scales, grid.minima


def _check_room(values: Tensor, fmt: str) -> None:
    if not torch.isfinite(values).all():
        raise InputError(f"weights={fmt} has no room for weights as large as some here: use weights=f32.")


def quantise_int4(weight: Tensor) -> Grid:
    """Codes 0..15, scales and minima a group of 32: the grid of Q4_1, `scale * code + minimum` in float16."""
    outputs, depth = weight.shape
    groups = weight.view(outputs, depth // GROUP, GROUP)
    minima = groups.amin(dim=2).to(torch.float16)
    scales = ((groups.amax(dim=2) - minima.float()) / 15.0).to(torch.float16)
    _check_room(minima, "int4")
    _check_room(scales, "int4")
    steps = scales.float()[:, :, None]
    offsets = groups - minima.float()[:, :, None]
    codes = torch.where(steps > 0, offsets / steps, torch.zeros(())).round().clamp(0, 15)
    return Grid(codes.to(torch.uint8).view(outputs, depth), scales, minima)
