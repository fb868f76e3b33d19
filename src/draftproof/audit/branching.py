"""A source of randomness that takes every way it can, each with its probability: sampling without sampling error.

`explore` runs a function again and again, depth first, until every combination of draws has been met. The function is
the real drafter or the real judgement; it cannot tell this source from `rng.PhiloxSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from draftproof.audit.polygon import TRIANGLE, Polygon, centre, winners
from draftproof.contracts import Key

Result = TypeVar("Result")
Interval = tuple[float, float]
_SLIVER = 1e-15


@dataclass(frozen=True)
class Noise:
    """What is known of the random numbers so far: an interval a uniform, a polygon a position's exponentials."""

    uniforms: tuple[tuple[Key, Interval], ...] = ()
    positions: tuple[tuple[int, Polygon], ...] = ()

    def behind(self, length: int) -> Noise:
        """What still matters once the context has `length` tokens: later positions. Keys of old steps never return."""
        return Noise((), tuple(item for item in self.positions if item[0] >= length))


@dataclass
class _Fork:
    options: int
    taken: int = 0


@dataclass
class Branching:
    """Protocol `contracts.Source`. `weight` is the probability of the way taken so far."""

    uniforms: dict[Key, Interval]
    positions: dict[int, Polygon]
    script: list[_Fork] = field(default_factory=list)
    weight: float = 1.0
    _met: int = 0

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """Every token of positive probability; a key met before keeps the interval that its uniform must lie in."""
        values = row.tolist()
        known = self.uniforms.get(key)
        cells = _quantiles(values) if known is None else _within(values, known)
        if not cells:
            return torch.tensor(-1)
        token, weight, self.uniforms[key] = cells[self._choose(len(cells))]
        self.weight *= weight
        return torch.tensor(token)

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """Every order of the k best under the position's noise that is still possible; impossible tokens come last."""
        values = tuple(row.tolist())
        if len(values) != 3:
            raise ValueError(f"the noise of a position is enumerated for 3 tokens, not {len(values)}")
        runners = tuple(token for token, value in enumerate(values) if value > 0)
        order: list[int] = []
        while runners and len(order) < k:
            cells = winners(self.positions.get(position, TRIANGLE), values, runners)
            token, weight, self.positions[position] = cells[self._choose(len(cells))]
            self.weight *= weight
            order.append(token)
            runners = tuple(runner for runner in runners if runner != token)
        rest = [token for token in range(3) if token not in order]
        return torch.tensor([*order, *rest][:k])

    def noise(self) -> Noise:
        """All that this way has fixed."""
        return Noise(tuple(self.uniforms.items()), tuple(sorted(self.positions.items())))

    def _choose(self, options: int) -> int:
        if options == 1:
            return 0
        if self._met == len(self.script):
            self.script.append(_Fork(options))
        fork = self.script[self._met]
        if fork.options != options:
            raise RuntimeError("the function under test is not a function of its draws alone")
        self._met += 1
        return fork.taken


def explore(run: Callable[[Branching], Result], noise: Noise = Noise()) -> Iterator[tuple[float, Result, Noise]]:
    """(probability, result, what is then known of the noise) for every way the draws of `run` can go."""
    script: list[_Fork] = []
    while True:
        source = Branching(dict(noise.uniforms), dict(noise.positions), script)
        result = run(source)
        yield source.weight, result, source.noise()
        while script and script[-1].taken + 1 == script[-1].options:
            script.pop()
        if not script:
            return
        script[-1].taken += 1


def _quantiles(values: Sequence[float]) -> list[tuple[int, float, Interval]]:
    """(token, probability, where the uniform lies) of every token with mass."""
    total, low = sum(values), 0.0
    cells = []
    for token, value in enumerate(values):
        if value > 0:
            cells.append((token, value / total, (low, low + value / total)))
            low += value / total
    return cells


def _within(values: Sequence[float], known: Interval) -> list[tuple[int, float, Interval]]:
    """The same for a uniform that is known to lie in an interval."""
    start, end = known
    cells = []
    for token, _, (low, high) in _quantiles(values):
        left, right = max(low, start), min(high, end)
        if right - left > _SLIVER:
            cells.append((token, (right - left) / (end - start), (left, right)))
    return cells


class Fixed:
    """A source with one point of noise a position, inside the polygons that `noise` names; no uniforms."""

    def __init__(self, noise: Noise) -> None:
        self._points = {position: centre(polygon) for position, polygon in noise.positions}

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """Nothing is drawn under fixed noise."""
        raise RuntimeError("the coupled rule draws nothing but the noise of its positions")

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """As `rng.PhiloxSource.ranked`, from the point."""
        point = self._points.get(position, centre(TRIANGLE))
        return (row / torch.tensor(point, dtype=row.dtype)).topk(min(k, len(row))).indices
