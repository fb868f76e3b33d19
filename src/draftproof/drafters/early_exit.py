"""The target's first layers and its own norm and head draft; they read and write the target's own cache.

What they computed is not computed again: the verification goes on from their states (draft-and-verify with one model,
LayerSkip 2404.16710, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftproof.contracts import Ask, DraftSession, Model
from draftproof.drafters.children import Shape, grow_all
from draftproof.session import Session
from draftproof.types import InputError, Proposal, Segment


class EarlyExitDrafter:
    """Exit after layer `layer` of the target."""

    layers: tuple[int, ...] = ()

    def __init__(self, target: Model, layer: int, shape: Shape) -> None:
        if "early_exit" not in target.can:
            raise InputError(f"{target.name} cannot stop after a layer: use another drafter.")
        if not 1 <= layer < target.num_layers:
            raise InputError(f"layer must lie between 1 and {target.num_layers - 1} for this target, not {layer}.")
        self.name, self.gamma, self.draws, self.branches = "early-exit", shape.gamma, shape.draws, shape.branches
        self._target, self._layer, self._shape = target, layer, shape

    def start(self, target: Any) -> DraftSession:
        """Shares the request's session in the target."""
        return _SharedSession(target)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One call of the first layers a level, for all requests together."""
        sessions = [ask.session.shared for ask in asks if isinstance(ask.session, _SharedSession)]
        segments = [session.plan_exit(ask.context) for session, ask in zip(sessions, asks, strict=True)]
        return grow_all(asks, self._shape, sessions, segments, self._call)

    def _call(self, segments: Sequence[Segment]) -> list[Tensor]:
        return [output.logits for output in self._target.forward(segments, exit_layer=self._layer)]


class _SharedSession:
    def __init__(self, target: Session) -> None:
        self.shared = target

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing of its own to keep."""
