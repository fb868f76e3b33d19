"""What the benchmark compares: anything that answers a prompt, ours or another project's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftproof.types import Step


@dataclass(frozen=True)
class Answer:
    """One greedy (or sampled) answer and its time.

    tokens         new ids
    seconds        wall time of the whole call, prompt reading included
    first_seconds  until the first token was there (None where the method cannot say)
    steps          the engine's own, for ours alone
    """

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float | None = None
    steps: tuple[Step, ...] = ()


class Method(Protocol):
    """One way to continue a prompt, its weights loaded."""

    name: str

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """From an empty cache; end tokens end it."""

    def close(self) -> None:
        """Free what it holds."""
