"""What computes a head's step: torch around the backend's products, or the backend in one call where it can.

Both keep a cache of their own for every request: true entries, then those being drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import HeadForward, RunsHeads, Shared
from draftproof.device import send, upload
from draftproof.drafters.eagle_head import EagleHead
from draftproof.types import Segment


class HeadEntries:
    """The entries of one request: `positions` of the true ones, then `drafted` ones.

    incoming: the states that the next call's entries are made of; coming: the positions of those entries.
    own: the head's states behind what was drafted, [1 + drafted, H]; None while only true entries came.
    """

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.drafted = 0
        self.incoming = torch.empty(0)
        self.coming: list[int] = []
        self.own: Tensor | None = None

    @property
    def length(self) -> int:
        """True entries."""
        return len(self.positions)

    def cut(self, position: int) -> None:
        """Drop what is drafted, and true entries from this position on."""
        self.drafted, self.own = 0, None
        while self.positions and self.positions[-1] >= position:
            self.positions.pop()

    def added(self, count: int) -> None:
        """The entries of `coming` are there: true ones while nothing has been drafted from them."""
        if self.own is None:
            self.positions += self.coming
        else:
            self.drafted += count

    def gained(self, own: Tensor) -> None:
        """The head's states behind the rows of a call."""
        if len(own):
            self.own = own if self.own is None else torch.cat([self.own, own])


class Body(Protocol):
    """A head's step."""

    def new_cache(self) -> HeadEntries:
        """For one request."""

    def call(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Feed every segment's entries; logits [rows, draft vocabulary] of each."""


def body_of(head: EagleHead, shared: Shared) -> Body:
    """The backend's whole step where it has one for this head, otherwise torch around its products."""
    if isinstance(shared, RunsHeads) and (parts := head.parts(shared)) is not None:
        whole = shared.whole_head(parts)
        if whole is not None:
            head.give_up()
            return WholeBody(whole)
    return TorchBody(head, shared)


class WholeCache(HeadEntries):
    """Entries that lie in a backend's own cache."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self.handle = handle


class WholeBody:
    """The backend's own step."""

    def __init__(self, head: HeadForward) -> None:
        self._head = head

    def new_cache(self) -> HeadEntries:
        """For one request."""
        return WholeCache(self._head.new_cache())

    def call(self, segments: Sequence[Segment]) -> list[Tensor]:
        """One call of the backend."""
        caches = [segment.cache for segment in segments if isinstance(segment.cache, WholeCache)]
        for cache in caches:
            self._head.rollback(cache.handle, cache.length + cache.drafted)
        own = caches[0].own is not None
        inner = [
            Segment(cache.handle, segment.tokens, segment.parents, segment.rows)
            for cache, segment in zip(caches, segments, strict=True)
        ]
        found = self._head.forward(inner, [cache.incoming for cache in caches], own)
        for cache, segment, (_, states) in zip(caches, segments, found, strict=True):
            cache.added(len(segment.tokens))
            cache.gained(states)
        return [logits for logits, _ in found]


class TorchBody:
    """The head's mathematics in torch, with products of the target's backend: everywhere, and the reference."""

    def __init__(self, head: EagleHead, shared: Shared) -> None:
        """The head's products become those of the backend."""
        borrowed = None
        if not head.config.own_head:
            borrowed = shared.head() if head.ids is None else shared.product(shared.head_rows(head.ids), None)
        head.serve(shared.product, borrowed)
        self._head, self._shared = head, shared

    def new_cache(self) -> HeadEntries:
        """For one request."""
        return TorchCache(self._head)

    def call(self, segments: Sequence[Segment]) -> list[Tensor]:
        """All segments' entries through the layer at once, attention by request."""
        caches = [segment.cache for segment in segments if isinstance(segment.cache, TorchCache)]
        sizes, rows = [len(segment.tokens) for segment in segments], [segment.rows for segment in segments]
        states = self._states([cache.incoming for cache in caches])
        entered, residual = self._head.enter(self._embed(torch.cat([segment.tokens for segment in segments])), states)
        positions = upload([p for cache in caches for p in cache.coming], states.device)
        q, k, v = self._head.project(entered, self._head.angles(positions))
        ends, attended, kept = np.cumsum(sizes), [], []
        for segment, cache, end in zip(segments, caches, ends.tolist(), strict=True):
            start, first = end - len(segment.tokens), end - segment.rows
            cache.append(k[:, start:end], v[:, start:end])
            if segment.rows:
                attended.append(cache.attend(q[:, first:end], segment.parents))
                kept.append(residual[first:end])
        if not attended:
            return [states.new_empty(0, self._head.config.draft_vocab) for _ in segments]
        own = self._head.leave(torch.cat(attended), torch.cat(kept))
        for cache, share in zip(caches, torch.split(own, rows), strict=True):
            cache.gained(share)
        return list(torch.split(self._head.logits(own), rows))

    def _states(self, incoming: Sequence[Tensor]) -> Tensor:
        """[n, H]: true states [n, L, target_hidden] combined, the head's own as they are; a call has one kind."""
        states = incoming[0] if len(incoming) == 1 else torch.cat(list(incoming))
        if states.dim() == 2:
            return states
        if self._head.config.layout == "eagle1":
            return self._shared.final_norm(states[:, 0])
        return self._head.combine(states.float())

    def _embed(self, tokens: Tensor) -> Tensor:
        own = self._head.embedding
        return self._shared.embed(tokens) if own is None else own(tokens).float()


class TorchCache(HeadEntries):
    """Keys and values [kv_heads, n, d]."""

    def __init__(self, head: EagleHead) -> None:
        super().__init__()
        c = head.config
        self._keys, self._values = (torch.empty(c.kv_heads, 0, c.head_dim, device=head.device) for _ in range(2))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """The entries of `coming`."""
        start = self.length + self.drafted
        end = start + keys.shape[1]
        if end > self._keys.shape[1]:
            self._keys, self._values = (_grown(one, start, end) for one in (self._keys, self._values))
        self._keys[:, start:end], self._values[:, start:end] = keys, values
        self.added(keys.shape[1])

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
