"""Rounds of writing and learning until the budget is spent; the best checkpoint on held-out texts is kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from draftproof.drafters.eagle_write import Origin
from draftproof.memory import give_back
from draftproof.stats import Stats
from draftproof.training import checkpoint
from draftproof.training.course import Course, Lesson
from draftproof.training.optimize import Optimizer
from draftproof.training.samples import Sample, batches, collate
from draftproof.types import InputError

_SMOOTH = 0.95


@dataclass(frozen=True)
class Schedule:
    """How long, how much at once.

    seconds, rounds  the budget: whichever ends first; one is needed
    round_tokens     new tokens of answers a round
    reuse            how often a token is learned from, on average
    batch_tokens     padded tokens a batch
    evaluations      on held-out texts, spread evenly; gamma: draft tokens a step there
    pool_bytes       states kept in memory for reuse; the oldest go first
    """

    seconds: float | None = None
    rounds: int | None = None
    round_tokens: int = 20_000
    reuse: float = 2.0
    batch_tokens: int = 4096
    evaluations: int = 12
    gamma: int = 5
    rate: float = 5e-3
    seed: int = 0
    pool_bytes: int = 3 * 10**9
    threads: int | None = None


class Source(Protocol):
    """Where samples come from. begun: how far it has come, for a checkpoint."""

    begun: int

    def write(self, tokens: int) -> list[Sample]:
        """The next samples, of so many new tokens at least."""


@dataclass
class Standing:
    """How a run stands: counts, smoothed loss and agreement by step, held-out results (share, length, acceptance)."""

    seconds: float = 0.0
    rounds: int = 0
    batches: int = 0
    skipped: int = 0
    written: int = 0
    learned: int = 0
    loss: float = float("nan")
    agreement: list[float] = field(default_factory=list)
    best: float = 0.0
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    def see(self, loss: float, lesson: Lesson) -> None:
        """Fold in a batch."""
        self.batches += 1
        if self.loss != self.loss or len(lesson.agreement) != len(self.agreement):
            self.loss, self.agreement = loss, list(lesson.agreement)
        self.loss = _SMOOTH * self.loss + (1 - _SMOOTH) * loss
        pairs = zip(self.agreement, lesson.agreement, strict=True)
        self.agreement = [_SMOOTH * old + (1 - _SMOOTH) * new for old, new in pairs]


OnProgress = Callable[[float, Standing], None]


class Training:
    """One run."""

    def __init__(
        self, course: Course, source: Source, held: Sequence[Sample], schedule: Schedule, out: Path, origin: Origin
    ) -> None:
        """out: the folder of the checkpoint and, once something was examined, of the best head."""
        if schedule.seconds is None and schedule.rounds is None:
            raise InputError("training needs an end: give a budget of time or of rounds.")
        self.course, self.source, self.held, self.schedule = course, source, held, schedule
        self.out, self.origin, self.form = out, origin, "draftproof"
        self.standing = Standing()
        self.optimizer = Optimizer(course.module, schedule.rate)
        self._rng = random.Random(schedule.seed)
        self._pool: list[Sample] = []
        self._began = time.monotonic()
        self._before = self._within = 0.0

    def run(self, on_progress: OnProgress, first: Sequence[Sample] = ()) -> Standing:
        """Until the budget is spent. first: samples that are there already, for the first round.

        InputError naming the sample whose loss is no finite number.
        """
        self._began, self._before = time.monotonic(), self.standing.seconds
        while self.share() < 1:
            new = list(first) or self.source.write(self.schedule.round_tokens)
            first = ()
            self.standing.written += sum(len(one.tokens) - one.answer for one in new)
            on_progress(self.share(), self.standing)
            with self._threads():
                self._learn_round(new, on_progress)
                self.standing.rounds += 1
                self._within = 0.0
                due = len(self.standing.evaluations) + 1
                if self.share() * self.schedule.evaluations >= due or self.share() >= 1:
                    self.examine()
            self._save()
            give_back()
            on_progress(self.share(), self.standing)
        return self.standing

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """More threads for learning than for writing, where the model has threads of its own."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.schedule.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _learn_round(self, new: list[Sample], on_progress: OnProgress) -> None:
        groups = list(batches(self._round(new), self.schedule.batch_tokens, self._rng))
        for number, group in enumerate(groups):
            self._within = number / len(groups)
            self._learn(group)
            on_progress(self.share(), self.standing)
            if self.share() >= 1:
                return

    def share(self) -> float:
        """How much of the budget is spent, 0 ... 1."""
        s, spent = self.schedule, self._before + time.monotonic() - self._began
        self.standing.seconds = spent
        rounds = self.standing.rounds + self._within
        shares = [spent / s.seconds if s.seconds else 0.0, rounds / s.rounds if s.rounds else 0.0]
        return min(1.0, max(shares))

    def examine(self) -> Stats:
        """Simulated drafting on the held-out texts; the best so far is exported."""
        module = self.course.module.eval()
        stats = self.course.examine(self.held, self.schedule.gamma, self.schedule.batch_tokens)
        module.train()
        length = stats.mean_acceptance_length
        acceptance = stats.conditional_acceptance()
        entry = {"share": self.share(), "mean_acceptance_length": length, "acceptance": list(acceptance.values())}
        self.standing.evaluations.append(entry)
        if length > self.standing.best:
            self.standing.best = length
            self.course.export(self.out, self.origin, self.form)
        return stats

    def resume(self) -> None:
        """Go on from the folder's checkpoint. InputError where there is none that fits."""
        state = checkpoint.load(self.out)
        try:
            self.course.module.load_state_dict(state["module"])
            self.optimizer.load(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise InputError(f"the checkpoint in {self.out} is of another run: train into another folder.") from error
        self.standing = Standing(**state["standing"])
        self.source.begun = state["begun"]
        self._rng.setstate(_tuples(state["rng"]))

    def _save(self) -> None:
        ids = getattr(self.course.module, "ids", None)
        state = {
            "module": self.course.module.state_dict(),
            "optimizer": self.optimizer.state(),
            "standing": vars(self.standing),
            "begun": self.source.begun,
            "rng": self._rng.getstate(),
            "ids": ids,
        }
        checkpoint.save(self.out, state)

    def _round(self, new: list[Sample]) -> list[Sample]:
        """New samples, and as many old ones as reuse asks for."""
        wanted, old = (self.schedule.reuse - 1) * len(new), self._pool
        again = self._rng.sample(old, min(len(old), round(wanted))) if wanted > 0 else []
        if self.schedule.reuse > 1:
            self._pool = old + new
            while sum(sample.bytes for sample in self._pool) > self.schedule.pool_bytes:
                self._pool = self._pool[max(1, len(self._pool) // 20) :]
        return new + again

    def _learn(self, group: list[Sample]) -> None:
        batch = collate(group, next(self.course.module.parameters()).device)
        if not batch.mask.any():
            self.standing.skipped += 1
            return
        lesson = self.course.learn(batch)
        total = lesson.total()
        value = float(total.detach())
        if value != value or value in (float("inf"), float("-inf")):
            culprit = lesson.culprit()
            named = ", ".join(batch.names) if culprit is None else batch.names[culprit]
            raise InputError(f"the loss is no finite number at the sample {named}: leave it out, or lower --rate.")
        self.optimizer.step(total, self.share())
        self.standing.learned += int(batch.mask.sum())
        self.standing.see(value, lesson)


def _tuples(value: Any) -> Any:
    """torch.load gives lists and tuples back as they were saved; a generator's state must be tuples."""
    return tuple(_tuples(one) for one in value) if isinstance(value, (list, tuple)) else value
