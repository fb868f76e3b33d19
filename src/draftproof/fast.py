"""Batched twins of sampling.py and verify.py: the same mathematics with fewer passes over the vocabulary.

Tests hold them equal to the reference under the same uniforms. `judge` is what the engine calls; what it puts into
`packed` is all that crosses from the device to the host in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from draftproof import on_cpu, tree, verify
from draftproof.contracts import Key, Outcomes, Rule, Source
from draftproof.device import upload
from draftproof.on_cpu import Judgement as Judgement
from draftproof.rng import best
from draftproof.sampling import Sampler, proper
from draftproof.types import Proposal, Verdict


def outcomes(rule: Rule, proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """`rule.outcomes` by the quickest form that fits the proposal."""
    known = type(rule) in (verify.TokenRule, verify.BlockRule, verify.TreeRule)
    if not known or not len(proposal) or proposal.coupled:
        return rule.outcomes(proposal, target_probs)
    if proposal.probs is None:
        return Chosen(proposal, target_probs)
    if type(rule) is not verify.TokenRule and tree.is_chain(proposal.parents):
        return BlockChain(proposal, target_probs)
    return rule.outcomes(proposal, target_probs)


class Chosen:
    """Every token chosen: all ratio rules agree, and only single probabilities are read."""

    def __init__(self, proposal: Proposal, target_probs: Tensor) -> None:
        self._proposal, self._rows = proposal, target_probs
        self._kids = tree.children(proposal.parents)
        above = _above(proposal, target_probs)
        reach = [torch.ones((), dtype=torch.float64, device=target_probs.device)]
        alone = target_probs[above, proposal.tokens].double()
        for node, parent in enumerate(proposal.parents):
            reach.append(reach[parent + 1] * self._first(node, alone[node]))
        self.stops = torch.stack(
            [
                at - sum((reach[kid + 1] for kid in self._kids[node - 1]), at.new_zeros(()))
                for node, at in enumerate(reach)
            ]
        ).clamp(min=0)

    def _first(self, node: int, p: Tensor) -> Tensor:
        """0 for a token that an elder sibling has offered already."""
        tokens, kids = self._proposal.tokens, self._kids[self._proposal.parents[node]]
        for elder in kids[: kids.index(node)]:
            p = p * (tokens[elder] != tokens[node])
        return p

    def after(self, stop: int) -> Tensor:
        """The target's row without the tokens offered there, not normalised; whole where rounding alone leads here."""
        kids = self._kids[stop - 1]
        if not kids:
            return self._rows[stop]
        offered = self._proposal.tokens.index_select(0, upload(kids, self._rows.device))
        left = self._rows[stop].index_fill(0, offered, 0)
        return torch.where(left.sum() > 0, left, self._rows[stop])


class BlockChain:
    """The block rule on a drawn chain in whole-matrix steps."""

    def __init__(self, proposal: Proposal, target_probs: Tensor) -> None:
        assert proposal.probs is not None
        n, self._rows = len(proposal), target_probs
        at = proposal.tokens[:, None]
        ratio = target_probs[:n].gather(1, at)[:, 0].double() / proposal.probs.gather(1, at)[:, 0].double()
        scale = running_scale(ratio)
        self._left = (target_probs[:n] * scale[:n, None].to(target_probs.dtype)).sub_(proposal.probs).clamp_(min=0)
        mass = self._left.sum(1).double()
        keep = torch.cat([verify.acceptance(mass, scale[:n]), scale[n:]])
        keep[0] = 1
        passed = (1 - keep).flip(0).cumprod(0).flip(0)
        self.stops = keep * torch.cat([passed[1:], passed.new_ones(1)])

    def after(self, stop: int) -> Tensor:
        """The residual at that position, not normalised; the target's row behind the last token."""
        if stop == len(self._left):
            return self._rows[stop]
        return torch.where(self._left[stop].sum() > 0, self._left[stop], self._rows[stop])


def running_scale(ratio: Tensor) -> Tensor:
    """[N + 1] float64: p_0 = 1, p_i = min(1, p_{i-1} ratio_i); on a CPU in plain numbers, which is quicker."""
    if ratio.device.type == "cpu":
        return torch.tensor(
            list(accumulate(ratio.tolist(), lambda p, r: min(1.0, p * r), initial=1.0)), dtype=ratio.dtype
        )
    scale = [ratio.new_ones(())]
    for one in ratio:
        scale.append((scale[-1] * one).clamp(max=1))
    return torch.stack(scale)


@dataclass(frozen=True, eq=False)
class Pending:
    """A judgement whose numbers still lie on the device: finish(packed.tolist(), draft tokens) ends it."""

    packed: Tensor
    finish: Callable[[Sequence[float], Sequence[int]], Judgement]


def judge(
    rule: Rule | verify.CoupledRule, proposal: Proposal, scores: Tensor, sampler: Sampler, source: Source, position: int
) -> Pending | Judgement:
    """Apply the rule to the target's scores [N + 1, V]; position is the context length."""
    judgement = on_cpu.judge(rule, proposal, scores, sampler, source, position)
    if judgement is not None:
        return judgement
    if sampler.greedy:
        picks = best(scores)
        return _by_picks(proposal, torch.where(scores.gather(1, picks[:, None])[:, 0].isfinite(), picks, -1), None)
    probs = sampler.probabilities(scores)
    if isinstance(rule, verify.CoupledRule):
        lengths = (0, *tree.depths(proposal.parents))
        picks = torch.cat([source.ranked(row, 1, position + at) for row, at in zip(probs, lengths, strict=True)])
        mass = probs.gather(1, picks[:, None])[:, 0]
        return _by_picks(proposal, torch.where(mass > 0, picks, -1), probs)
    return _by_ratio(rule, proposal, probs, source, position)


def _by_picks(proposal: Proposal, picks: Tensor, probs: Tensor | None) -> Pending:
    """The target's own pick [N + 1] behind every node is followed as long as it was drafted."""
    overlaps = _overlaps(proposal, probs) if probs is not None else (proposal.tokens == picks[_above(proposal, picks)])

    def finish(values: Sequence[float], tokens: Sequence[int]) -> Judgement:
        picked = [int(value) for value in values[: len(proposal) + 1]]
        kids, node, nodes = tree.children(proposal.parents), tree.ROOT, []
        while (hit := next((kid for kid in kids[node] if tokens[kid] == picked[node + 1]), None)) is not None:
            nodes.append(node := hit)
        verdict = Verdict(tuple(nodes), picked[node + 1])
        return _judged(proposal, verdict, None, values[len(proposal) + 1 :])

    return Pending(torch.cat([picks.double(), overlaps.double()]), finish)


def _by_ratio(rule: Rule, proposal: Proposal, probs: Tensor, source: Source, position: int) -> Pending:
    """One uniform for the stop, another for the token behind it. The path ends where no token can follow."""
    dead = probs[:, 0].isnan()
    probs = proper(probs)
    result = outcomes(rule, proposal, probs)
    stop = source.draw(result.stops, Key(position, "stop"))
    if stop.device.type == "cpu":
        row = result.after(int(stop))
    else:
        rows = torch.stack([result.after(i) for i in range(len(proposal) + 1)])
        row = rows.index_select(0, stop[None])[0]
    token = source.draw(row, Key(position, "next"))
    expected = verify.expected_accepted(proposal, result.stops)

    def finish(values: Sequence[float], tokens: Sequence[int]) -> Judgement:
        path = tree.path(proposal.parents, int(values[0]) - 1)
        ends = [i for i, node in enumerate((tree.ROOT, *path)) if values[3 + node + 1]]
        verdict = Verdict(path[: ends[0]], -1) if ends else Verdict(path, int(values[1]))
        return _judged(proposal, verdict, values[2], values[4 + len(proposal) :])

    head = torch.stack([stop.double(), token.double(), expected])
    return Pending(torch.cat([head, dead.double(), _overlaps(proposal, probs)]), finish)


def _above(proposal: Proposal, like: Tensor) -> Tensor:
    return upload([parent + 1 for parent in proposal.parents], like.device)


def _overlaps(proposal: Proposal, probs: Tensor) -> Tensor:
    """[N] sum of min(p, q) at every node, as `verify.overlap`."""
    above = _above(proposal, probs)
    if proposal.probs is None:
        return probs[above, proposal.tokens].double()
    if tree.is_chain(proposal.parents):
        return torch.minimum(probs[:-1], proposal.probs).sum(1).double()
    return torch.stack([verify.overlap(proposal, probs, node) for node in range(len(proposal))])


def fetch(judged: Sequence[Pending | Judgement], proposals: Sequence[Proposal]) -> list[tuple[Judgement, list[int]]]:
    """(judgement, draft tokens) of every request: the one transfer from device to host of a step."""
    packed = {i: one.packed for i, one in enumerate(judged) if isinstance(one, Pending)}
    parts = [part for i, one in packed.items() for part in (one, proposals[i].tokens.double())]
    values, at, done = torch.cat(parts).tolist() if parts else [], 0, []
    for one, proposal in zip(judged, proposals, strict=True):
        if isinstance(one, Judgement):
            done.append((one, proposal.tokens.tolist()))
            continue
        split, at = at + len(one.packed), at + len(one.packed) + len(proposal)
        tokens = [int(value) for value in values[split:at]]
        done.append((one.finish(values[split - len(one.packed) : split], tokens), tokens))
    return done


def _judged(proposal: Proposal, verdict: Verdict, expected: float | None, overlaps: Sequence[float]) -> Judgement:
    """Overlap counts the eldest child of every position reached; without `expected` it is the accepted length."""
    kids = tree.children(proposal.parents)
    eldest = [kids[node][0] for node in (tree.ROOT, *verdict.path) if kids[node]]
    mean = float(len(verdict.path)) if expected is None else expected
    return Judgement(verdict, mean, sum(overlaps[node] for node in eldest), len(eldest))
