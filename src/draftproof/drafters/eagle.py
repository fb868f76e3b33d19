"""A trained head drafts: one layer over the target's states (EAGLE-1 2401.15077, EAGLE-3 2503.01840).

Its cache is its own. Behind every step it holds what the target's true states give; within a proposal the head goes on
from states of its own, whose entries the next step drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, DraftSession, Shared
from draftproof.device import upload
from draftproof.drafters.best_first import BestFirst, grow_best
from draftproof.drafters.children import Shape, grow_all
from draftproof.drafters.eagle_bodies import body_of
from draftproof.drafters.eagle_head import EagleHead
from draftproof.types import InputError, Proposal, Segment

_PENDING = 256


class EagleDrafter:
    """Chains and trees of a fixed shape as `shape` says, or trees that follow the likeliest paths (EAGLE-2)."""

    def __init__(self, head: EagleHead, shared: Shared, shape: Shape | BestFirst) -> None:
        """The head's step becomes that of the target's backend. InputError where the two do not belong together."""
        _check(head, shared)
        self.head, self.shape = head, shape
        self.name, self.gamma, self.draws, self.branches = "eagle", shape.gamma, shape.draws, shape.branches
        self.layers = head.config.layers
        self.body = body_of(head, shared)

    def start(self, target: Any) -> DraftSession:
        """The head's cache of this text; what an earlier request with the same session left is taken up."""
        if self not in target.beside:
            target.beside[self] = EagleSession(self)
        session: DraftSession = target.beside[self]
        return session

    @torch.no_grad()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One call of the head a level for all requests together; the first reads what the target has added."""
        sessions = [ask.session for ask in asks if isinstance(ask.session, EagleSession)]
        segments = [session.plan(ask.context) for session, ask in zip(sessions, asks, strict=True)]
        if isinstance(self.shape, BestFirst):
            return grow_best(asks, self.shape, sessions, segments, self.call)
        return grow_all(asks, self.shape, sessions, segments, self.call)

    @torch.no_grad()
    def call(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Feed every segment's entries; logits [rows, V] over the target's vocabulary, -inf where the head has none."""
        logits = self.body.call(segments)
        return list(torch.split(self._to_target(torch.cat(logits)), [segment.rows for segment in segments]))

    def _to_target(self, logits: Tensor) -> Tensor:
        """[R, draft vocabulary] -> [R, V]."""
        ids = self.head.ids
        if ids is None:
            return logits
        whole = logits.new_full((len(logits), self.head.config.vocab), float("-inf"))
        return whole.index_copy_(1, ids, logits)


def _check(head: EagleHead, shared: Shared) -> None:
    c = head.config
    if c.target_hidden != shared.width:
        raise InputError(f"the head reads states of width {c.target_hidden}, the target's are {shared.width} wide.")
    if c.hidden != shared.width and not (c.own_head and c.own_embedding):
        raise InputError(
            f"the head is {c.hidden} wide and the target {shared.width}, so it needs its own embedding and output head."
        )


@dataclass(frozen=True, eq=False)
class _Pending:
    """True states [n, L, H] that no entry has been made of, from a position on."""

    first: int
    states: Tensor

    @property
    def positions(self) -> range:
        return range(self.first, self.first + len(self.states))

    def below(self, position: int) -> _Pending:
        return _Pending(self.first, self.states[: max(0, position - self.first)])


class EagleSession:
    """One request: its cache, and the target's states that wait to be read."""

    def __init__(self, drafter: EagleDrafter) -> None:
        self.model, self.cache = drafter.head, drafter.body.new_cache()
        self._drafter = drafter
        self._pending: list[_Pending] = []
        self._text: Sequence[int] = ()
        self._known = 0
        self._base = 0

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Take the true states; entries of a text that is no longer the context's beginning go."""
        if hidden is None:
            return
        first = len(context) - 1 - len(hidden)
        if context is not self._text:
            same = _common(self._text[: self._known], context)
            # Entry i holds token i + 1.
            first_wrong = first if same == self._known else min(first, same - 1)
        else:
            first_wrong = first
        self._text, self._known = context, len(context)
        self._cut(first_wrong)
        if len(hidden):
            self._pending.append(_Pending(first, hidden))
        if sum(len(one.states) for one in self._pending) > _PENDING:
            self._read_all_but_last(context)

    def plan(self, context: Sequence[int]) -> Segment:
        """The entries that are missing, up to the context's last token; one row, that behind it."""
        self.cache.cut(len(context))
        if not self._pending or self._pending[-1].positions.stop != len(context) - 1:
            raise ValueError("a head drafts from the target's states up to the last token but one: observe them first")
        pending, self._pending = self._pending, []
        self._base = len(context) - 2
        return self._segment(context, pending, 1)

    def plan_more(self, proposal: Proposal) -> Segment:
        """The nodes that the proposal has gained, each from the state of its parent."""
        cache, done = self.cache, self.cache.drafted
        new = proposal.parents[done:]
        assert cache.own is not None
        cache.incoming = cache.own.index_select(0, upload([parent + 1 for parent in new], cache.own.device))
        cache.coming = [self._base + depth for depth in tree.depths(proposal.parents)[done:]]
        return Segment(cache, proposal.tokens[done:], proposal.parents, len(new))

    def _cut(self, position: int) -> None:
        self.cache.cut(position)
        self._pending = [cut for one in self._pending if len((cut := one.below(position)).states)]

    def _read_all_but_last(self, context: Sequence[int]) -> None:
        """Long prompts become entries chunk by chunk, so that no more than a chunk's states are held."""
        last = self._pending[-1]
        end = last.positions.stop - 1
        pending = [*self._pending[:-1], last.below(end)]
        self._pending = [_Pending(end, last.states[-1:].clone())]
        self.cache.cut(end)
        self._drafter.call([self._segment(context, pending, 0)])

    def _segment(self, context: Sequence[int], pending: Sequence[_Pending], rows: int) -> Segment:
        positions = [position for one in pending for position in one.positions]
        states = [one.states for one in pending]
        self.cache.incoming, self.cache.coming = torch.cat(states) if len(states) > 1 else states[0], positions
        tokens = upload([context[position + 1] for position in positions], self.model.device)
        return Segment(self.cache, tokens, tuple(range(-1, len(positions) - 1)), rows)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the beginning that both share."""
    if len(one) <= len(other) and list(one) == list(other[: len(one)]):
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
