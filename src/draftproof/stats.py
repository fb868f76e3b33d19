"""A fold of Steps. Counts first; every metric is defined here once and nowhere else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

from draftproof.types import Step, Timing


@dataclass
class Stats:
    """Counts of one request, or of many pooled. The call that reads the prompt is counted apart (`prefills`)."""

    prefills: int = 0
    steps: int = 0
    drafted_steps: int = 0
    truncated_steps: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    expected_accepted: float = 0.0
    overlap: float = 0.0
    overlap_positions: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    by_drafter: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Stats:
        """The fold of these steps."""
        stats = cls()
        for step in steps:
            stats.add(step)
        return stats

    def add(self, step: Step) -> None:
        """Count one step."""
        self.tokens += len(step.tokens)
        for stage, seconds in asdict(step.timing).items():
            self.seconds[stage] += seconds
        if step.prefill:
            self.prefills += 1
            return
        accepted = step.num_accepted_tokens
        self.steps += 1
        self.truncated_steps += len(step.tokens) < accepted + 1
        self.draft_tokens += step.num_draft_tokens
        self.accepted_tokens += accepted
        self.expected_accepted += step.expected_accepted
        self.overlap += step.overlap
        self.overlap_positions += step.overlap_positions
        self.histogram[accepted] += 1
        if step.num_draft_tokens:
            self._add_drafted(step)

    def _add_drafted(self, step: Step) -> None:
        accepted = step.num_accepted_tokens
        self.drafted_steps += 1
        for depth in range(1, min(accepted + 1, step.draft_depth) + 1):
            self.drafted_at[depth] += 1
            self.accepted_at[depth] += depth <= accepted
        counts = self.by_drafter.setdefault(step.drafter, Counter())
        counts.update(steps=1, draft_tokens=step.num_draft_tokens, accepted_tokens=accepted)

    @property
    def target_calls(self) -> int:
        """Calls of the target, that of the prompt included."""
        return self.prefills + self.steps

    @property
    def mean_acceptance_length(self) -> float:
        """Mean of A + 1 over the steps behind the prompt: tokens per target call (block efficiency)."""
        return ratio(self.accepted_tokens + self.steps, self.steps)

    @property
    def expected_acceptance_length(self) -> float:
        """The same with every A replaced by its mean over the rule's randomness: no sampling noise."""
        return ratio(self.expected_accepted + self.steps, self.steps)

    @property
    def mean_accepted_length(self) -> float:
        """Mean of A over the steps with a draft."""
        return ratio(self.accepted_tokens, self.drafted_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / proposed draft tokens."""
        return ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def alpha(self) -> float:
        """Acceptance rate: mean of sum min(p, q) over the drafted positions reached (Leviathan et al., def. 3.1)."""
        return ratio(self.overlap, self.overlap_positions)

    @property
    def coverage(self) -> float:
        """Steps with a draft / steps."""
        return ratio(self.drafted_steps, self.steps)

    def conditional_acceptance(self) -> dict[int, float]:
        """Depth i -> accepted at i / steps in which i was drafted and 1 ... i - 1 were accepted."""
        return {depth: ratio(self.accepted_at[depth], count) for depth, count in sorted(self.drafted_at.items())}

    @classmethod
    def pooled(cls, many: Iterable[Stats]) -> Stats:
        """Counts of all together; rates follow from the pooled counts."""
        pool = cls()
        for stats in many:
            for name, counts in stats.by_drafter.items():
                pool.by_drafter.setdefault(name, Counter()).update(counts)
            for item in fields(cls):
                if item.name != "by_drafter":
                    setattr(pool, item.name, getattr(pool, item.name) + getattr(stats, item.name))
        return pool

    def report(self) -> dict[str, object]:
        """What `generate --json` prints as `speculation`."""
        return {
            "num_spec_steps": self.steps,
            "num_drafted_steps": self.drafted_steps,
            "num_truncated_steps": self.truncated_steps,
            "num_draft_tokens": self.draft_tokens,
            "num_accepted_draft_tokens": self.accepted_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "expected_acceptance_length": self.expected_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "alpha": self.alpha,
            "coverage": self.coverage,
            "acceptance_histogram": {str(length): self.histogram[length] for length in sorted(self.histogram)},
            "conditional_acceptance": {str(i): rate for i, rate in self.conditional_acceptance().items()},
            "drafters": {name: dict(counts) for name, counts in self.by_drafter.items()},
        }

    def timing(self) -> dict[str, float]:
        """Seconds by stage, and their sum."""
        stages = {item.name: self.seconds[item.name] for item in fields(Timing)}
        return {**stages, "total": total(Timing(**stages))}


class Clock:
    """Seconds by stage of one target call, shared equally among its requests."""

    def __init__(self, requests: int) -> None:
        self._requests, self._last = requests, time.perf_counter()
        self._seconds: Counter[str] = Counter()

    def mark(self, stage: str) -> None:
        """What has passed since the last mark belongs to this field of `Timing`."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._last  # type: ignore[assignment]
        self._last = now

    def timing(self) -> Timing:
        """One request's share."""
        return Timing(**{stage: seconds / self._requests for stage, seconds in self._seconds.items()})


def total(timing: Timing) -> float:
    """Seconds of all stages."""
    return float(sum(asdict(timing).values()))


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 where nothing was counted."""
    return part / whole if whole else 0.0
