"""Proposes nothing: plain decoding in the same loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftproof.contracts import Ask, DraftSession
from draftproof.types import Proposal, chain


class NullDrafter:
    """The baseline of every comparison."""

    name = "null"
    layers: tuple[int, ...] = ()
    draws = False
    branches = False
    gamma = 0

    def start(self, target: Any) -> DraftSession:
        """No state."""
        return Stateless()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Empty proposals."""
        return [chain([]) for _ in asks]


class Stateless:
    """A draft session that remembers nothing."""

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing to keep."""
