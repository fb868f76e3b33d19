"""The target's first layers and its own norm and head draft; they read and write the target's own cache.

What they computed is not computed again: the verification goes on from their states (draft-and-verify with one model,
LayerSkip 2404.16710, section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession, Model, SharesWeights
from draftproof.drafters.children import Shape, grow_all
from draftproof.drafters.exit_adapter import ExitAdapter
from draftproof.session import Session
from draftproof.types import InputError, Proposal, Segment


class EarlyExitDrafter:
    """Exit after layer `layer` of the target."""

    layers: tuple[int, ...] = ()

    def __init__(self, target: Model, layer: int, shape: Shape, adapter: ExitAdapter | None = None) -> None:
        """adapter: what the states pass before they meet the target's norm and head."""
        if "early_exit" not in target.can:
            raise InputError(f"{target.name} cannot stop after a layer: use another drafter.")
        if not 1 <= layer < target.num_layers:
            raise InputError(f"layer must lie between 1 and {target.num_layers - 1} for this target, not {layer}.")
        self.name, self.gamma, self.draws, self.branches = "early-exit", shape.gamma, shape.draws, shape.branches
        self._target, self._layer, self._shape = target, layer, shape
        self._adapter = None if adapter is None else adapter.to(target.device)
        if adapter is not None:
            if not isinstance(target, SharesWeights):
                raise InputError(f"{target.name} does not share its norm and head, which an adapter needs.")
            shared = target.shared()
            if adapter.config.width != shared.width:
                raise InputError(f"the adapter is {adapter.config.width} wide and the target {shared.width}.")
            self._norm, self._head = shared.final_norm, shared.head()

    def start(self, target: Any) -> DraftSession:
        """Shares the request's session in the target."""
        return _SharedSession(target)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One call of the first layers a level, for all requests together."""
        sessions = [ask.session.shared for ask in asks if isinstance(ask.session, _SharedSession)]
        segments = [session.plan_exit(ask.context) for session, ask in zip(sessions, asks, strict=True)]
        return grow_all(asks, self._shape, sessions, segments, self._call)

    @torch.no_grad()
    def _call(self, segments: Sequence[Segment]) -> list[Tensor]:
        if self._adapter is None:
            return [output.logits for output in self._target.forward(segments, exit_layer=self._layer)]
        # The target's own head would read the states without the adapter, so it is asked for none.
        asked = [replace(segment, rows=0) for segment in segments]
        outputs = self._target.forward(asked, (self._layer,), self._layer)
        rows = [segment.rows for segment in segments]
        states = [
            output.hidden[len(output.hidden) - count :, 0]
            for output, count in zip(outputs, rows, strict=True)
            if output.hidden is not None
        ]
        logits = self._head(self._norm(self._adapter(torch.cat(states).float())))
        return list(torch.split(logits, rows))


class _SharedSession:
    def __init__(self, target: Session) -> None:
        self.shared = target

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing of its own to keep."""
