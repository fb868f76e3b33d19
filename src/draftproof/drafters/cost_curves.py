"""What steps cost by their counts of tokens: as measured beforehand, and as a run's own steps correct it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

_FADE = 0.95
_PRIOR = 2.0
_PLAIN_EVERY = 64
_FLATTEST = 0.03
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

    @cached_property
    def _rising(self) -> list[tuple[int, float]]:
        return [(at, min(seconds for _, seconds in self.points[i:])) for i, (at, _) in enumerate(self.points)]

    def at(self, count: float) -> float:
        """Seconds at this count."""
        rising = self._rising
        if count <= rising[0][0] or len(rising) == 1:
            return rising[0][1]
        upper = next((i for i, (at, _) in enumerate(rising) if at >= count), len(rising) - 1)
        (x0, y0), (x1, y1) = rising[upper - 1], rising[upper]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


def between(one: Curve, other: Curve, share: float) -> Curve:
    """So much of the way from one to the other: 0.5 is their mean, 2 is as far again."""
    counts = sorted({count for count, _ in (*one.points, *other.points)})
    return Curve(tuple((n, max(0.0, one.at(n) + share * (other.at(n) - one.at(n)))) for n in counts))


@dataclass(frozen=True)
class Costs:
    """verify: seconds of a step that puts so many tokens to the target. drafts: by drafter, of so many draft tokens.

    context: tokens of the text behind which that was measured. further: the same behind a longer one.
    """

    verify: Curve
    drafts: dict[str, Curve] = field(default_factory=dict)
    context: int = 0
    further: Costs | None = None

    def behind(self, length: int) -> Costs:
        """Behind a text of that many tokens: linear in them, as attention is."""
        if self.further is None or length <= self.context:
            return self
        return self.toward(self.further, (length - self.context) / (self.further.context - self.context))

    def toward(self, other: Costs, share: float) -> Costs:
        """Every curve so much of the way to the other's; a drafter that only one knows stays as it is."""
        drafts = self.drafts | {
            name: between(self.drafts.get(name, curve), curve, share) for name, curve in other.drafts.items()
        }
        known = (self.further, other.further)
        further = known[0].toward(known[1], share) if known[0] and known[1] else None
        return Costs(between(self.verify, other.verify, share), drafts, self.context, further)

    def called(self, shares: Mapping[str, float]) -> Costs:
        """Where only that share of a drafter's tokens behind its first needs a call of its model."""
        first = {name: Curve(((1, curve.at(1)),)) for name, curve in self.drafts.items()}
        drafts = {name: between(first[name], curve, shares.get(name, 1.0)) for name, curve in self.drafts.items()}
        return replace(self, drafts=drafts)

    def draft(self, depth: int, drafter: str) -> float:
        """Seconds of drafting so many tokens; none for a drafter that looks up."""
        return self.drafts[drafter].at(depth) if depth and drafter in self.drafts else 0.0

    def step(self, depth: int, drafter: str, requests: int = 1) -> float:
        """A request's share of a step in which `requests` of them draft `depth` tokens each."""
        return self.verify.at(requests * (1 + depth)) / requests + self.draft(depth, drafter)


class Tuned:
    """Costs that follow what steps take while they run: a machine changes under its other programs, and a long context
    costs more than the short one that was measured.

    The verification of n tokens is taken as u V(1) + v (V(n) - V(1)): u from plain steps alone, v from the others by
    least squares, both fading; drafts as w D(n). The measured curves, with u = v = w = 1, count as a few steps.
    """

    def __init__(self, costs: Costs) -> None:
        self.measured = costs
        self._unit = costs.verify.at(1)
        self._plain = self._others = (_PRIOR, _PRIOR)
        self._drafts: dict[str, tuple[float, float]] = {}
        self._since = 0

    @property
    def stale(self) -> bool:
        """Has there been no plain step for long? Without them nobody knows what plain decoding would take."""
        return self._since >= _PLAIN_EVERY

    def step(self, depth: int, drafter: str, requests: int = 1) -> float:
        """As `Costs.step`."""
        draft = self.measured.draft(depth, drafter) * _mean(self._drafts.get(drafter, (_PRIOR, _PRIOR)))
        return self._verify(requests * (1 + depth)) / requests + draft

    def learn(self, depth: int, drafter: str, draft: float, verify: float) -> None:
        """One more step of one request: seconds of its draft and of all that followed."""
        # A step that took ten times as long met another program, which says little of the next.
        seen = min(verify, _MOST * self._verify(1 + depth)) / self._unit
        if depth == 0:
            self._plain, self._since = _faded(self._plain, seen, 1.0), 0
            return
        x = self._extra(1 + depth)
        self._others, self._since = _faded(self._others, x * (seen - _mean(self._plain)), x * x), self._since + 1
        if measured := self.measured.draft(depth, drafter):
            before = self._drafts.get(drafter, (_PRIOR, _PRIOR))
            self._drafts[drafter] = _faded(before, min(draft / measured, _MOST), 1.0)

    def _extra(self, count: int) -> float:
        # A curve measured as flat could not be corrected where it turns out to rise.
        return max(self.measured.verify.at(count) / self._unit - 1, _FLATTEST * (count - 1))

    def _verify(self, count: int) -> float:
        return self._unit * (_mean(self._plain) + max(_LEAST, _mean(self._others)) * self._extra(count))


def _faded(sums: tuple[float, float], above: float, below: float) -> tuple[float, float]:
    """Sums above and below the line of a mean, with one more in them."""
    return _FADE * sums[0] + above, _FADE * sums[1] + below


def _mean(sums: tuple[float, float]) -> float:
    return sums[0] / sums[1]
