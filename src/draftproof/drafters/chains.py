"""A chain grown on a CPU: one child a level, its row written where the proposal will report it.

The law is that of `children.Growing`, which also grows trees and works on devices whose numbers must not be looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftproof import kernels
from draftproof.contracts import Ask, Key
from draftproof.on_cpu import filters_of
from draftproof.rng import PhiloxSource
from draftproof.sampling import proper
from draftproof.types import Proposal


class GrowingChain:
    """A chain under construction, token by token, for one request."""

    def __init__(self, ask: Ask, levels: int, by_score: bool) -> None:
        """by_score: the token of the best score is chosen, and no rows are reported."""
        self.done = levels == 0
        self._sure: list[float] = []
        self._ask, self._levels, self._by_score = ask, levels, by_score
        self._ids = np.empty(levels, np.int64)
        self._tokens = torch.from_numpy(self._ids)
        self._rows: Any = None
        self.proposal = Proposal(self._tokens[:0], ())

    @property
    def left(self) -> int:
        """Tokens that may still be added."""
        return self._levels - len(self.proposal)

    def grow(self, logits: Tensor, guess: int | None = None) -> bool:
        """Add a token; logits [1, V] behind the last one. The chain ends where no token may follow.

        guess: behind that token the next row is there already, so that nobody is asked whether it is worth its cost.
        Returns whether the chain goes on with that row.
        """
        ask, level = self._ask, len(self.proposal)
        scores = ask.policy.scores(logits, ask.context, self.proposal, [level - 1])
        token, sure = _best(scores) if self._by_score else self._drawn(scores, level)
        if token < 0:
            self.done = True
        else:
            self._ids[level] = token
            level += 1
            self.done = level == self._levels
            if ask.go_on is not None:
                self._sure.append(sure)
                self.done |= not ask.go_on(sure) and token != guess
        rows = torch.from_numpy(self._rows[:level]) if self.done and level and not self._by_score else None
        parents, confidence = tuple(range(-1, level - 1)), tuple(self._sure)
        self.proposal = Proposal(self._tokens[:level], parents, rows, ask.coupled, confidence=confidence)
        return token == guess and not self.done

    def _drawn(self, scores: Tensor, level: int) -> tuple[int, float]:
        """A token of the row of these scores, which is kept, and its probability; -1 where none may follow."""
        ask, at, numbers = self._ask, len(self._ask.context), scores.numpy()
        if self._rows is None:
            self._rows = np.empty((self._levels, numbers.shape[1]), numbers.dtype)
        row, filters, key = self._rows[level], filters_of(ask.policy, scores), Key(at, "draft", level)
        if filters is None or type(ask.source) is not PhiloxSource:
            made = proper(ask.policy.probabilities(scores))[0]
            row[:] = made.numpy()
            token = int(ask.source.ranked(made, 1, at + level)[0] if ask.coupled else ask.source.draw(made, key))
        else:
            kernels.distributions(numbers, filters, row[None])
            token = ask.source.race(row, at + level) if ask.coupled else kernels.draw(row, ask.source.uniform(key))
        never = token < 0 or not numbers[0, token] > float("-inf")
        return (-1, 0.0) if never else (token, float(row[token]))


def _best(scores: Tensor) -> tuple[int, float]:
    """The token of the best score [1, V] and its part of a softmax; -1 where none may follow."""
    if kernels.usable(scores):
        return kernels.best(scores.numpy()[0])
    token = int(scores[0].argmax())
    return (token if scores[0, token] > float("-inf") else -1), float(torch.softmax(scores[0].float(), -1)[token])
