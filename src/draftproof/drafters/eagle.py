"""A trained head drafts: one layer over the target's states (EAGLE-1 2401.15077, EAGLE-3 2503.01840).

Its cache is its own. Behind every step it holds what the target's true states give; within a proposal the head goes on
from states of its own, whose entries the next step drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, DraftSession, Shared
from draftproof.device import send, upload
from draftproof.drafters.best_first import BestFirst, grow_best
from draftproof.drafters.children import Shape, grow_all
from draftproof.drafters.eagle_head import EagleHead
from draftproof.types import InputError, Proposal, Segment

_PENDING = 256


class EagleDrafter:
    """Chains and trees of a fixed shape as `shape` says, or trees that follow the likeliest paths (EAGLE-2)."""

    def __init__(self, head: EagleHead, shared: Shared, shape: Shape | BestFirst) -> None:
        """The head's products become those of the target's backend. InputError where the two do not belong together."""
        _check(head, shared)
        self.head, self.shared, self.shape = head, shared, shape
        self.name, self.gamma, self.draws, self.branches = "eagle", shape.gamma, shape.draws, shape.branches
        self.layers = head.config.layers
        own = head.config.own_head
        borrowed = None
        if not own:
            borrowed = shared.head() if head.ids is None else shared.product(shared.head_rows(head.ids), None)
        head.serve(shared.product, borrowed)

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
        caches = [segment.cache for segment in segments if isinstance(segment.cache, HeadCache)]
        sizes, rows = [len(segment.tokens) for segment in segments], [segment.rows for segment in segments]
        states = self._states([cache.incoming for cache in caches])
        entered, residual = self.head.enter(self._embed(torch.cat([segment.tokens for segment in segments])), states)
        positions = upload([p for cache in caches for p in cache.coming], states.device)
        q, k, v = self.head.project(entered, self.head.angles(positions))
        ends, attended, kept = np.cumsum(sizes), [], []
        for segment, cache, end in zip(segments, caches, ends.tolist(), strict=True):
            start, first = end - len(segment.tokens), end - segment.rows
            cache.append(k[:, start:end], v[:, start:end])
            if segment.rows:
                attended.append(cache.attend(q[:, first:end], segment.parents))
                kept.append(residual[first:end])
        if not attended:
            return [states.new_empty(0, self.head.config.vocab) for _ in segments]
        own = self.head.leave(torch.cat(attended), torch.cat(kept))
        for cache, share in zip(caches, torch.split(own, rows), strict=True):
            cache.own = share if cache.own is None else torch.cat([cache.own, share])
        return list(torch.split(self._to_target(self.head.logits(own)), rows))

    def _states(self, incoming: Sequence[Tensor]) -> Tensor:
        """[n, H]: true states [n, L, target_hidden] combined, the head's own as they are; a call has one kind."""
        states = incoming[0] if len(incoming) == 1 else torch.cat(list(incoming))
        if states.dim() == 2:
            return states
        if self.head.config.layout == "eagle1":
            return self.shared.final_norm(states[:, 0])
        return self.head.combine(states.float())

    def _embed(self, tokens: Tensor) -> Tensor:
        own = self.head.embedding
        return self.shared.embed(tokens) if own is None else own(tokens).float()

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


class HeadCache:
    """Keys and values [kv_heads, n, d] of one request: `positions` of the true entries, then those being drafted."""

    def __init__(self, head: EagleHead) -> None:
        self._head = head
        self.positions: list[int] = []
        self.drafted = 0
        self.incoming = self.nothing = torch.empty(0)
        self.coming: list[int] = []
        self.own: Tensor | None = None
        c = head.config
        self._keys, self._values = (torch.empty(c.kv_heads, 0, c.head_dim, device=head.device) for _ in range(2))

    @property
    def length(self) -> int:
        """True entries."""
        return len(self.positions)

    def cut(self, position: int) -> None:
        """Drop what is drafted, and true entries from this position on."""
        self.drafted, self.own = 0, None
        while self.positions and self.positions[-1] >= position:
            self.positions.pop()

    def append(self, keys: Tensor, values: Tensor) -> None:
        """The entries of `coming`: true ones while nothing has been drafted from them."""
        start = self.length + self.drafted
        end = start + keys.shape[1]
        if end > self._keys.shape[1]:
            self._keys, self._values = (_grown(one, start, end) for one in (self._keys, self._values))
        self._keys[:, start:end], self._values[:, start:end] = keys, values
        if self.own is None:
            self.positions += self.coming
        else:
            self.drafted += keys.shape[1]

    def attend(self, queries: Tensor, parents: Sequence[int]) -> Tensor:
        """[m, heads * d] of the last m entries: each sees the true entries and, among the nodes, its own path."""
        end = self.length + self.drafted
        keys, values = self._keys[None, :, :end], self._values[None, :, :end]
        mask = None
        if self.drafted and not tree.is_chain(parents):
            mask = send(torch.from_numpy(_visible(parents, queries.shape[1], self.length)), queries.device)
        out = torch.nn.functional.scaled_dot_product_attention(
            queries[None], keys, values, attn_mask=mask, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)

    def entries(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the true entries."""
        return self._keys[:, : self.length], self._values[:, : self.length]


def _grown(tensor: Tensor, used: int, needed: int) -> Tensor:
    heads, _, width = tensor.shape
    grown = tensor.new_empty(heads, max(64, 2 * needed), width)
    grown[:, :used] = tensor[:, :used]
    return grown


def _visible(parents: Sequence[int], new: int, before: int) -> np.ndarray:
    """[new, before + N] bool: what the last `new` of N nodes see."""
    count = len(parents)
    seen = np.zeros((new, before + count), bool)
    seen[:, :before] = True
    for row, node in enumerate(range(count - new, count)):
        seen[row, [before + above for above in tree.path(parents, node)]] = True
    return seen


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
        self.model, self.cache = drafter.head, HeadCache(drafter.head)
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
