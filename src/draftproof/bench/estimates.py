"""Ratios of times with their uncertainty: medians over repeats and prompts, intervals by resampling both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

NO_DIFFERENCE = "no measurable difference"
_RESAMPLES, _SEED = 2000, 0
_LOW, _HIGH = 2.5, 97.5

Ratios = Sequence[Sequence[float]]
"""Of one category: a row a prompt, in it a ratio a repeat."""


@dataclass(frozen=True)
class Estimate:
    """A speed-up with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Faster, slower, or neither where the interval holds 1."""
        if self.low <= 1 <= self.high:
            return NO_DIFFERENCE
        return "faster" if self.low > 1 else "slower"


def estimates(categories: Mapping[str, Ratios]) -> tuple[dict[str, Estimate], Estimate]:
    """(each category, geometric mean over them).

    A prompt counts by the median of its repeats, a category by the median of its prompts. Intervals are percentiles
    of the same statistic over resamples: prompts with replacement, and of each prompt its repeats with replacement
    (two-stage bootstrap, Davison & Hinkley 1997, section 3.8). The random numbers have a fixed seed. Where a category
    has one prompt its interval speaks of that prompt alone.
    """
    random = np.random.default_rng(_SEED)
    made, logs = {}, []
    for name, prompts in categories.items():
        drawn = _resampled(prompts, random)
        made[name] = _estimate(median(median(repeats) for repeats in prompts), drawn)
        logs.append(np.log(drawn))
    overall = geometric_mean([one.value for one in made.values()])
    return made, _estimate(overall, np.exp(np.mean(logs, axis=0)))


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers, one at least."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _resampled(prompts: Ratios, random: np.random.Generator) -> Any:
    """[resamples] the category's statistic, recomputed. A prompt with fewer repeats is drawn from as often."""
    counts = np.array([len(repeats) for repeats in prompts])
    table = np.array([[*repeats, *[math.nan] * (max(counts) - len(repeats))] for repeats in prompts])
    prompt = random.integers(len(prompts), size=(_RESAMPLES, len(prompts), 1))
    repeat = (random.random((_RESAMPLES, *table.shape)) * counts[prompt]).astype(np.int64)
    return np.median(np.median(table[prompt, repeat], axis=2), axis=1)


def _estimate(value: float, drawn: Any) -> Estimate:
    low, high = map(float, np.percentile(drawn, [_LOW, _HIGH]))
    return Estimate(value, min(low, value), max(high, value))
