"""Guessed tokens in a draft's own calls: a chain's guess that the draft then takes as well needs no call of its own.

Speculation once more, one level down (hierarchical drafts: Sun et al. 2404.11912, section 3), with look-up as the
lowest level. Here nothing is judged: the draft takes every token of its own row as it would without guesses, and a
guess that is the token taken has its row already. So guesses change what a draft costs and never what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftproof.contracts import Ask
from draftproof.drafters.chains import GrowingChain
from draftproof.session import Session
from draftproof.types import Proposal, Segment

_LONGEST = 3


class Guesses:
    """What followed where one request's text has last ended like this, in up to three tokens, or one at least.

    An index, not the look-up of `ngram.py`: between two calls that stream all weights, numpy's code is cold.
    """

    def __init__(self, most: int) -> None:
        """most: tokens of a guess."""
        self._most, self._read = most, 0
        self._behind: dict[tuple[int, ...], int] = {}

    def behind(self, context: Sequence[int], drafted: Sequence[int], most: int) -> list[int]:
        """At most so many tokens for the places behind context and draft. The context only grows."""
        for end in range(max(1, self._read), len(context)):
            for length in range(1, min(_LONGEST, end) + 1):
                self._behind[tuple(context[end - length : end])] = end
        self._read = len(context)
        last = [*context[-_LONGEST:], *drafted][-_LONGEST:]
        for skipped in range(len(last)):
            if start := self._behind.get(tuple(last[skipped:])):
                # Behind a single token that matches, the third guess is reached as rarely as its row costs.
                count = min(most, self._most, 1 + len(last) - skipped)
                return list(context[start : start + max(0, count)])
        return []


class Ahead:
    """One request's chain, and the tree of what its calls have fed: tokens taken, and guesses that came to nothing."""

    def __init__(self, ask: Ask, session: Session, guesses: Guesses, grown: GrowingChain) -> None:
        self.session, self.grown = session, grown
        self._ask, self._guesses = ask, guesses
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._end = -1  # node of the chain's last token that has been fed
        self._guessed: list[int] = []
        self._right = 0

    @property
    def proposal(self) -> Proposal:
        """The chain so far."""
        return replace(self.grown.proposal, guessed=self._right)

    def begin(self) -> Segment:
        """The context's end, and guesses behind it."""
        return self.session.plan_borrowed(self._ask.context, self._with_guesses())

    def more(self) -> Segment:
        """The chain's last token, and guesses behind it."""
        self._end = self._feed(int(self.grown.proposal.tokens[-1]), self._end)
        return self.session.plan_more(self._with_guesses())

    def grow(self, logits: Tensor) -> None:
        """Take tokens from the rows [1 + guesses, V] for as long as each is the next one guessed."""
        first = len(self._tokens) - len(self._guessed)
        for i, guess in enumerate([*self._guessed, None]):
            if not self.grown.grow(logits[i : i + 1], guess):
                return
            self._end = first + i
            self._right += 1

    def _with_guesses(self) -> Proposal:
        drafted = self.grown.proposal.tokens.tolist()
        self._guessed = self._guesses.behind(self._ask.context, drafted, self.grown.left - 1)
        node = self._end
        for token in self._guessed:
            node = self._feed(token, node)
        return Proposal(torch.tensor(self._tokens, dtype=torch.int64), tuple(self._parents))

    def _feed(self, token: int, parent: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        return len(self._tokens) - 1


def grow_ahead(chains: Sequence[Ahead], call: Callable[[Sequence[Segment]], Sequence[Tensor]]) -> list[Proposal]:
    """As `children.grow_all`, for chains with guesses."""
    live = [one for one in chains if not one.grown.done]
    segments = [one.begin() for one in live]
    while live:
        for one, logits in zip(live, call(segments), strict=True):
            one.grow(logits)
        live = [one for one in live if not one.grown.done]
        segments = [one.more() for one in live]
    return [one.proposal for one in chains]
