"""What is common to all that is trained: lessons, speed of arithmetic, and drafts played through a text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftproof.drafters.eagle_write import Origin
from draftproof.stats import Stats
from draftproof.training.samples import Batch, Sample
from draftproof.types import Step


@dataclass(eq=False)
class Lesson:
    """Losses of a batch. reward: a number to be made large, which is taken off them."""

    weights: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    texts: list[Tensor] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    reward: Tensor | None = None

    def add(self, weight: float, losses: Tensor, texts: Tensor, agreement: float) -> None:
        """A step's losses [M] with the number of the text that each belongs to."""
        if len(losses):
            self.weights.append(weight)
            self.losses.append(losses)
            self.texts.append(texts)
            self.agreement.append(agreement)

    def total(self) -> Tensor:
        """The weighted mean over the steps, less the reward."""
        parts = [weight * losses.mean() for weight, losses in zip(self.weights, self.losses, strict=True)]
        total = torch.stack(parts).sum() / sum(self.weights)
        return total if self.reward is None else total - self.reward

    def culprit(self) -> int | None:
        """The first text with a loss that is no finite number."""
        for losses, texts in zip(self.losses, self.texts, strict=True):
            bad = ~torch.isfinite(losses)
            if bad.any():
                return int(texts[bad][0])
        return None


class Course(Protocol):
    """Something to train with its teacher."""

    @property
    def module(self) -> nn.Module:
        """What learns."""

    def learn(self, batch: Batch) -> Lesson:
        """A differentiable lesson from a batch."""

    def examine(self, samples: Sequence[Sample], gamma: int, tokens: int) -> Stats:
        """Simulated drafting on held-out texts."""

    def export(self, folder: Path, origin: Origin, form: str) -> None:
        """A folder that a drafter loads."""


@dataclass(frozen=True)
class Speed:
    """Whether products are computed in bfloat16 while learning; weights stay float32."""

    device: str
    half: bool

    def context(self) -> AbstractContextManager[Any]:
        """Around a lesson."""
        return torch.autocast(self.device, torch.bfloat16) if self.half else nullcontext()

    @classmethod
    def measured(cls, device: torch.device) -> Speed:
        """bfloat16 on a GPU that has it, and on a CPU whose products are faster so, by a measurement of a moment."""
        if device.type == "cuda":
            return cls("cuda", torch.cuda.is_bf16_supported())
        if device.type != "cpu":
            return cls(device.type, False)
        return cls("cpu", _seconds(torch.bfloat16) * 1.3 < _seconds(torch.float32))


def _seconds(dtype: torch.dtype) -> float:
    x, weight = torch.ones(512, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        taken.append(time.perf_counter() - began)
    return min(taken)


def played(sample: Sample, hits: Tensor) -> Stats:
    """The steps of greedy speculation that writes this very text; hits [gamma, T]: step k is right at entry j.

    A draft behind entry j holds the tokens j + 2, j + 3, ...: its k-th is right if hits[k, j + k]. Each step goes on
    behind what it accepted and one token more, as in `engine.Engine.step`.
    """
    stats, right = Stats(), hits.tolist()
    entry, last = sample.first, len(sample.tokens) - 2
    while entry < last:
        depth = min(len(right), last - entry)
        accepted = next((k for k in range(depth) if not right[k][entry + k]), depth)
        kept = min(accepted + 1, last - entry)
        stats.add(
            Step(
                tokens=tuple(sample.tokens[entry + 2 : entry + 2 + kept].tolist()),
                origins=(),
                num_draft_tokens=depth,
                num_accepted_tokens=accepted,
                draft_depth=depth,
                drafter="simulated",
            )
        )
        entry += accepted + 1
    return stats
