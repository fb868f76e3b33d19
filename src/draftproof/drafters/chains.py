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

    def grow(self, logits: Tensor) -> None:
        """Add a token; logits [1, V] behind the last one. The chain ends where no token may follow."""
        ask, level = self._ask, len(self.proposal)
        scores = ask.policy.scores(logits, ask.context, self.proposal, [level - 1])
        numbers = scores.numpy()[0]
        token = int(numbers.argmax()) if self._by_score else self._drawn(scores, level)
        if token < 0 or not numbers[token] > float("-inf"):
            self.done = True
        else:
            self._ids[level] = token
            level += 1
            self.done = level == self._levels
            if ask.go_on is not None:
                self._sure.append(_share(scores, token) if self._by_score else float(self._rows[level - 1, token]))
                self.done |= not ask.go_on(self._sure[-1])
        rows = torch.from_numpy(self._rows[:level]) if self.done and level and not self._by_score else None
        parents, sure = tuple(range(-1, level - 1)), tuple(self._sure)
        self.proposal = Proposal(self._tokens[:level], parents, rows, ask.coupled, confidence=sure)

    def _drawn(self, scores: Tensor, level: int) -> int:
        """A token of the row of these scores, which is kept; -1 for a row that none can be taken of."""
        ask, at = self._ask, len(self._ask.context)
        if self._rows is None:
            numbers = scores.numpy()
            self._rows = np.empty((self._levels, numbers.shape[1]), numbers.dtype)
        filters, key = filters_of(ask.policy, scores), Key(at, "draft", level)
        if filters is None or type(ask.source) is not PhiloxSource:
            row = proper(ask.policy.probabilities(scores))[0]
            self._rows[level] = row.numpy()
            return int(ask.source.ranked(row, 1, at + level)[0] if ask.coupled else ask.source.draw(row, key))
        kernels.distributions(scores.numpy(), filters, self._rows[level : level + 1])
        if ask.coupled:
            return ask.source.race(self._rows[level], at + level)
        return kernels.draw(self._rows[level], ask.source.uniform(key))


def _share(scores: Tensor, token: int) -> float:
    """The token's part of a softmax over the scores [1, V]."""
    if not kernels.usable(scores):
        return float(torch.softmax(scores[0].float(), -1)[token])
    row = torch.empty_like(scores)
    kernels.distributions(scores.numpy(), kernels.Filters(1.0), row.numpy())
    return float(row[0, token])
