"""A separate language model drafts, level by level, batched over requests."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession, Model
from draftproof.drafters.children import Shape, grow_all
from draftproof.session import Session, prefill
from draftproof.types import InputError, Proposal, Segment


class ModelDrafter:
    """A draft model over its own cache.

    allowed: draft ids that are the same token in the target, None where all are; others are never proposed, and
    a vocabulary padded differently is cut or filled. Past the draft's context it sees a window of the text.
    """

    layers: tuple[int, ...] = ()

    def __init__(self, model: Model, vocab_size: int, shape: Shape, allowed: Sequence[bool] | None = None) -> None:
        """vocab_size: the target's."""
        if "rollback" not in model.can or (shape.branches and "tree" not in model.can):
            raise InputError(
                f"{model.name} cannot roll back or score trees, so it cannot draft; use a chain or another model."
            )
        self.model, self.shape = model, shape
        self.name, self.gamma, self.draws, self.branches = "model", shape.gamma, shape.draws, shape.branches
        self._vocab_size = vocab_size
        self._bias = _forbidden(model, vocab_size, allowed)

    def start(self, target: Any) -> DraftSession:
        """A cache in the draft model for one request. InputError where it lies on another device than the target."""
        if target.model.device != self.model.device:
            where = f"{self.model.device}, the target on {target.model.device}"
            raise InputError(f"the draft model is on {where}: load both on the same device.")
        return _ModelSession(self.model, self._vocab_size)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One draft forward a level for all requests together."""
        limit = self.model.max_context
        asks = asks if limit is None else [replace(ask, depth=min(ask.depth, limit)) for ask in asks]
        own = [ask.session for ask in asks if isinstance(ask.session, _ModelSession)]
        contexts = [session.window(ask.context, ask.depth) for session, ask in zip(own, asks, strict=True)]
        sessions = [session.cached for session in own]
        prefill(self.model, sessions, contexts)
        segments = [session.plan(context) for session, context in zip(sessions, contexts, strict=True)]
        return grow_all(asks, self.shape, sessions, segments, self._call)

    def _call(self, segments: Sequence[Segment]) -> list[Tensor]:
        return [self._to_target(output.logits) for output in self.model.forward(segments)]

    def _to_target(self, logits: Tensor) -> Tensor:
        """[R, draft vocabulary] -> [R, target vocabulary]: the same ids, forbidden where the token differs."""
        size = self._vocab_size
        if logits.shape[1] > size:
            logits = logits[:, :size]
        elif logits.shape[1] < size:
            logits = torch.nn.functional.pad(logits, (0, size - logits.shape[1]), value=float("-inf"))
        return logits if self._bias is None else logits + self._bias


class _ModelSession:
    """One request's text in the draft model."""

    def __init__(self, model: Model, target_size: int) -> None:
        self.cached = Session(model)
        self._limit, self._size = model.max_context, model.vocab_size
        self._start = 0
        self._known: list[int] | None = [] if self._size < target_size else None

    def window(self, context: Sequence[int], depth: int) -> Sequence[int]:
        """The context, or its end where the draft's own context is too short.

        The window moves in strides of half its length, so that its prefill is paid for by many tokens.
        """
        if self._known is not None:
            context = self._readable(context, self._known)
        if self._limit is None or len(context) - self._start + depth <= self._limit:
            return context[self._start :] if self._start else context
        if not self._start:
            warnings.warn(f"the text has outgrown the draft model's context of {self._limit} tokens.", stacklevel=2)
        self._start = max(0, len(context) - max(1, (self._limit - depth) // 2))
        return context[self._start :]

    def _readable(self, context: Sequence[int], known: list[int]) -> list[int]:
        """The context with id 0 for tokens that the draft model does not have; it grows as the context does."""
        known += (token if token < self._size else 0 for token in context[len(known) :])
        return known

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """The drafted tokens are known on the host now."""
        self.cached.resolve(drafted)


def _forbidden(model: Model, vocab_size: int, allowed: Sequence[bool] | None) -> Tensor | None:
    """[V] 0 or -inf over the target's vocabulary; None where every token may be proposed."""
    if allowed is None or (all(allowed[:vocab_size]) and len(allowed) >= min(vocab_size, model.vocab_size)):
        return None
    bias = torch.full((vocab_size,), float("-inf"))
    for token, good in enumerate(allowed[:vocab_size]):
        if good:
            bias[token] = 0.0
    return bias.to(model.device)
