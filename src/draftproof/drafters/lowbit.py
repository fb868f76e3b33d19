"""The target's own weights at a few bits draft; they read and extend the target's own cache.

What they write there stands behind the target's entries until the verification replaces it, so the draft needs no
prefill, no catch-up and no cache of its own (self-speculation as in QuantSpec 2502.10424, with the weights at low bits
and the cache left exact).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession, Model, Twin
from draftproof.drafters.ahead import Ahead, Guesses, grow_ahead
from draftproof.drafters.children import Shape, grow_all, growing_chain
from draftproof.drafters.text_rows import TextRows, text_rows
from draftproof.session import Session, catch_up
from draftproof.types import InputError, Output, Proposal, Segment


class LowBitDrafter:
    """`twin` approximates the target and shares its caches.

    Tokens that neither its head knows nor the text has used are never proposed.
    """

    layers: tuple[int, ...] = ()

    def __init__(self, target: Model, twin: Twin, shape: Shape) -> None:
        if shape.branches and "tree" not in target.can:
            raise InputError(f"{target.name} cannot score trees, so give lowbit no shape.")
        self.name, self.gamma, self.draws, self.branches = "lowbit", shape.gamma, shape.draws, shape.branches
        self.twin = twin
        self._target, self._shape = target, shape
        self._beyond = text_rows(target, twin.ids)

    def memory(self) -> dict[str, int]:
        """Bytes: `weights` of the copy; what it shares with the target and its cache entries cost nothing."""
        return {"weights": self.twin.bytes}

    def start(self, target: Any) -> DraftSession:
        """Shares the request's session in the target."""
        rows = None if self._beyond is None else TextRows(*self._beyond, self._target.device)
        return _SharedSession(target, rows, Guesses(self.twin.ahead))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One call of the twin a level, for all requests together."""
        own = [ask.session for ask in asks if isinstance(ask.session, _SharedSession)]
        sessions, contexts = [one.shared for one in own], [ask.context for ask in asks]
        catch_up(self._target, sessions, contexts)
        rows = {id(one.shared.cache): one.rows for one in own if one.rows is not None}
        for one, context in zip(own, contexts, strict=True):
            if one.rows is not None:
                one.rows.read(context)
        call = partial(self._call, rows)
        if not self.branches and self.twin.ahead:
            return grow_ahead([self._ahead(ask, one) for ask, one in zip(asks, own, strict=True)], call)
        segments = [session.plan_borrowed(context) for session, context in zip(sessions, contexts, strict=True)]
        return grow_all(asks, self._shape, sessions, segments, call)

    def _ahead(self, ask: Ask, own: _SharedSession) -> Ahead:
        return Ahead(ask, own.shared, own.guesses, growing_chain(ask, self._shape))

    def _call(self, rows: Mapping[int, TextRows], segments: Sequence[Segment]) -> list[Tensor]:
        last, texts = self._target.num_layers, [rows.get(id(segment.cache)) for segment in segments]
        if self.twin.whole is not None:
            return self.twin.whole(segments, [None if text is None else (text.ids, text.rows) for text in texts])
        outputs = self.twin.model.forward(segments, (last,) if rows else (), exit_layer=last)
        return [self._to_target(output, text) for output, text in zip(outputs, texts, strict=True)]

    def _to_target(self, output: Output, rows: TextRows | None) -> Tensor:
        """[R, V] over the target's vocabulary; -inf where neither the twin nor the text has the token."""
        logits, ids = output.logits, self.twin.ids
        if ids is None:
            return logits
        shape = len(logits), self._target.vocab_size
        whole = torch.full(shape, float("-inf"), dtype=logits.dtype, device=logits.device).index_copy_(1, ids, logits)
        if rows is None or output.hidden is None or not len(rows.ids):
            return whole
        return whole.index_copy_(1, rows.ids, rows.logits(output.hidden[-len(logits) :, 0]).to(logits.dtype))


class _SharedSession:
    def __init__(self, target: Session, rows: TextRows | None, guesses: Guesses) -> None:
        self.shared, self.rows, self.guesses = target, rows, guesses

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing of its own to keep."""
