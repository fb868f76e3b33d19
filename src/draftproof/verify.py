"""Verification rules in reference form: each a pure function (proposal, target rows) -> distribution over outcomes.

`stops` says where the accepted path ends (0 the root, i + 1 node i), `after` what the next token is drawn from there.
No randomness inside, any float dtype: the engine draws from it, the exact audit sums over it. p is the target,
q the draft, as in the papers. Proofs: docs/losslessness.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Outcomes, Source
from draftproof.device import upload
from draftproof.types import Proposal, Verdict


@dataclass(frozen=True, eq=False)
class Rows:
    """Outcomes with the row of every stop at hand."""

    stops: Tensor
    rows: list[Tensor]

    def after(self, stop: int) -> Tensor:
        """[V]: distribution of the token emitted at that stop."""
        return self.rows[stop]


def draft_row(proposal: Proposal, node: int, size: int) -> Tensor:
    """[V]: what the node's token was drawn from; one-hot for a chosen token."""
    if proposal.probs is not None:
        return proposal.probs[node]
    return torch.nn.functional.one_hot(proposal.tokens[node], size).to(torch.get_default_dtype())


def excess(p: Tensor, q: Tensor, scale: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """(scale * p - q)+ [V] and its mass in float64, the numerator of the residual distribution."""
    left = (scale * p - q.to(p.dtype)).clamp(min=0)
    return left, left.sum(dtype=torch.float64)


def normalised(left: Tensor, mass: Tensor, otherwise: Tensor) -> Tensor:
    """left / mass; `otherwise` where no mass is left, a row that is then never drawn from."""
    return torch.where(mass > 0, left / mass.clamp(min=torch.finfo(torch.float64).tiny), otherwise).to(left.dtype)


def _refuse_coupled(proposal: Proposal) -> None:
    if proposal.coupled:
        raise ValueError("a proposal drawn with the noise of its positions may only be verified by the coupled rule")


class TokenRule:
    """Accept x with min(1, p(x) / q(x)), else draw from the residual (Leviathan 2211.17192, Chen 2302.01318).

    On a tree the siblings are tried in order, each against the residual its elder left: recursive rejection,
    with replacement (2305.09781), without (2402.14160) or with a chosen token, as the rows say.
    """

    name = "token"

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """Top-down: the mass that reaches a node is split among its children and the stop at the node itself."""
        _refuse_coupled(proposal)
        kids, rows = tree.children(proposal.parents), []
        reach = [torch.ones((), dtype=torch.float64, device=target_probs.device)] * (len(proposal) + 1)
        stops = []
        for node in range(tree.ROOT, len(proposal)):
            p, left = target_probs[node + 1], reach[node + 1]
            for child in kids[node]:
                q, x = draft_row(proposal, child, p.shape[-1]), proposal.tokens[child]
                accept = (p[x].double() / q[x].double()).clamp(max=1)
                reach[child + 1], left = left * accept, left * (1 - accept)
                rest, mass = excess(p, q)
                p = normalised(rest, mass, p)
            stops.append(left)
            rows.append(p)
        return Rows(torch.stack(stops), rows)


class BlockRule:
    """Block verification of a chain (Sun et al. 2403.10444, algorithm 2): the longest prefix with u_i <= h_i wins."""

    name = "block"

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """p_i = min(1, p_{i-1} p(x_i) / q(x_i)); h_i = S_i / (S_i + 1 - p_i) with S_i the mass of (p_i p - q)+."""
        _refuse_coupled(proposal)
        if not tree.is_chain(proposal.parents):
            raise ValueError("the block rule verifies chains; a tree needs the tree rule")
        n, size = len(proposal), target_probs.shape[-1]
        scale = torch.ones((), dtype=torch.float64, device=target_probs.device)
        keep, rows = [], []
        for i in range(n + 1):
            if i > 0:
                q, x = draft_row(proposal, i - 1, size), proposal.tokens[i - 1]
                scale = (scale * target_probs[i - 1][x].double() / q[x].double()).clamp(max=1)
            if i == n:
                keep.append(scale)
                rows.append(target_probs[n])
                break
            rest, mass = excess(target_probs[i], draft_row(proposal, i, size), scale.to(target_probs.dtype))
            keep.append(acceptance(mass, scale))
            rows.append(normalised(rest, mass, target_probs[i]))
        return Rows(_longest(keep), rows)


def acceptance(mass: Tensor, scale: Tensor) -> Tensor:
    """S / (S + 1 - p), 1 where both are 0: the odds that let the rest of the mass be made up further up."""
    gap = mass + (1 - scale)  # in this order h cannot exceed 1
    return torch.where(gap > 0, mass / gap.clamp(min=torch.finfo(torch.float64).tiny), 1.0)


def _longest(keep: list[Tensor]) -> Tensor:
    """stop(i) = h_i * prod over j > i of (1 - h_j); the root takes what is left."""
    left, stops = torch.ones_like(keep[-1]), []
    for h in reversed(keep[1:]):
        stops.append(left * h)
        left = left * (1 - h)
    return torch.stack([left, *reversed(stops)])


class TreeRule:
    """Traversal verification (Weng et al. 2505.12398) with a row per child; on a chain it is the block rule.

    From the deepest leaf of the eldest path: accept its whole path with its p_acc, else delete it and give its
    parent v the row (p_acc(v) p_v - q)+ and p_acc(v) <- S / (S + 1 - p_acc(v)), q being the deleted child's row.
    """

    name = "tree"

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """Every node is a leaf exactly once; the order and the rows depend on the tree alone."""
        _refuse_coupled(proposal)
        n, size = len(proposal), target_probs.shape[-1]
        kids, rows = tree.children(proposal.parents), list(target_probs)
        left = torch.ones((), dtype=torch.float64, device=target_probs.device)
        chance = [left] * (n + 1)
        stops = [left] * (n + 1)

        def descend(node: int) -> int:
            while kids[node]:
                child = kids[node][0]
                q, x = draft_row(proposal, child, size), proposal.tokens[child]
                ratio = rows[node + 1][x].double() / q[x].double()
                chance[child + 1] = (chance[node + 1] * ratio).clamp(max=1)
                node = child
            return node

        leaf = descend(tree.ROOT)
        while leaf != tree.ROOT:
            stops[leaf + 1], left = left * chance[leaf + 1], left * (1 - chance[leaf + 1])
            parent = proposal.parents[leaf]
            kids[parent].pop(0)
            scale, p = chance[parent + 1], rows[parent + 1]
            rest, mass = excess(p, draft_row(proposal, leaf, size), scale.to(p.dtype))
            rows[parent + 1], chance[parent + 1] = normalised(rest, mass, p), acceptance(mass, scale)
            leaf = descend(parent)
        stops[0] = left
        return Rows(torch.stack(stops), rows)


class CoupledRule:
    """Target and drafter pick by Gumbel-max with the noise of the position; the target's pick is followed if drafted.

    (Daliri et al. 2408.07978; exponential races 2504.15475.) The output is the target's own sample for every drafter,
    so no draft row is needed. It has no `outcomes`: given the noise nothing is left to chance.
    """

    name = "coupled"

    def verdict(self, proposal: Proposal, target_probs: Tensor, source: Source, position: int) -> Verdict:
        """`position` is the context length: the root's row is that of the token at this position.

        next_token is -1 where a row has no mass, as in `rng.draw`.
        """
        tokens = proposal.tokens.tolist()
        nodes: list[int] = []
        kids, node = tree.children(proposal.parents), tree.ROOT
        while True:
            row = target_probs[node + 1]
            pick = int(source.ranked(row, 1, position + len(nodes))[0])
            if not row[pick] > 0:
                return Verdict(tuple(nodes), -1)
            hit = next((child for child in kids[node] if tokens[child] == pick), None)
            if hit is None:
                return Verdict(tuple(nodes), pick)
            nodes.append(node := hit)


def expected_accepted(proposal: Proposal, stops: Tensor) -> Tensor:
    """Mean of the accepted length over the rule's own randomness: sum of stops times depths, a scalar."""
    lengths = upload((0, *tree.depths(proposal.parents)), stops.device, stops.dtype)
    return (stops * lengths).sum()


def overlap(proposal: Proposal, target_probs: Tensor, node: int) -> Tensor:
    """sum of min(p, q) at a node: the most one draft of this row can be accepted (Leviathan et al., theorem 3.5)."""
    p = target_probs[proposal.parents[node] + 1]
    if proposal.probs is None:
        return p[proposal.tokens[node]].double()
    return torch.minimum(p, proposal.probs[node].to(p.dtype)).sum(dtype=torch.float64)
