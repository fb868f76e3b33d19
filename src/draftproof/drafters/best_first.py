"""Trees that follow the likeliest paths: expand by path probability, then keep the best N nodes (EAGLE-2 2406.16858).

Every token is chosen, so nothing drawn is withdrawn by the ranking. A node is never likelier than its parent, so the
best N nodes are a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.contracts import Ask
from draftproof.device import upload
from draftproof.drafters.children import Grower
from draftproof.sampling import proper
from draftproof.types import InputError, Proposal, Segment

DEFAULT_WIDTH = 8
_RANKED = (0.75, 0.12, 0.07)
"""How often the target's pick under shared noise is the draft's first, second and third one; it halves from there."""


@dataclass(frozen=True)
class BestFirst:
    """nodes: size of the tree; gamma: its depth; width: nodes expanded a level, and children looked at for each."""

    nodes: int
    gamma: int
    width: int = DEFAULT_WIDTH
    draws: bool = False
    branches: bool = True

    def __post_init__(self) -> None:
        if not (1 <= self.nodes <= 1024 and 1 <= self.gamma <= 1024 and 1 <= self.width <= 64):
            raise InputError(
                "a tree by path probability has 1 to 1024 nodes, a gamma of 1 to 1024 and a width of 1 to 64, not"
                f" {self.nodes}, {self.gamma} and {self.width}."
            )


@dataclass(frozen=True)
class _Candidate:
    """A token behind a node that was fed (-1: the root), with the logarithm of its path's probability."""

    score: float
    parent: int
    token: int
    above: int


@dataclass(eq=False)
class _Growing:
    """fed: the nodes expanded so far, as a proposal; candidates: all tokens seen; number: of a fed node's candidate."""

    ask: Ask
    shape: BestFirst
    fed: Proposal
    candidates: list[_Candidate] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])
    level: int = 0

    @property
    def done(self) -> bool:
        return self.level >= min(self.ask.depth, self.shape.gamma) or not self.frontier

    def grow(self, logits: Tensor) -> None:
        """Look at the children of the frontier [len(frontier), V] and settle what is expanded next."""
        tokens, chances = self._children(logits)
        first = len(self.candidates)
        for node, row, weights in zip(self.frontier, tokens, chances, strict=True):
            above = self.number[node] if node >= 0 else -1
            base = self.candidates[above].score if above >= 0 else 0.0
            self.candidates += [
                _Candidate(base + min(w, 0.0), node, t, above)
                for t, w in zip(row, weights, strict=True)
                if w > -math.inf
            ]
        self.level += 1
        new = range(first, len(self.candidates))
        chosen = sorted(new, key=lambda i: -self.candidates[i].score)[: min(self.shape.width, self.shape.nodes)]
        if self.done or not chosen:
            self.frontier = []
            return
        before = len(self.fed)
        parents = (*self.fed.parents, *(self.candidates[i].parent for i in chosen))
        added = upload([self.candidates[i].token for i in chosen], self.fed.tokens.device)
        self.fed = Proposal(torch.cat([self.fed.tokens, added]), parents)
        self.number += chosen
        self.frontier = list(range(before, before + len(chosen)))

    def _children(self, logits: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """(tokens, logarithms of their chances) of every node of the frontier, the best `width`."""
        ask, width = self.ask, min(self.shape.width, logits.shape[1])
        scores = ask.policy.scores(logits, ask.context, self.fed, self.frontier)
        if ask.coupled and not ask.policy.greedy:
            rows = proper(ask.policy.probabilities(scores))
            at = len(ask.context) + self.level
            ranked = torch.stack([ask.source.ranked(row, width, at) for row in rows])
            possible = rows.gather(1, ranked) > 0
            chances = [[_ranked(i) if good else -math.inf for i, good in enumerate(row)] for row in possible.tolist()]
            return ranked.tolist(), chances
        rows = scores.softmax(-1) if ask.policy.greedy else ask.policy.probabilities(scores)
        best = rows.nan_to_num(0.0).topk(width)
        return best.indices.tolist(), best.values.log().tolist()

    def proposal(self) -> Proposal:
        """The best nodes of all that were seen, parents before children."""
        order = sorted(range(len(self.candidates)), key=lambda i: (-self.candidates[i].score, i))
        kept = sorted(order[: self.shape.nodes])
        place = {number: i for i, number in enumerate(kept)} | {-1: -1}
        tokens = upload([self.candidates[number].token for number in kept], self.fed.tokens.device)
        return Proposal(tokens, tuple(place[self.candidates[number].above] for number in kept))


def _ranked(rank: int) -> float:
    chance = _RANKED[rank] if rank < len(_RANKED) else _RANKED[-1] * 0.5 ** (rank - len(_RANKED) + 1)
    return math.log(chance)


def grow_best(
    asks: Sequence[Ask],
    shape: BestFirst,
    sessions: Sequence[Grower],
    segments: Sequence[Segment],
    call: Callable[[Sequence[Segment]], Sequence[Tensor]],
) -> list[Proposal]:
    """As `children.grow_all`; the topology depends on the rows, so every level waits for the device."""
    nothing = [Proposal(torch.empty(0, dtype=torch.int64, device=one.model.device), ()) for one in sessions]
    growing = [_Growing(ask, shape, empty) for ask, empty in zip(asks, nothing, strict=True)]
    live = list(range(len(asks)))
    while live:
        for i, logits in zip(live, call(segments), strict=True):
            growing[i].grow(logits)
        live = [i for i in live if not growing[i].done]
        segments = [sessions[i].plan_more(growing[i].fed) for i in live]
    return [one.proposal() for one in growing]
