"""The compiled kernels on rows over the vocabulary, where they are installed: one pass where torch takes several.

They start no threads, so a busy machine slows them in proportion and no more. `usable`: is a tensor theirs? All else
takes and gives numpy arrays of float32, whose small operations cost less than a tensor's.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats: TypeAlias = NDArray[np.float32]


class Filters(NamedTuple):
    """The stages behind the scores that are compiled: temperature, then top-p (1: none), then min-p (0: none)."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0


@cache
def _compiled() -> Any:
    """The extension, None where nothing could compile it."""
    if find_spec("draftproof._kernels") is None:
        return None
    from draftproof import _kernels

    return _kernels


def installed() -> bool:
    """The extension is there."""
    return _compiled() is not None


def usable(rows: Tensor) -> bool:
    """Float32 on a CPU, its rows in one piece, and the extension is there."""
    return rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.is_contiguous() and installed()


def distributions(scores: Floats, filters: Filters, out: Floats) -> None:
    """out [R, V]: `sampling.probabilities` of scores [R, V]; NaN throughout for a row that has none."""
    _compiled().distributions(scores, *filters, out)


def best(scores: Floats) -> tuple[int, float]:
    """(first token of the largest score [V], its part of a softmax); -1 for a row without one, or with NaN."""
    token, share = _compiled().best(scores)
    return int(token), float(share)


def draw(row: Floats, u: float) -> int:
    """`rng.draw`: the token at the quantile u of the row [V]."""
    return int(_compiled().draw(row, u))


def residual(p: Floats, q: Floats, scale: float) -> Floats:
    """(scale p - q)+ [V]: the row of `verify.excess`."""
    left = np.empty_like(p)
    _compiled().residual(p, q, scale, left)
    return left


def compare(p: Floats, q: Floats, scale: float = 1.0) -> tuple[float, float]:
    """(mass of (scale p - q)+, sum of min(p, q)): `verify.excess` and `verify.overlap` without a row."""
    mass, overlap = _compiled().compare(p, q, scale)
    return float(mass), float(overlap)


def uniform(seed: int, position: int, use: int, index: int) -> float:
    """`rng.uniform`; `use` by its number."""
    return float(_compiled().uniform(seed, position, use, index))


def race(row: Floats, gaps: Floats, seed: int, position: int) -> int:
    """`rng.PhiloxSource.ranked` for the best token of row [V], -1 for a row without mass or with NaN.

    gaps [V]: zeros before the first row of this position, then what the call has put there.
    """
    return int(_compiled().race(row, gaps, seed, position))
