"""What steps cost by their counts of tokens: as measured beforehand, and as a run's own steps correct it."""

from __future__ import annotations

from dataclasses import dataclass, field

_FADE = 0.95
_PRIOR = 2.0
_PULL = 0.5
_MOST = 3.0
_LEAST = 0.2


@dataclass(frozen=True)
class Curve:
    """Seconds by a count, as measured at some counts: linear between and behind them, never falling.

    Other programs only ever add time, so a count costs no more than what a larger one took.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.points]
        if not counts or counts != sorted(set(counts)) or any(not seconds >= 0 for _, seconds in self.points):
            raise ValueError("a cost curve needs ascending counts with seconds of at least 0")

    def at(self, count: float) -> float:
        """Seconds at this count."""
        rising = [(at, min(seconds for _, seconds in self.points[i:])) for i, (at, _) in enumerate(self.points)]
        if count <= rising[0][0] or len(rising) == 1:
            return rising[0][1]
        upper = next((i for i, (at, _) in enumerate(rising) if at >= count), len(rising) - 1)
        (x0, y0), (x1, y1) = rising[upper - 1], rising[upper]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


@dataclass(frozen=True)
class Costs:
    """verify: seconds of a step that puts so many tokens to the target. drafts: by drafter, of so many draft tokens."""

    verify: Curve
    drafts: dict[str, Curve] = field(default_factory=dict)

    def step(self, depth: int, drafter: str, requests: int = 1) -> float:
        """A request's share of a step in which `requests` of them draft `depth` tokens each."""
        draft = self.drafts[drafter].at(depth) if depth and drafter in self.drafts else 0.0
        return self.verify.at(requests * (1 + depth)) / requests + draft


class Tuned:
    """Costs that follow what steps take while they run: a machine changes under its other programs, and a long context
    costs more than the short one that was measured.

    The verification of n tokens is taken as u V(1) + v (V(n) - V(1)), by least squares over the latest steps, which
    fade; that of drafts as w D(n). u = v = w = 1, the measured curves, counts as a few steps.
    """

    def __init__(self, costs: Costs) -> None:
        self.measured = costs
        self._plain = costs.verify.at(1)
        # Weight, x, x², y, xy of the steps seen: x of the larger counts' extra, y of seconds, both in plain steps.
        self._sums = [0.0] * 5
        self._drafts: dict[str, tuple[float, float]] = {}

    def step(self, depth: int, drafter: str, requests: int = 1) -> float:
        """As `Costs.step`."""
        draft = 0.0
        if depth and drafter in self.measured.drafts:
            seconds, expected = self._drafts.get(drafter, (_PRIOR, _PRIOR))
            draft = self.measured.drafts[drafter].at(depth) * seconds / expected
        return self._verify(requests * (1 + depth)) / requests + draft

    def learn(self, depth: int, drafter: str, draft: float, verify: float) -> None:
        """One more step of one request: seconds of its draft and of all that followed."""
        # A step that took ten times as long met another program, which says little of the next.
        expected = self._verify(1 + depth)
        self._sums = [_FADE * total for total in self._sums]
        self._add(self._extra(1 + depth), min(verify, _MOST * expected) / self._plain, 1.0)
        curve = self.measured.drafts.get(drafter)
        if curve is not None and depth and curve.at(depth):
            before = self._drafts.get(drafter, (_PRIOR, _PRIOR))
            share = min(draft / curve.at(depth), _MOST)
            self._drafts[drafter] = (_FADE * before[0] + share, _FADE * before[1] + 1)

    def _extra(self, count: int) -> float:
        return self.measured.verify.at(count) / self._plain - 1

    def _add(self, x: float, y: float, weight: float) -> None:
        self._sums = [total + weight * part for total, part in zip(self._sums, (1, x, x * x, y, x * y), strict=True)]

    def _verify(self, count: int) -> float:
        # Base and slope are both drawn towards 1, since one kind of step alone fixes but one of them.
        n, x, xx, y, xy = (total + _PULL * part for total, part in zip(self._sums, (1, 0, 1, 1, 1), strict=True))
        slope = max(_LEAST, (n * xy - x * y) / (n * xx - x * x))
        base = max(_LEAST, (y - slope * x) / n)
        return self._plain * (base + slope * self._extra(count))
