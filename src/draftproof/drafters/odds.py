"""What drafting so many tokens is worth: chances learned from earlier drafts, the pace so far, and the best length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_TRUST = 3.0
_MEMORY = 0.97


class Odds:
    """How often draft tokens of a class were taken once their parent was: counts that fade, around a guess."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, float], tuple[float, float]] = {}

    def chance(self, drafter: str, kind: float, guess: float) -> float:
        """The chance of this class; the guess counts as a few tries."""
        taken, tries = self._counts.get((drafter, kind), (0.0, 0.0))
        return (taken + _TRUST * guess) / (tries + _TRUST)

    def learn(self, drafter: str, kind: float, taken: bool) -> None:
        """One more draft token of this class."""
        before = self._counts.get((drafter, kind), (0.0, 0.0))
        self._counts[drafter, kind] = (before[0] * _MEMORY + taken, before[1] * _MEMORY + 1)


@dataclass
class Pace:
    """Tokens per second of the request, in the seconds of the cost curve; it begins as plain decoding's."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def add(self, tokens: int, seconds: float) -> None:
        """One more step."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds


@dataclass
class Turns:
    """When a drafter that is not chosen is tried again: after `wait` steps, and twice as many the next time."""

    first: int
    most: int
    idle: int = 0
    wait: int = 0

    def __post_init__(self) -> None:
        self.wait = self.first

    def chosen(self) -> None:
        """It needs no trial."""
        self.idle, self.wait = 0, self.first

    def due(self) -> bool:
        """One more step without it; is it tried now?"""
        self.idle += 1
        if self.idle < self.wait:
            return False
        self.idle, self.wait = 0, min(2 * self.wait, self.most)
        return True


@dataclass(frozen=True)
class Choice:
    """So many tokens of this drafter; `worth` is E(n) - r T(n). trial: to learn what becomes of it."""

    worth: float
    depth: int = 0
    drafter: str = ""
    trial: bool = False


def best_depth(chance: Callable[[int], float], most: int, price: Callable[[int], float], drafter: str) -> Choice:
    """The depth 0 ... most of the largest worth.

    chance(i): of token i once those before it are taken; price(n): tokens that could be written in the time of a step
    that drafts n, which never falls. Depths that cannot catch up even with certain tokens are not looked at.
    """
    choice = Choice(1 - price(0), 0, drafter)
    expected = reach = 1.0
    for depth in range(1, most + 1):
        reach *= chance(depth)
        expected += reach
        worth = expected - price(depth)
        if worth > choice.worth:
            choice = Choice(worth, depth, drafter)
        elif worth + reach * (most - depth) <= choice.worth:
            break
    return choice
