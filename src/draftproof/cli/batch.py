"""A file of prompts as one batch: one JSON object a reply, in the order of the file, then a summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.batch import Job, run_jobs
from draftproof.cli import show
from draftproof.cli.setup import Setup, Watch
from draftproof.prompts import Prompt
from draftproof.run import Result
from draftproof.stats import Stats, ratio
from draftproof.types import InputError, SamplingParams, Step


@dataclass(frozen=True)
class Work:
    """Prompts, the jobs made of them, and how they are to run."""

    prompts: Sequence[Prompt]
    jobs: Sequence[Job]
    params: SamplingParams
    max_batch: int


def run(setup: Setup, work: Work, summary: bool) -> None:
    """Print every reply as soon as it and those before it have ended; the summary is JSON if asked for, else a line."""
    show.notice(setup.status(work.params.max_tokens))
    replies: list[tuple[str, Result]] = []
    began = time.perf_counter()
    with _Progress(sum(job.replies for job in work.jobs), Watch(setup.forewarning(work.params))) as progress:
        results = run_jobs(setup.engine, work.jobs, work.params, work.max_batch, progress.see)
        for prompt, answered in zip(work.prompts, results, strict=True):
            progress.bar.hide()
            for turn, result in enumerate(answered):
                replies.append((prompt.category, result))
                labels = {"id": prompt.id, "category": prompt.category, "turn": turn}
                show.print_json({**labels, **result.report(setup.text.label)})
    seconds = time.perf_counter() - began
    stats = Stats.pooled(result.stats for _, result in replies)
    progress.watch.end(stats, setup.drafting_off(work.params.max_tokens))
    show.notice(show.statistics(stats, ratio(stats.tokens, seconds)))
    if summary:
        report = _summary(replies, stats, seconds)
        described = setup.described(work.params.max_tokens)
        show.print_json({"prompts": len(work.jobs), **report, **described, "warnings": progress.watch.warnings})
    if failed := [result.error for _, result in replies if result.error is not None]:
        raise InputError(f"{len(failed)} of {len(replies)} replies could not be finished: {failed[0]}")


class _Progress:
    """Counts steps for the bar and for the watch on useless drafts."""

    def __init__(self, replies: int, watch: Watch) -> None:
        self.bar, self.watch = show.Bar("generating", replies), watch
        self._replies, self._ended, self._tokens = replies, 0, 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.hide()

    def see(self, step: Step) -> None:
        """Another step of some request."""
        self.watch.see(step)
        self._tokens += len(step.tokens)
        self._ended += step.finish_reason is not None
        self.bar.update(self._ended, f"{self._ended} of {self._replies} replies, {show.count(self._tokens, 'token')}")


def _summary(replies: Sequence[tuple[str, Result]], stats: Stats, seconds: float) -> dict[str, Any]:
    prompt_tokens = sum(result.prompt_tokens for _, result in replies)
    categories = dict.fromkeys(category for category, _ in replies)
    pools = {name: Stats.pooled(r.stats for category, r in replies if category == name) for name in categories}
    return {
        "replies": len(replies),
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": stats.tokens,
            "total_tokens": prompt_tokens + stats.tokens,
        },
        "speculation": stats.report(),
        "categories": {name: _category(pool) for name, pool in pools.items()},
        "timing": {**stats.timing(), "wall": seconds, "tokens_per_s": ratio(stats.tokens, seconds)},
    }


def _category(stats: Stats) -> dict[str, float]:
    return {
        "completion_tokens": stats.tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "coverage": stats.coverage,
    }
