"""Verdicts on a CPU: verify.py on numpy rows by the compiled kernels, row by row and no further than the verdict goes.

On a CPU a look at a number is free; on other devices it waits, and `fast.judge` works without this module. Tests hold
both equal to the reference under the same uniforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from torch import Tensor

from draftproof import kernels, tree, verify
from draftproof.contracts import Key, Rule
from draftproof.fast_sampling import FastSampler
from draftproof.rng import PhiloxSource
from draftproof.types import Proposal, Verdict


@dataclass(frozen=True)
class Judgement:
    """A verdict with the numbers that need no sampling noise (see types.Step)."""

    verdict: Verdict
    expected_accepted: float
    overlap: float
    overlap_positions: int


def filters_of(policy: object, scores: Tensor) -> kernels.Filters | None:
    """The compiled stages between these scores and their rows; None where another policy's own code counts."""
    return policy.filters if type(policy) is FastSampler and kernels.usable(scores) else None


def judge(
    rule: Rule | verify.CoupledRule, proposal: Proposal, scores: Tensor, sampler: object, source: object, position: int
) -> Judgement | None:
    """As `fast.judge`, None for what has no form here: other devices and dtypes, trees under the ratio rules."""
    if scores.device.type == "cpu" and type(sampler) is FastSampler and sampler.greedy:
        return _greedy(proposal, scores.numpy())
    filters, probs = filters_of(sampler, scores), proposal.probs
    if filters is None or type(source) is not PhiloxSource or not (probs is None or kernels.usable(probs)):
        return None
    if isinstance(rule, verify.CoupledRule):
        return _by_noise(_Rows(proposal, scores, filters), proposal.parents, source, position)
    ratio = type(rule) in (verify.TokenRule, verify.BlockRule, verify.TreeRule) and not proposal.coupled
    if not ratio or not tree.is_chain(proposal.parents):
        return None
    return _by_ratio(type(rule) is verify.TokenRule, _Rows(proposal, scores, filters), source, position)


class _Rows:
    """The target's rows p, made when they are asked for, and the draft's rows q beside them."""

    def __init__(self, proposal: Proposal, scores: Tensor, filters: kernels.Filters) -> None:
        self.tokens: list[int] = proposal.tokens.tolist()
        self.q = None if proposal.probs is None else proposal.probs.numpy()
        self._scores, self._filters = scores.numpy(), filters
        self._p = np.empty_like(self._scores)
        self._dead: list[bool | None] = [None] * len(self._p)

    def p(self, at: int) -> kernels.Floats:
        """The row behind node at - 1; NaN becomes uniform, as in `sampling.proper`."""
        row: kernels.Floats = self._p[at]
        if self._dead[at] is None:
            kernels.distributions(self._scores[at : at + 1], self._filters, self._p[at : at + 1])
            self._dead[at] = bool(np.isnan(row[0]))
            if self._dead[at]:
                row[:] = 1 / len(row)
        return row

    def dead(self, at: int) -> bool:
        """True where no token can follow."""
        self.p(at)
        return bool(self._dead[at])

    def ratio(self, at: int) -> float:
        """p(x) / q(x) of the token drafted behind row `at` of a chain."""
        token = self.tokens[at]
        p, q = float(self.p(at)[token]), 1.0 if self.q is None else float(self.q[at, token])
        return p / q if q > 0 else float(p > 0)

    def overlap(self, at: int, node: int) -> float:
        """`verify.overlap` of the node with its parent's row."""
        if self.q is None:
            return float(self.p(at)[self.tokens[node]])
        return kernels.compare(self.p(at), self.q[node])[1]

    def left(self, at: int, scale: float) -> kernels.Floats:
        """What the rejected token behind row `at` of a chain leaves: (scale p - q)+."""
        if self.q is not None:
            return kernels.residual(self.p(at), self.q[at], scale)
        row = self.p(at).copy()
        row[self.tokens[at]] = 0
        return row


def _by_ratio(alone: bool, rows: _Rows, source: PhiloxSource, position: int) -> Judgement:
    """One uniform for the stop, another for the token behind it; `alone`: every token is judged by itself.

    On chosen tokens all ratio rules agree. The path ends where no token can follow.
    """
    n = len(rows.tokens)
    if alone or rows.q is None:
        scales, stops = [1.0] * n, _token_stops([min(1.0, rows.ratio(at)) for at in range(n)])
    else:
        scales, stops = _block_stops(rows)
    stop = _quantile(stops, source.uniform(Key(position, "stop")))
    end = next((at for at in range(stop + 1) if rows.dead(at)), None)
    reached = stop if end is None else end
    token = -1
    if end is None:
        u = source.uniform(Key(position, "next"))
        token = kernels.draw(rows.left(stop, scales[stop]), u) if stop < n else -1
        token = kernels.draw(rows.p(stop), u) if token < 0 else token
    overlaps = [rows.overlap(at, at) for at in range(min(reached + 1, n))]
    expected = sum(depth * mass for depth, mass in enumerate(stops))
    return Judgement(Verdict(tuple(range(reached)), token), expected, sum(overlaps), len(overlaps))


def _token_stops(accept: Sequence[float]) -> list[float]:
    """As `verify.TokenRule` on a chain: the first rejection stops."""
    reach = list(accumulate(accept, lambda mass, a: mass * a, initial=1.0))
    return [mass * (1 - a) for mass, a in zip(reach, accept, strict=False)] + reach[-1:]


def _block_stops(rows: _Rows) -> tuple[list[float], list[float]]:
    """(p_i, stops) as in `verify.BlockRule`: the longest prefix that passes."""
    n = len(rows.tokens)
    assert rows.q is not None
    scales = list(accumulate(map(rows.ratio, range(n)), lambda p, r: min(1.0, p * r), initial=1.0))
    keep = []
    for at, scale in enumerate(scales[:n]):
        mass, _ = kernels.compare(rows.p(at), rows.q[at], scale)
        gap = mass + (1 - scale)
        keep.append(mass / gap if gap > 0 else 1.0)
    left, stops = 1.0, []
    for h in reversed([*keep[1:], scales[n]]):
        stops.append(left * h)
        left *= 1 - h
    return scales, [left, *reversed(stops)]


def _quantile(weights: Sequence[float], u: float) -> int:
    """`rng.draw` for a few numbers."""
    mass = list(accumulate(weights))
    point = min(u * mass[-1], np.nextafter(mass[-1], 0.0))
    return next((i for i, below in enumerate(mass) if below > point), 0)


def _by_noise(rows: _Rows, parents: Sequence[int], source: PhiloxSource, position: int) -> Judgement:
    """`verify.CoupledRule.verdict` with the overlap of the positions it passes."""
    kids, overlaps = tree.children(parents), []

    def pick(node: int, depth: int) -> int:
        token = source.race(rows.p(node + 1), position + depth) if not rows.dead(node + 1) else -1
        if kids[node]:
            overlaps.append(rows.overlap(node + 1, kids[node][0]))
        return token

    verdict = _follow(kids, rows.tokens, pick)
    return Judgement(verdict, float(len(verdict.path)), sum(overlaps), len(overlaps))


def _greedy(proposal: Proposal, scores: np.ndarray) -> Judgement:
    """The first maximum of every row; it overlaps with a draft of the same token whole."""
    kids, tokens, overlaps = tree.children(proposal.parents), proposal.tokens.tolist(), []

    def pick(node: int, depth: int) -> int:
        token = int(scores[node + 1].argmax())
        if not np.isfinite(scores[node + 1, token]):
            token = -1
        if kids[node]:
            overlaps.append(float(tokens[kids[node][0]] == token))
        return token

    verdict = _follow(kids, tokens, pick)
    return Judgement(verdict, float(len(verdict.path)), sum(overlaps), len(overlaps))


def _follow(kids: dict[int, list[int]], tokens: Sequence[int], pick: Callable[[int, int], int]) -> Verdict:
    """The target's pick(node, depth) is followed as long as it was drafted; -1 ends the path."""
    node, nodes = tree.ROOT, list[int]()
    while True:
        token = pick(node, len(nodes))
        hit = next((kid for kid in kids[node] if tokens[kid] == token), None)
        if hit is None or token < 0:
            return Verdict(tuple(nodes), token)
        nodes.append(node := hit)
