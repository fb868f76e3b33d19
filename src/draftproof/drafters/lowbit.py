"""The target's own weights at a few bits draft; they read and extend the target's own cache.

What they write there stands behind the target's entries until the verification replaces it, so the draft needs no
prefill, no catch-up and no cache of its own (self-speculation as in QuantSpec 2502.10424, with the weights at low bits
and the cache left exact).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession, Model, Twin
from draftproof.drafters.children import Shape, grow_all
from draftproof.session import Session, catch_up
from draftproof.types import InputError, Proposal, Segment


class LowBitDrafter:
    """`twin` approximates the target and shares its caches; tokens that its head does not know are never proposed."""

    layers: tuple[int, ...] = ()

    def __init__(self, target: Model, twin: Twin, shape: Shape) -> None:
        if shape.branches and "tree" not in target.can:
            raise InputError(f"{target.name} cannot score trees, so give lowbit no shape.")
        self.name, self.gamma, self.draws, self.branches = "lowbit", shape.gamma, shape.draws, shape.branches
        self.twin = twin
        self._target, self._shape = target, shape

    def memory(self) -> dict[str, int]:
        """Bytes: `weights` of the copy; what it shares with the target and its cache entries cost nothing."""
        return {"weights": self.twin.bytes}

    def start(self, target: Any) -> DraftSession:
        """Shares the request's session in the target."""
        return _SharedSession(target)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One call of the twin a level, for all requests together."""
        sessions = [ask.session.shared for ask in asks if isinstance(ask.session, _SharedSession)]
        contexts = [ask.context for ask in asks]
        catch_up(self._target, sessions, contexts)
        segments = [session.plan_borrowed(context) for session, context in zip(sessions, contexts, strict=True)]
        return grow_all(asks, self._shape, sessions, segments, self._call)

    def _call(self, segments: Sequence[Segment]) -> list[Tensor]:
        outputs = self.twin.model.forward(segments, exit_layer=self._target.num_layers)
        return [self._to_target(output.logits) for output in outputs]

    def _to_target(self, logits: Tensor) -> Tensor:
        """[R, K] -> [R, V] over the target's vocabulary; -inf where the twin has no token."""
        ids = self.twin.ids
        if ids is None:
            return logits
        whole = torch.full(
            (len(logits), self._target.vocab_size), float("-inf"), dtype=logits.dtype, device=logits.device
        )
        return whole.index_copy_(1, ids, logits)


class _SharedSession:
    def __init__(self, target: Session) -> None:
        self.shared = target

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing of its own to keep."""
