"""From measured trials to the numbers of a report. Every field: results/README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from draftproof.bench import predict
from draftproof.bench.compare import Item, Measured, Record, Trial
from draftproof.bench.estimates import Estimate, estimates, geometric_mean
from draftproof.stats import Stats, ratio
from draftproof.types import InputError

Curve = Mapping[int, float]
ByPrompt = Mapping[Item, Sequence[Trial]]
Ratio = Callable[[Record, Record], float | None]


def report(measured: Measured, names: Sequence[str], curve: Curve | None = None) -> dict[str, Any]:
    """`methods`, `answers` and counts. names: the methods, the baseline first; curve: cost of its target calls.

    InputError where there is nothing to report.
    """
    every = measured.by_prompt()
    usable = {item: trials for item, trials in every.items() if all(r.tokens for one in trials for r in _of(one))}
    if not usable:
        raise InputError("no prompt was answered with a token by every method, so there is nothing to compare.")
    return {
        "baseline": names[0],
        "prompts": len(usable),
        "repeats": min(len(trials) for trials in usable.values()),
        "interrupted": measured.interrupted,
        "without_tokens": [item.id for item in every if item not in usable],
        "methods": [_method(usable, name, names[0], curve) for name in names],
        "answers": [_answers(item, trials, names) for item, trials in usable.items()],
    }


def same_tokens(plain: Record, other: Record) -> bool:
    """Did both write the same?"""
    return plain.tokens == other.tokens


def first_difference(plain: Record, other: Record) -> int | None:
    """Index of the first token that differs, None where all are the same."""
    a, b = plain.tokens, other.tokens
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, None if len(a) == len(b) else min(len(a), len(b)))


def speedup(plain: Record, other: Record) -> float:
    """Wall time plain / wall time of the other for the same number of tokens; a token's share where they differ."""
    return other.tokens_per_s / plain.tokens_per_s


def decode_speedup(plain: Record, other: Record) -> float | None:
    """The same behind the first token."""
    a, b = plain.decode_tokens_per_s, other.decode_tokens_per_s
    return None if a is None or b is None else b / a


def _method(prompts: ByPrompt, name: str, baseline: str, curve: Curve | None) -> dict[str, Any]:
    """One entry of `methods`."""
    parts: dict[str, dict[Item, Sequence[Trial]]] = {}
    for item, trials in prompts.items():
        parts.setdefault(item.category, {})[item] = trials
    wall, wall_mean = estimates({c: _ratios(part, name, baseline, speedup) for c, part in parts.items()})
    records = [one.records[name] for trials in prompts.values() for one in trials]
    categories = {
        category: _numbers(wall[category]) | _category(part, name, baseline, curve) for category, part in parts.items()
    }
    pairs = [(one.records[baseline], one.records[name]) for trials in prompts.values() for one in trials]
    decode = [one["decode_speedup"] for one in categories.values()]
    predicted = [one["predicted_speedup"] for one in categories.values()]
    return {
        "name": name,
        "geomean_speedup": wall_mean.value,
        **{key: value for key, value in _numbers(wall_mean).items() if key != "speedup"},
        "geomean_decode_speedup": geometric_mean(decode) if all(decode) else None,
        "geomean_predicted_speedup": geometric_mean(predicted) if all(predicted) else None,
        "tokens_per_s": _pooled_speed(prompts, name, lambda r: (len(r.tokens), r.seconds)),
        "decode_tokens_per_s": _pooled_speed(prompts, name, _decode),
        "same_tokens": all(same_tokens(*pair) for pair in pairs),
        **_speculation(records),
        "categories": categories,
    }


def _category(part: ByPrompt, name: str, baseline: str, curve: Curve | None) -> dict[str, Any]:
    """What a method did on the prompts of one category."""
    records = [one.records[name] for trials in part.values() for one in trials]
    behind = [row for row in _ratios(part, name, baseline, decode_speedup) if row]
    firsts = [record.first_seconds for record in records if record.first_seconds is not None]
    stats = _pooled(records)
    plain = [one.records[baseline].target_seconds for trials in part.values() for one in trials]
    unit = [seconds for seconds in plain if seconds is not None]
    theory = {} if stats is None or not unit else _theory(records, stats, median(unit), curve)
    return {
        "prompts": len(part),
        "tokens": sum(len(trials[0].records[name].tokens) for trials in part.values()),
        "decode_speedup": median(median(row) for row in behind) if behind else None,
        "predicted_speedup": None,
        "predicted_from_lengths": None,
        "tokens_per_s": median(median(one.records[name].tokens_per_s for one in trials) for trials in part.values()),
        "first_token_seconds": median(firsts) if firsts else None,
        "mean_acceptance_length": None if stats is None else stats.mean_acceptance_length,
        "alpha": None if stats is None or not stats.draft_tokens else stats.alpha,
        "coverage": None if stats is None else stats.coverage,
        "cost_ratio_c": None,
        **theory,
    }


def _theory(records: Sequence[Record], stats: Stats, unit: float, curve: Curve | None) -> dict[str, float]:
    """Cost ratio and predicted speed-ups; unit: seconds of a plain target call in the same trials."""
    drafting = stats.seconds["draft"] / unit
    made = {"cost_ratio_c": ratio(drafting, stats.draft_tokens)}
    shapes: Counter[tuple[int, int]] = sum((record.shapes for record in records), Counter())
    if curve is None or not shapes:
        return made
    chain = all(nodes == depth for nodes, depth in shapes)
    lengths = predict.from_lengths(shapes, stats.mean_acceptance_length, drafting, curve)
    # Of a tree alpha is known for the eldest children alone.
    alpha = predict.from_alpha(shapes, stats.alpha, drafting, curve) if chain else lengths
    return {**made, "predicted_speedup": alpha, "predicted_from_lengths": lengths}


def _speculation(records: Sequence[Record]) -> dict[str, Any]:
    """Counts and stage times over all answers; nothing for a method that has no steps to show."""
    stats = _pooled(records)
    if stats is None:
        return {"speculation": None, "acceptance_by_position": {}, "timing": None}
    wall = sum(record.seconds for record in records)
    stages = stats.timing()
    positions = {
        str(depth): {"drafted": drafted, "accepted": stats.accepted_at[depth], "rate": rate}
        for (depth, rate), drafted in zip(
            stats.conditional_acceptance().items(), (stats.drafted_at[d] for d in sorted(stats.drafted_at)), strict=True
        )
    }
    return {
        "speculation": stats.report(),
        "acceptance_by_position": positions,
        "timing": {**stages, "wall": wall, "outside_share": 1 - ratio(stages["total"], wall)},
    }


def _answers(item: Item, trials: Sequence[Trial], names: Sequence[str]) -> dict[str, Any]:
    """The measured times of one prompt, for whoever wants to compute with them."""
    methods = {}
    for name in names:
        records = [one.records[name] for one in trials]
        apart = (first_difference(one.records[names[0]], one.records[name]) for one in trials)
        methods[name] = {
            "tokens": [len(record.tokens) for record in records],
            "seconds": [record.seconds for record in records],
            "first_seconds": [record.first_seconds for record in records],
            "first_difference": next((position for position in apart if position is not None), None),
        }
    return {"id": item.id, "category": item.category, "prompt_tokens": len(item.tokens), "methods": methods}


def _ratios(part: ByPrompt, name: str, baseline: str, ratio_of: Ratio) -> list[list[float]]:
    """A row a prompt, a ratio a trial: both times were taken one right after the other."""
    rows = [[ratio_of(one.records[baseline], one.records[name]) for one in trials] for trials in part.values()]
    return [[value for value in row if value is not None] for row in rows]


def _pooled_speed(prompts: ByPrompt, name: str, count: Callable[[Record], tuple[int, float] | None]) -> float | None:
    """Tokens / seconds over all prompts, each with the median of its repeats; None where a method cannot say."""
    tokens, seconds = 0.0, 0.0
    for trials in prompts.values():
        counted = [one for one in (count(r.records[name]) for r in trials) if one is not None]
        if counted:
            tokens += median(n for n, _ in counted)
            seconds += median(s for _, s in counted)
    return tokens / seconds if seconds else None


def _decode(record: Record) -> tuple[int, float] | None:
    if record.first_seconds is None:
        return None
    return len(record.tokens) - 1, record.seconds - record.first_seconds


def _pooled(records: Iterable[Record]) -> Stats | None:
    stats = [record.stats for record in records if record.stats is not None]
    return Stats.pooled(stats) if stats else None


def _of(one: Trial) -> Iterable[Record]:
    return one.records.values()


def _numbers(estimate: Estimate) -> dict[str, Any]:
    return {"speedup": estimate.value, "low": estimate.low, "high": estimate.high, "verdict": estimate.verdict}
