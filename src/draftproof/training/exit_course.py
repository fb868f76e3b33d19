"""Lessons for an early-exit adapter: its rows are to approach those of the whole target, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Shared
from draftproof.drafters.eagle_write import Origin
from draftproof.drafters.exit_adapter import ExitAdapter, write_adapter
from draftproof.stats import Stats
from draftproof.training.begin import final_norm_weight
from draftproof.training.course import Lesson, Speed, played
from draftproof.training.losses import distance
from draftproof.training.samples import Batch, Sample, batches, collate


class ExitCourse:
    """The samples' states are those of the adapter's layer and of the last one."""

    def __init__(self, adapter: ExitAdapter, shared: Shared, speed: Speed) -> None:
        """The whole output head is read, since a draft may be any token."""
        self.module, self.speed = adapter, speed
        device = adapter.norm.weight.device
        self._shared = shared
        self._weight = shared.head_rows(torch.arange(adapter.config.vocab)).to(device)
        self._norm = final_norm_weight(shared).to(device)

    def learn(self, batch: Batch) -> Lesson:
        """The distance of the adapted rows from the target's, for every token whose successor the target wrote."""
        lesson = Lesson()
        with self.speed.context():
            logits, p = self._logits(batch), self._target(batch)
            agreement = float((logits.argmax(-1) == p.argmax(-1)).float().mean())
            lesson.add(1.0, distance(logits, p), batch.mask.nonzero()[:, 0], agreement)
        return lesson

    def _logits(self, batch: Batch) -> Tensor:
        """[M, vocab] behind the token that each entry reads."""
        moved = self.module(_after(batch, 0).float())
        normed = torch.nn.functional.rms_norm(moved, self._norm.shape, self._norm, self.module.config.eps)
        return torch.nn.functional.linear(normed, self._weight).float()

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        normed = self._shared.final_norm(_after(batch, 1).float()).to(self._weight.device)
        return torch.softmax(torch.nn.functional.linear(normed, self._weight).float(), -1)

    @torch.no_grad()
    def examine(self, samples: Sequence[Sample], gamma: int, tokens: int) -> Stats:
        """Greedy drafts played through texts that the target wrote greedily: each token drafts from its own state."""
        found = Stats()
        for group in batches(samples, tokens):
            batch = collate(group, self._weight.device)
            if not batch.mask.any():
                continue
            with self.speed.context():
                drafted = self._logits(batch).argmax(-1)
            text, entry = batch.mask.nonzero().unbind(1)
            hits = torch.zeros(batch.mask.shape, dtype=torch.bool)
            hits[batch.mask.cpu()] = (drafted == batch.tokens[text, entry + 2]).cpu()
            rows = [played(sample, hits[i].expand(gamma, -1)) for i, sample in enumerate(group)]
            found = Stats.pooled([found, *rows])
        return found

    def export(self, folder: Path, origin: Origin, form: str) -> None:
        """The adapter as a folder; it has one format."""
        training: dict[str, Any] = dict(origin.training)
        write_adapter(self.module, folder, training)


def _after(batch: Batch, which: int) -> Tensor:
    """[M, H]: states of the token behind each masked entry."""
    text, entry = batch.mask.nonzero().unbind(1)
    return batch.states[text, entry + 1, which]
