"""Counts against a law: pooled cells, Pearson's test, its power, Holm's correction. scipy does the mathematics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.types import InputError

Tokens = tuple[int, ...]
Rows = Callable[[Sequence[Tokens]], list[list[float]]]
OTHER = -1
POWER = 0.99


@dataclass(frozen=True)
class Cells:
    """The law of emitted tokens, cut into cells that can be tested.

    probabilities  sequence -> probability. A shorter sequence stands for all that begin with it, one that ends in
                   OTHER for the continuations that have no cell of their own
    expanded       prefixes whose continuations have cells
    rest           the cell that takes everything else
    """

    probabilities: Mapping[Tokens, float]
    expanded: frozenset[Tokens]
    rest: Tokens

    def of(self, text: Tokens) -> Tokens:
        """The cell a sequence falls into."""
        for length in range(len(text) + 1):
            if text[:length] in self.probabilities:
                return text[:length]
            if text[:length] not in self.expanded:
                break
        pooled = (*text[: length - 1], OTHER)
        return pooled if pooled in self.probabilities else self.rest


def cells(rows: Rows, draws: int, tokens: int, ends: frozenset[int], least: float = 10.0) -> Cells:
    """Split the law token by token as long as a cell expects `least` draws; pooling looks at the law alone.

    rows(prefixes) -> plain decoding's distribution behind each; only prefixes worth splitting are asked for.
    """
    found: dict[Tokens, float] = {}
    expanded: set[Tokens] = set()
    level: dict[Tokens, float] = {(): 1.0}
    rest = 0.0
    while level:
        following: dict[Tokens, float] = {}
        for (prefix, weight), row in zip(level.items(), rows(list(level)), strict=True):
            expanded.add(prefix)
            small = 0.0
            for token, p in enumerate(row):
                text = (*prefix, token)
                if weight * p * draws < least:
                    small += weight * p
                elif len(text) == tokens or token in ends or weight * p * draws < 2 * least:
                    found[text] = weight * p
                else:
                    following[text] = weight * p
            if small * draws >= least:
                found[(*prefix, OTHER)] = small
            else:
                rest += small
        level = following
    # What is left over is a cell of its own; too small alone, it joins the smallest one.
    home = (OTHER,) if rest * draws >= least or not found else min(found, key=lambda text: found[text])
    if rest > 0 or not found:
        found[home] = found.get(home, 0.0) + rest
    return Cells(found, frozenset(expanded), home)


@dataclass(frozen=True)
class Pearson:
    """chi-square of the counts; degrees of freedom are cells - 1."""

    statistic: float
    cells: int
    p_value: float


def pearson(cells: Cells, counts: Counter[Tokens]) -> Pearson:
    """The test of the counts of whole sequences against the cells."""
    draws, pooled = sum(counts.values()), Counter[Tokens]()
    for text, count in counts.items():
        pooled[cells.of(text)] += count
    statistic = sum((pooled[text] - draws * p) ** 2 / (draws * p) for text, p in cells.probabilities.items())
    freedom = len(cells.probabilities) - 1
    p_value = float(_scipy().chi2.sf(statistic, freedom)) if freedom else 1.0
    return Pearson(statistic, len(cells.probabilities), p_value)


def detectable(draws: int, cells: int, alpha: float) -> float:
    """Every shift of the cells' law of at least this total variation is found with probability POWER.

    The non-centrality is N * sum of d^2 / p >= 4 N TV^2 (Cauchy and Schwarz), with equality for the worst shift.
    """
    from scipy.optimize import brentq

    stats = _scipy()
    if cells < 2:
        return 1.0
    critical = stats.chi2.isf(alpha, cells - 1)
    centre = brentq(lambda x: stats.ncx2.sf(critical, cells - 1, x) - POWER, 1e-3, 1e4 + 10 * cells)
    return min(1.0, math.sqrt(float(centre) / (4 * draws)))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses fall, with at most `alpha` chance of any false alarm in the family."""
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] > alpha / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def at_least(hits: int, trials: int, chance: float) -> float:
    """P(that many hits or more), exact binomial."""
    return float(_scipy().binom.sf(hits - 1, trials, min(chance, 1.0)))


def _scipy() -> Any:
    try:
        import scipy.stats
    except ImportError:
        raise InputError("the sampled audit needs scipy: pip install 'draftproof[audit]'.") from None
    return scipy.stats
