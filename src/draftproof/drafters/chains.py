"""A chain grown on a CPU: one child a level, its row written where the proposal will report it.

The law is that of `children.Growing`, which also grows trees and works on devices whose numbers must not be looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof import kernels
from draftproof.contracts import Ask, Key
from draftproof.on_cpu import filters_of
from draftproof.rng import PhiloxSource, best
from draftproof.sampling import proper
from draftproof.types import Proposal


class GrowingChain:
    """A chain under construction, token by token, for one request."""

    def __init__(self, ask: Ask, levels: int, by_score: bool) -> None:
        """by_score: the token of the best score is chosen, and no rows are reported."""
        self.proposal = Proposal(torch.empty(0, dtype=torch.int64), ())
        self.done = levels == 0
        self._ask, self._levels, self._by_score = ask, levels, by_score
        self._tokens = torch.empty(levels, dtype=torch.int64)
        self._rows: Tensor | None = None

    def grow(self, logits: Tensor) -> None:
        """Add a token; logits [1, V] behind the last one. The chain ends where no token may follow."""
        ask, level = self._ask, len(self.proposal)
        scores = ask.policy.scores(logits, ask.context, self.proposal, [level - 1])
        token = int(best(scores)[0]) if self._by_score else self._drawn(scores, level)
        if token >= 0 and float(scores[0, token]) > float("-inf"):
            self._tokens[level] = token
            level += 1
        self.done = level == self._levels or level == len(self.proposal)
        probs = self._rows[:level] if self.done and self._rows is not None and level else None
        self.proposal = Proposal(self._tokens[:level], tuple(range(-1, level - 1)), probs, ask.coupled)

    def _drawn(self, scores: Tensor, level: int) -> int:
        """A token of the row of these scores, which is kept; -1 for a row that none can be taken of."""
        ask = self._ask
        if self._rows is None:
            self._rows = scores.new_empty(self._levels, scores.shape[1])
        filters, row = filters_of(ask.policy, scores), self._rows[level]
        if filters is None:
            row.copy_(proper(ask.policy.probabilities(scores))[0])
        else:
            kernels.distributions(scores.numpy(), filters, self._rows[level : level + 1].numpy())
        at, key = len(ask.context), Key(len(ask.context), "draft", level)
        if filters is None or type(ask.source) is not PhiloxSource:
            return int(ask.source.ranked(row, 1, at + level)[0] if ask.coupled else ask.source.draw(row, key))
        numbers = row.numpy()
        return ask.source.race(numbers, at + level) if ask.coupled else kernels.draw(numbers, ask.source.uniform(key))
