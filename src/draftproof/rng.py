"""Counter-based randomness: every number is a pure function of (seed, position, use, index).

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). `philox` is the plain form for
the few uniforms of a step; numpy's generator with the same key and counter gives the same bits for a row of noise.
Nothing depends on the batch, the device or on what was drawn before.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from draftproof import kernels
from draftproof.contracts import Key
from draftproof.device import send

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_USES = {"noise": 0, "draft": 1, "stop": 2, "next": 3}
_KEPT_POSITIONS = 16
T = TypeVar("T")


@lru_cache(maxsize=256)
def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 64-bit words of the block with this counter; ten rounds."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (high >> 64) ^ x1 ^ k0, high & _MASK, (low >> 64) ^ x3 ^ k1, low & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return x0, x1, x2, x3


def uniform(seed: int, position: int, use: str, index: int = 0) -> float:
    """A number in [0, 1) with 53 random bits."""
    block = philox((1 + index // 4, position, 0, 0), (seed, _USES[use]))
    return float((block[index % 4] >> 11) * 2.0**-53)


def exponentials(seed: int, position: int, size: int) -> np.ndarray:
    """[size] float64 standard exponentials, the noise of one position: entry x belongs to token x."""
    bits = np.random.Philox(key=np.array([seed, _USES["noise"]], np.uint64), counter=np.array([0, position, 0, 0]))
    uniforms = ((bits.random_raw(size) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # never 0 or 1
    return -np.log(uniforms)


def draw(row: Tensor, u: float) -> Tensor:
    """Token of the row [V] at the quantile u in [0, 1), as an int64 scalar; never one of probability zero.

    The row need not be normalised. A row without mass, or with NaN, gives -1: the caller names the reason.
    """
    total = row.cumsum(0, dtype=torch.float64)
    point = torch.minimum(u * total[-1], torch.nextafter(total[-1], total.new_zeros(())))
    token = torch.searchsorted(total, point, right=True)
    return torch.where(total[-1] > 0, token, -1)


def best(rows: Tensor) -> Tensor:
    """[R] int64: the first maximum of every row (NaN counts as one); on a CPU numpy's search is the quicker one."""
    if rows.device.type == "cpu":
        return torch.from_numpy(rows.numpy().argmax(-1))
    return rows.argmax(-1)


class PhiloxSource:
    """All randomness of one request: ratio rules use `draw`, the coupled rule `ranked`."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        self._speeds: dict[int, Tensor] = {}
        self._gaps: dict[int, kernels.Floats] = {}

    def uniform(self, key: Key) -> float:
        """The number in [0, 1) that belongs to this key, by the compiled generator where there is one."""
        if kernels.installed():
            return kernels.uniform(self.seed, key.position, _USES[key.use], key.index)
        return uniform(self.seed, key.position, key.use, key.index)

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """A token of the row [V], int64 scalar on its device."""
        u = self.uniform(key)
        return torch.tensor(kernels.draw(row.numpy(), u)) if kernels.usable(row) else draw(row, u)

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """The k best of log(row) + Gumbel noise: the k first arrivals of exponential clocks with rates `row`.

        log p + g is monotone in p / e with e = exp(-g) a standard exponential, so one product serves.
        """
        if k == 1 and kernels.usable(row):
            return torch.tensor([max(0, self.race(row.numpy(), position))])
        race = row * self._speed(position, row)
        return best(race[None]) if k == 1 else race.topk(min(k, len(row))).indices

    def race(self, row: kernels.Floats, position: int) -> int:
        """`ranked` for the best token, compiled; -1 for a row without mass or with NaN."""
        gaps = self._gaps.get(position)
        if gaps is None or len(gaps) != len(row):
            gaps = np.zeros(len(row), np.float32)
            _keep(self._gaps, position, gaps)
        return kernels.race(row, gaps, self.seed, position)

    def _speed(self, position: int, row: Tensor) -> Tensor:
        """1 / exponentials of a position; kept, since drafter, target and the next steps ask for the same ones."""
        speed = self._speeds.get(position)
        if speed is None or (len(speed), speed.dtype, speed.device) != (len(row), row.dtype, row.device):
            noise = 1.0 / exponentials(self.seed, position, len(row))
            speed = send(torch.from_numpy(noise).to(row.dtype), row.device)
            _keep(self._speeds, position, speed)
        return speed


def _keep(noise: dict[int, T], position: int, one: T) -> None:
    """Of this position and of the latest others."""
    noise[position] = one
    if len(noise) > _KEPT_POSITIONS:
        del noise[next(iter(noise))]
