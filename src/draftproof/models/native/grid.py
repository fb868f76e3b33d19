"""Weights that a file keeps on a grid of four or eight bits, so that `weights=int4` holds them exactly.

Instead of a tensor `NAME` [outputs, depth], a checkpoint may hold in groups of 32 along the depth
- `NAME.codes` [outputs, depth / 2] uint8 (the code of an even k in the low half of its byte), `NAME.scales` and
  `NAME.minima` [outputs, depth / 32] float16: the weight is `scale * code + minimum`, the grid of Q4_1, and of Q4_0
  with minimum = -8 * scale;
- `NAME.codes` [outputs, depth] int8 and `NAME.scales`: the weight is `scale * code`, the grid of Q8_0.

The files are named `grid*.safetensors`: transformers alone would take another name for a checkpoint of its own, miss
the weights in it and fill them with random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
FILES = "grid"
"""What the names of the weight files of a folder on a grid begin with."""


@dataclass(frozen=True, eq=False)
class Grid:
    """codes [outputs, depth], uint8 in 0..15 or, without minima, int8; scales, minima [outputs, groups] float16.

    Groups have 32 weights in files; on a grid with minima the kernels take 64 and 128 as well.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None

    def dense(self) -> Tensor:
        """The same weights as float32 [outputs, depth]: scale * code is exact, so only adding a minimum rounds."""
        weights = self.codes.view(*self.scales.shape, -1).float() * self.scales.float()[:, :, None]
        if self.minima is not None:
            weights += self.minima.float()[:, :, None]
        return weights.view_as(self.codes)


Weight = Tensor | Grid


def dense(weight: Weight) -> Tensor:
    """The weight as one tensor [outputs, depth]."""
    return weight.dense() if isinstance(weight, Grid) else weight


def fold(codes: Tensor) -> Tensor:
    """Two codes a byte [outputs, depth / 2] from four-bit codes [outputs, depth]."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unfold(packed: Tensor) -> Tensor:
    """Codes [outputs, depth] from two a byte [outputs, depth / 2]."""
    return torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)


def by_rows(operation: Callable[[list[Tensor]], Tensor], weights: Sequence[Weight]) -> Weight:
    """Apply something that only moves whole rows; grids of one kind stay one, mixed weights become float32."""
    grids = [weight for weight in weights if isinstance(weight, Grid)]
    if not grids:
        return operation([dense(weight) for weight in weights])
    minima = [grid.minima for grid in grids if grid.minima is not None]
    alike = len({grid.scales.shape[1] for grid in grids}) == 1 and len(minima) in (0, len(grids))
    if len(grids) < len(weights) or not alike:
        return operation([dense(weight).float() for weight in weights])
    codes, scales = operation([grid.codes for grid in grids]), operation([grid.scales for grid in grids])
    return Grid(codes, scales, operation(minima) if minima else None)
