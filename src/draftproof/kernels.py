"""The compiled kernels on rows over the vocabulary, where they are installed: one pass where torch takes several.

They start no threads, so a busy machine slows them in proportion and no more. `usable`: is a tensor theirs?
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor


@cache
def _compiled() -> Any:
    """The extension, None where nothing could compile it."""
    if find_spec("draftproof._kernels") is None:
        return None
    from draftproof import _kernels

    return _kernels


def usable(rows: Tensor) -> bool:
    """Float32 on a CPU, its rows in one piece, and the extension is there."""
    return rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.is_contiguous() and bool(_compiled())


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """[R, V] softmax of scores / temperature; NaN throughout for a row that has none."""
    out = torch.empty_like(scores)
    _compiled().probabilities(scores.numpy(), temperature, out.numpy())
    return out


def draw(row: Tensor, u: float) -> int:
    """`rng.draw`: the token at the quantile u of the row [V]."""
    return int(_compiled().draw(row.numpy(), u))


def residual(p: Tensor, q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(scale p - q)+ [N, V] for the first N rows, its mass [N], and the sum of min(p, q) [N], both float64."""
    left, mass, overlap = torch.empty_like(q), np.empty(len(q)), np.empty(len(q))
    _compiled().residual(p.numpy(), q.numpy(), scale.numpy(), left.numpy(), mass, overlap)
    return left, torch.from_numpy(mass), torch.from_numpy(overlap)
