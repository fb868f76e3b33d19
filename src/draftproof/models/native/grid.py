"""Weights that a file keeps on a four-bit grid, so that `weights=int4` holds them exactly.

Instead of a tensor `NAME` [outputs, depth], a checkpoint may hold `NAME.codes` [outputs, depth / 2] uint8 (the code of
an even k in the low half of its byte), `NAME.scales` and `NAME.minima` [outputs, depth / 32] float16. The weight is
`scale * code + minimum` in its group of 32: the grid of Q4_1, and of Q4_0 with minimum = -8 * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32


@dataclass(frozen=True, eq=False)
class Grid:
    """codes [outputs, depth] uint8 in 0..15; scales, minima [outputs, depth / 32] float16."""

    codes: Tensor
    scales: Tensor
    minima: Tensor

    def dense(self) -> Tensor:
        """The same weights as float32 [outputs, depth]."""
        groups = self.codes.view(len(self.codes), -1, GROUP).float()
        weights = groups * self.scales.float()[:, :, None] + self.minima.float()[:, :, None]
        return weights.view_as(self.codes)


Weight = Tensor | Grid


def dense(weight: Weight) -> Tensor:
    """The weight as one tensor [outputs, depth]."""
    return weight.dense() if isinstance(weight, Grid) else weight


def unfold(packed: Tensor) -> Tensor:
    """Codes [outputs, depth] from two a byte [outputs, depth / 2]."""
    return torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)


def by_rows(operation: Callable[[list[Tensor]], Tensor], weights: Sequence[Weight]) -> Weight:
    """Apply something that only moves whole rows; a grid stays one if all weights are on theirs."""
    grids = [weight for weight in weights if isinstance(weight, Grid)]
    if len(grids) < len(weights):
        return operation([dense(weight) for weight in weights])
    parts = ([grid.codes for grid in grids], [grid.scales for grid in grids], [grid.minima for grid in grids])
    return Grid(*(operation(part) for part in parts))
