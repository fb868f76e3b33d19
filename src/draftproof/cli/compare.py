"""Plain decoding against speculation on the same prompt: runs, the table, and what the numbers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from rich.table import Table

from draftproof.cli import show
from draftproof.cli.setup import Setup
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.run import Piece, Reply, Result, steps
from draftproof.session import shared_length
from draftproof.stats import Stats, ratio, total
from draftproof.types import InputError, SamplingParams, Step

OnStep = Callable[[Step, Sequence[Piece]], None]
_WARM_UP_TOKENS = 6
# More threads must pay for what they lose as soon as another program wants a core.
_WORTH_THREADS = 0.8


@dataclass(frozen=True)
class Run:
    """A finished reply and its steps."""

    result: Result
    steps: tuple[Step, ...]


class Runner:
    """Greedy runs of one target: with the null drafter, or with the drafter asked for."""

    def __init__(self, setup: Setup) -> None:
        engine = setup.engine
        self._plain = Engine(engine.target, NullDrafter(), engine.rule, engine.text)
        self._speculative, self._options = engine, setup.options

    def warm_up(self, prompt: Sequence[int]) -> None:
        """First calls are slow, so they are not counted. On a CPU they also choose PyTorch's threads, one or all.

        Stock kernels wait for all threads at every barrier: a small model on a busy machine is quicker with one.
        """
        counts, target = {torch.get_num_threads()}, self._speculative.target
        own = getattr(target, "threads", None) is not None
        if target.device.type == "cpu" and self._options.threads is None and not own:
            counts.add(1)
        seconds: dict[int, float] = {}
        for count in sorted(counts):
            torch.set_num_threads(count)
            measured = self.run(prompt, _WARM_UP_TOKENS, plain=True).steps
            seconds[count] = median(total(step.timing) for step in measured)
        most = max(counts)
        torch.set_num_threads(most if seconds[most] < _WORTH_THREADS * seconds[min(counts)] else min(counts))
        self.run(prompt, _WARM_UP_TOKENS, plain=False)

    def run(self, prompt: Sequence[int], max_tokens: int, plain: bool, on_step: OnStep | None = None) -> Run:
        """Only the time inside the engine counts, so showing the text costs neither side anything."""
        options = self._options
        params = SamplingParams(max_tokens=max_tokens, speculative=options.speculative, gamma=options.gamma, seed=0)
        engine = self._plain if plain else self._speculative
        reply, taken = Reply(engine, prompt, params), []
        try:
            for step, pieces in steps(engine, reply):
                taken.append(step)
                if on_step is not None:
                    on_step(step, pieces)
        finally:
            reply.cancel()
        if reply.error is not None:
            raise InputError(reply.error)
        return Run(reply.result(), tuple(taken))


@dataclass(frozen=True)
class Comparison:
    """One prompt, decoded both ways."""

    id: str
    category: str
    plain: Run
    speculative: Run

    @property
    def speedup(self) -> float:
        """Tokens/s with speculation / tokens/s without."""
        return ratio(self.speculative.result.tokens_per_second, self.plain.result.tokens_per_second)

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, None where all are the same."""
        a, b = self.plain.result.token_ids, self.speculative.result.token_ids
        same = shared_length(a, b)
        return None if same == len(a) == len(b) else same

    def line(self) -> str:
        """Both speeds in one line."""
        plain, speculative = self.plain.result.tokens_per_second, self.speculative.result.tokens_per_second
        return f"plain {plain:.1f} tokens/s, speculative {speculative:.1f} tokens/s: {self.speedup:.2f} times as fast"


@dataclass(frozen=True)
class Cost:
    """What a drafted step cost and brought, measured in these very runs; times in units of a plain step.

    verified  tokens a drafted step put to the target, on average
    target    time of its target call / time of a plain one (medians)
    step      time of the whole step / time of a whole plain one (medians)
    brought   tokens it committed, on average; it pays when this is more than `step`
    drafted   steps with a draft, of `steps` in all
    """

    verified: float
    target: float
    step: float
    brought: float
    drafted: int
    steps: int

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Cost | None:
        """None where nothing was drafted."""
        plain = [s for c in comparisons for s in c.plain.steps if not s.prefill and s.tokens]
        drafted = [s for c in comparisons for s in c.speculative.steps if s.num_draft_tokens]
        if not plain or not drafted:
            return None
        stats = Stats.of(drafted)
        return cls(
            verified=1 + ratio(stats.draft_tokens, stats.steps),
            target=ratio(median(s.timing.target for s in drafted), median(s.timing.target for s in plain)),
            step=ratio(median(total(s.timing) for s in drafted), median(total(s.timing) for s in plain)),
            brought=ratio(stats.tokens, stats.steps),
            drafted=len(drafted),
            steps=sum(c.speculative.result.stats.steps for c in comparisons),
        )


def overall(comparisons: Sequence[Comparison]) -> float:
    """Tokens/s of all prompts together, with speculation / without."""
    plain, speculative = ([getattr(c, name).result for c in comparisons] for name in ("plain", "speculative"))
    speeds = [ratio(sum(len(r.token_ids) for r in side), sum(r.seconds for r in side)) for side in (speculative, plain)]
    return ratio(speeds[0], speeds[1])


def as_table(comparisons: Sequence[Comparison]) -> Table:
    """A row a prompt; fits in 80 columns."""
    columns = ("prompt", ">tokens", ">target\ncalls", ">mean acceptance\nlength", ">plain\ntokens/s")
    made = show.table(*columns, ">specul.\ntokens/s", ">speed-\nup", "same\ntokens")
    for c in comparisons:
        result, stats = c.speculative.result, c.speculative.result.stats
        made.add_row(
            c.category,
            str(len(result.token_ids)),
            f"{c.plain.result.stats.target_calls} → {stats.target_calls}",
            f"{stats.mean_acceptance_length:.2f}",
            f"{c.plain.result.tokens_per_second:.1f}",
            f"{result.tokens_per_second:.1f}",
            f"{c.speedup:.2f}",
            "yes" if c.first_difference is None else f"no (at {c.first_difference})",
        )
    return made


def summary(comparisons: Sequence[Comparison]) -> list[str]:
    """What the numbers say, also when it is no good news."""
    factor, cost = overall(comparisons), Cost.of(comparisons)
    if cost is None:
        return ["Nothing was drafted, so both columns are plain decoding."]
    faster = factor > 1
    head = f"Speculation was {'' if faster else 'not faster here: '}{factor:.2f} times as fast as plain decoding"
    sentences = [
        f"{head}{' here' if faster else ''}. {cost.drafted} of {cost.steps} steps had a draft."
        f" Such a step verified {cost.verified:.1f} tokens, took {cost.step:.2f} times as long as a plain step"
        f" (its target call {cost.target:.2f} times) and brought {cost.brought:.2f} tokens; it pays where it brings"
        " more tokens than it costs plain steps."
    ]
    slower = [c.category for c in comparisons if c.speedup <= 1]
    if faster and slower:
        sentences.append(f"It was not faster on: {', '.join(slower)}.")
    if any(c.first_difference is not None for c in comparisons):
        sentences.append(
            "Different tokens are a near tie in low precision or a defect: draftproof audit paths tells which."
        )
    return [*sentences, "Each is a single run, so a few per cent are noise."]


def report(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What `demo --json` prints."""
    cost = Cost.of(comparisons)
    return {
        "prompts": [
            {
                "id": c.id,
                "category": c.category,
                "plain": c.plain.result.report(),
                "speculative": c.speculative.result.report(),
                "speedup": c.speedup,
                "same_tokens": c.first_difference is None,
                "first_difference": c.first_difference,
            }
            for c in comparisons
        ],
        "speedup": overall(comparisons),
        "same_tokens": all(c.first_difference is None for c in comparisons),
        "drafted_step": None if cost is None else asdict(cost),
        "summary": " ".join(summary(comparisons)),
    }
