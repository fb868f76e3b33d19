"""How the children of a node are taken from its draft row. Whatever the scheme, a row reported is the row drawn from.

A drawn token is never withdrawn, and how many children there are is settled before the first is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, Key
from draftproof.drafters.chains import GrowingChain
from draftproof.rng import best
from draftproof.sampling import proper
from draftproof.types import InputError, Proposal, Segment

Scheme = Literal["drawn", "chosen", "mixed"]
DEFAULT_GAMMA = 5


@dataclass(frozen=True)
class Shape:
    """Children a node at each depth. Schemes: "drawn" one after the other without replacement, "chosen" the likeliest,
    "mixed" one drawn child, the eldest, and the likeliest others chosen (Hu et al. 2502.18779, "greedy").
    """

    widths: tuple[int, ...]
    scheme: Scheme

    @classmethod
    def of(cls, gamma: int = DEFAULT_GAMMA, widths: str = "", scheme: str = "drawn") -> Shape:
        """`widths` such as "3x2x1" names a tree; empty means a chain of gamma tokens."""
        try:
            numbers = tuple(int(width) for width in widths.split("x")) if widths else (1,) * gamma
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1 or max(numbers) > 64 or len(numbers) > 1024:
            raise InputError(f"a draft shape is a gamma of at least 1 or widths such as 3x2x1, not {widths or gamma}.")
        if scheme not in get_args(Scheme):
            raise InputError(f"children must be one of {', '.join(get_args(Scheme))}, not {scheme}.")
        return cls(numbers, scheme)  # type: ignore[arg-type]

    @property
    def gamma(self) -> int:
        """The longest path."""
        return len(self.widths)

    @property
    def branches(self) -> bool:
        """True when some node has two children."""
        return max(self.widths) > 1

    @property
    def draws(self) -> bool:
        """True when some token is drawn, so that rows are reported."""
        return self.scheme != "chosen"


class Device(Protocol):
    """Whatever computes draft logits."""

    @property
    def device(self) -> torch.device:
        """Where it does."""


class Grower(Protocol):
    """One request's entries behind the text, to which a proposal adds level by level; a `Session` is one."""

    @property
    def model(self) -> Device:
        """What computes."""

    def plan_more(self, proposal: Proposal) -> Segment:
        """The nodes that the proposal has gained, to be fed."""


class Growing:
    """A proposal under construction, level by level, for one request."""

    def __init__(self, ask: Ask, shape: Shape, device: torch.device) -> None:
        self.ask, self.shape = ask, shape
        self.levels = min(ask.depth, len(shape.widths))
        self.frontier: list[int] = [tree.ROOT]
        self._none = torch.empty(0, dtype=torch.int64, device=device)
        self.proposal = Proposal(self._none, ())
        self._rows: list[Tensor] = []
        self._level = 0

    @property
    def done(self) -> bool:
        """No further level is wanted."""
        return self._level >= self.levels or not self.frontier

    def grow(self, logits: Tensor) -> None:
        """Give every node of the frontier its children; logits [len(frontier), V] over the target's vocabulary."""
        ask = self.ask
        scores = ask.policy.scores(logits, ask.context, self.proposal, self.frontier)
        by_score = ask.policy.greedy or (self.shape.scheme == "chosen" and not ask.coupled)
        rows = scores if by_score else proper(ask.policy.probabilities(scores))
        parents, tokens = list(self.proposal.parents), [self.proposal.tokens]
        for node, row, score in zip(self.frontier, rows, scores, strict=True):
            taken, taken_rows = self._children(row, score, by_score, len(parents))
            self._rows += taken_rows
            parents += [node] * len(taken)
            tokens.append(taken)
        self.frontier = list(range(len(self.proposal), len(parents)))
        self._level += 1
        probs = torch.stack(self._rows) if self.done and self._rows else None
        self.proposal = Proposal(torch.cat(tokens), tuple(parents), probs, ask.coupled)

    def _children(self, row: Tensor, score: Tensor, by_score: bool, first: int) -> tuple[Tensor, list[Tensor]]:
        """(tokens [k], their rows, none where all are chosen); `first` is the id of the first child."""
        ask, noisy = self.ask, self.ask.coupled and not by_score
        width = self._room(row if noisy else score)
        if by_score:
            tokens, rows = best(score[None]) if width == 1 else score.topk(width).indices, []
        elif noisy:
            tokens = ask.source.ranked(row, width, len(ask.context) + self._level)
            rows = [row] * width
        else:
            keys = [Key(len(ask.context), "draft", first + i) for i in range(width)]
            tokens, rows = (mixed if self.shape.scheme == "mixed" else drawn)(row, score, ask, keys)
        if width == 1 and score.device.type == "cpu" and not score[tokens[0]] > float("-inf"):
            return self._none, []
        return tokens, rows

    def _room(self, values: Tensor) -> int:
        """Children to take: no more than tokens that may follow. On other devices a look at values would wait.

        A single child is looked at once it is taken, which is quicker.
        """
        width = min(self.shape.widths[self._level], len(values))
        if width == 1 or values.device.type != "cpu":
            return width
        noisy = self.ask.coupled and not self.ask.policy.greedy
        return max(1, min(width, int((values > (0 if noisy else float("-inf"))).sum())))


def _growing(ask: Ask, shape: Shape, device: torch.device) -> Growing | GrowingChain:
    return Growing(ask, shape, device) if shape.branches or device.type != "cpu" else growing_chain(ask, shape)


def growing_chain(ask: Ask, shape: Shape) -> GrowingChain:
    """A chain of this shape on a CPU."""
    by_score = ask.policy.greedy or (shape.scheme == "chosen" and not ask.coupled)
    return GrowingChain(ask, min(ask.depth, shape.gamma), by_score)


def grow_all(
    asks: Sequence[Ask],
    shape: Shape,
    sessions: Sequence[Grower],
    segments: Sequence[Segment],
    call: Callable[[Sequence[Segment]], Sequence[Tensor]],
) -> list[Proposal]:
    """Level by level, one call a level for all requests together; the first segments give the roots' rows.

    call(segments) returns each one's logits [rows, V] over the target's vocabulary.
    """
    growing = [_growing(ask, shape, session.model.device) for ask, session in zip(asks, sessions, strict=True)]
    live = list(range(len(asks)))
    while live:
        for i, logits in zip(live, call(segments), strict=True):
            growing[i].grow(logits)
        live = [i for i in live if not growing[i].done]
        segments = [sessions[i].plan_more(growing[i].proposal) for i in live]
    return [one.proposal for one in growing]


def drawn(row: Tensor, score: Tensor, ask: Ask, keys: Sequence[Key]) -> tuple[Tensor, list[Tensor]]:
    """One token a key, without replacement; each row is the elder one without its token, renormalised."""
    tokens: list[Tensor] = []
    rows: list[Tensor] = []
    for key in keys:
        rows.append(row)
        tokens.append(ask.source.draw(row, key))
        if len(tokens) < len(keys):
            row, score = without(row, score, tokens[-1][None])
    return torch.stack(tokens), rows


def mixed(row: Tensor, score: Tensor, ask: Ask, keys: Sequence[Key]) -> tuple[Tensor, list[Tensor]]:
    """The likeliest k - 1 tokens are chosen; the eldest child is drawn from the rest of the row."""
    chosen = score.topk(len(keys) - 1).indices
    eldest, _ = without(row, score, chosen) if len(chosen) else (row, score)
    token = ask.source.draw(eldest, keys[0])
    one_hot = torch.nn.functional.one_hot(chosen, len(row)).to(row.dtype)
    return torch.cat([token[None], chosen]), [eldest, *one_hot]


def without(row: Tensor, score: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The row without these tokens, renormalised; the best of the rest by score where no mass is left."""
    score = score.index_fill(0, tokens, float("-inf"))
    left = row.index_fill(0, tokens, 0)
    mass = left.sum()
    likeliest = torch.nn.functional.one_hot(score.argmax(), len(row)).to(row.dtype)
    return torch.where(mass > 0, left / mass, likeliest), score
