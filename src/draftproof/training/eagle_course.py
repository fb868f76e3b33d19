"""Lessons for a head: several steps deep over the target's states, and drafts played through on held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftproof.drafters.eagle_head import EagleHead
from draftproof.drafters.eagle_write import Origin, write_head
from draftproof.stats import Stats
from draftproof.training.course import Lesson, Speed, played
from draftproof.training.losses import Loss, accepted_length, chain_chances, distance
from draftproof.training.samples import Batch, Sample, batches, collate
from draftproof.training.teacher import Teacher
from draftproof.training.unroll import Runs, unroll

_FADE = 0.8  # the weight of a step beside that of the step before it, as in EAGLE-3's code


class EagleCourse:
    """B texts, T entries, M of them with something to learn, V the draft vocabulary."""

    def __init__(self, head: EagleHead, teacher: Teacher, steps: int, loss: Loss, speed: Speed) -> None:
        """steps: how deep a lesson goes. The samples' states are those of the head's layers, then of the last one."""
        self.module, self.teacher, self.steps, self.loss, self.speed = head, teacher, steps, loss, speed
        self._drafts = torch.full((head.config.vocab,), -1, dtype=torch.int64)
        self._drafts[teacher.ids.cpu()] = torch.arange(len(teacher.ids))

    def learn(self, batch: Batch) -> Lesson:
        """Losses of every step by position, and how often the likeliest tokens of both rows agree."""
        with self.speed.context():
            runs, made = Runs.of(batch.mask), self._unrolled(batch, self.steps)
            target = self.teacher.rows(_next(batch.states[:, :, -1])[batch.mask])
            lesson = Lesson()
            rows: list[Tensor] = []
            for step, own in enumerate(made):
                chosen = runs.offset >= step
                logits = self.module.logits(own[chosen]).float()
                p = target[chosen] if step else target
                lesson.add(_FADE**step, distance(logits, p), runs.text[chosen], _agreement(logits, p))
                rows.append(logits)
            if self.loss == "length":
                lesson.reward = self._length(batch, runs, rows, target)
        return lesson

    def _unrolled(self, batch: Batch, steps: int) -> list[Tensor]:
        embedded = self.teacher.embed(batch.tokens[:, 1:])
        states = batch.states[:, :, : len(self.module.config.layers)]
        return unroll(self.module, embedded, states, batch.mask, steps)

    def _length(self, batch: Batch, runs: Runs, logits: Sequence[Tensor], target: Tensor) -> Tensor:
        """Mean expected accepted length of the chains that begin at every entry from which the text is long enough."""
        last = self.steps - 1
        sizes = torch.bincount(runs.text, minlength=len(batch.mask))
        begin = (runs.offset + last < sizes[runs.text]).nonzero()[:, 0]
        if not len(begin):
            return target.new_zeros(())
        after = self._drafts.to(begin.device)[batch.tokens[runs.text, runs.entry + 2]]
        tokens = torch.stack([after[begin + i] for i in range(last + 1)], 1)
        q = []
        for i, one in enumerate(logits):
            place = (runs.offset >= i).cumsum(0) - 1  # rows of step i lack the offsets below i
            q.append(torch.softmax(one[place[begin + i]], -1))
        chances = chain_chances(q, tokens, 0.0)
        return accepted_length(chain_chances([target[begin + i] for i in range(last + 1)], tokens, 1.0), chances).mean()

    @torch.no_grad()
    def examine(self, samples: Sequence[Sample], gamma: int, tokens: int) -> Stats:
        """Greedy drafts of `gamma` tokens played through texts that the target wrote greedily."""
        found = Stats()
        for group in batches(samples, tokens):
            batch = collate(group, self.module.device)
            if not batch.mask.any():
                continue
            runs = Runs.of(batch.mask)
            after = batch.tokens[runs.text, runs.entry + 2]
            hits = torch.zeros(gamma, *batch.mask.shape, dtype=torch.bool)
            with self.speed.context():
                for step, own in enumerate(self._unrolled(batch, gamma)):
                    drafted = self.teacher.ids[self.module.logits(own).argmax(-1)]
                    hits[step][batch.mask.cpu()] = (drafted == after).cpu()
            found = Stats.pooled([found, *(played(sample, hits[:, i]) for i, sample in enumerate(group))])
        return found

    def export(self, folder: Path, origin: Origin, form: str) -> None:
        """The head as a folder."""
        write_head(self.module, folder, origin, form)


def _next(x: Tensor) -> Tensor:
    """[B, T, ...]: what stands one further."""
    moved = torch.zeros_like(x)
    moved[:, :-1] = x[:, 1:]
    return moved


def _agreement(logits: Tensor, p: Tensor) -> float:
    return float((logits.argmax(-1) == p.argmax(-1)).float().mean()) if len(p) else 0.0
