"""Texts to learn from: tokens, the target's states, and which part the target wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sample:
    """One text of n tokens.

    tokens  [n] int32
    answer  where what is learned begins: the first token of the reply
    states  [n - 1, L, H] of every token but the last, in half precision
    """

    name: str
    tokens: Tensor
    answer: int
    states: Tensor

    @property
    def trained(self) -> int:
        """Entries with something to learn: entry j reads token j + 1 and predicts token j + 2 of the reply."""
        return max(0, len(self.tokens) - 2 - self.first)

    @property
    def first(self) -> int:
        """The first such entry: a draft begins behind a reply's first token."""
        return max(self.answer - 1, 0)

    @property
    def bytes(self) -> int:
        """What it holds in memory."""
        return self.states.numel() * self.states.element_size() + self.tokens.numel() * self.tokens.element_size()


@dataclass(frozen=True, eq=False)
class Batch:
    """B texts padded at their ends. mask [B, T] bool: entries with something to learn."""

    names: tuple[str, ...]
    tokens: Tensor
    states: Tensor
    mask: Tensor


def collate(samples: Sequence[Sample], device: torch.device | str = "cpu") -> Batch:
    """tokens [B, T + 1] int64, states [B, T, L, H], mask [B, T]; T entries in the longest."""
    longest = max(len(sample.tokens) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    states = samples[0].states.new_zeros(len(samples), longest - 1, *samples[0].states.shape[1:])
    mask = torch.zeros(len(samples), longest - 1, dtype=torch.bool)
    for i, sample in enumerate(samples):
        size = len(sample.tokens)
        tokens[i, :size], states[i, : size - 1] = sample.tokens, sample.states
        mask[i, sample.first : size - 2] = True
    names = tuple(sample.name for sample in samples)
    return Batch(names, tokens.to(device), states.to(device), mask.to(device))


def batches(samples: Sequence[Sample], tokens: int, rng: random.Random | None = None) -> Iterator[list[Sample]]:
    """All samples once, those of like length together, at most so many padded tokens a batch; in a random order."""
    order = sorted(samples, key=lambda sample: len(sample.tokens) + (32 * rng.random() if rng is not None else 0))
    made: list[list[Sample]] = []
    longest = 0
    for sample in order:
        longest = max(longest, len(sample.tokens))
        if not made or longest * (len(made[-1]) + 1) > tokens:
            made.append([])
            longest = len(sample.tokens)
        made[-1].append(sample)
    if rng is not None:
        rng.shuffle(made)
    yield from made
