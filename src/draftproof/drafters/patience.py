"""Whether a chain that is being drafted goes on, by how sure the draft was of its tokens so far.

The chain ends where one more token would bring less than it costs: the early stop of Kangaroo (Liu et al. 2404.18911,
section 3.3) with costs in the place of a fixed threshold. A drawn token stays in the draft whatever it is; whether one
more is drawn behind it may depend on it (docs/losslessness.md, condition (D)).
"""

from __future__ import annotations

from collections.abc import Callable

_CLASSES = 20
_UNSURE = 0.65


def always(sure: float) -> bool:
    """Go on for as long as the ask says."""
    return True


def class_of(sure: float) -> float:
    """Tokens of which a draft was about as sure are judged together: 0, 0.05 ... 1."""
    return round(_CLASSES * sure) / _CLASSES


def drawn_chance(sure: float) -> float:
    """The chance of a drawn token that the draft drew with this chance, before a request has taught better.

    An unlikely token is not likelier to be refused than the two rows are to differ: `lowbit` on training prompts at
    temperature 0.7 has .68 at the lower end and .97 at the upper one under the rule token, .64 and .97 under coupled.
    """
    return _UNSURE + (1 - _UNSURE) * sure


class Patience:
    """Asked behind every token of one chain with the draft's own chance of it; depths count from 1."""

    def __init__(
        self,
        chance: Callable[[float], float],
        following: Callable[[int], float],
        price: Callable[[int], float],
    ) -> None:
        """chance(sure): that the target takes the token; following(depth): one not drafted yet, both once its parent is
        taken. price(depth): tokens that could be written in the time which the token at this depth costs."""
        self._chance, self._following, self._price = chance, following, price
        self._reach, self._depth = 1.0, 0

    def __call__(self, sure: float) -> bool:
        """Is one more token worth its cost?"""
        self._depth += 1
        self._reach *= self._chance(sure)
        return self._reach * self._following(self._depth + 1) > self._price(self._depth + 1)
