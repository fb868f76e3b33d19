"""Pieces that are wrong on purpose, each a thin wrapper around the real one. Only the audit's controls use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, Drafter, DraftSession, Key, Outcomes, Source
from draftproof.fast_sampling import FastSampler
from draftproof.sampling import probabilities
from draftproof.types import Proposal, SamplingParams
from draftproof.verify import BlockRule, Rows, TokenRule, draft_row

# --- rules -----------------------------------------------------------------------------------------------------


class WrongRule:
    """A rule whose outcomes are twisted; the name keeps fast.py from putting its own twin in its place."""

    name = "wrong"

    def __init__(self, twist: Callable[[Proposal, Tensor], Outcomes]) -> None:
        self._twist = twist

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """What the twist makes of it; an empty proposal stays plain decoding."""
        return self._twist(proposal, target_probs) if len(proposal) else TokenRule().outcomes(proposal, target_probs)


def correction_from_target(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """The token behind a rejection comes from the target's row instead of the residual."""
    return Rows(TokenRule().outcomes(proposal, target_probs).stops, list(target_probs))


def correction_late(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """The token behind a rejection comes from the row behind the rejected token."""
    right = TokenRule().outcomes(proposal, target_probs)
    n = len(proposal)
    return Rows(right.stops, [target_probs[min(stop + 1, n)] for stop in range(n + 1)])


def first_unchecked(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """The first draft token is accepted whatever the target says."""
    trusted = target_probs.clone()
    trusted[0] = draft_row(proposal, 0, target_probs.shape[-1])
    return TokenRule().outcomes(proposal, trusted)


def block_uncapped(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """The block rule with the joint ratio min(1, prod p / q), not the running one, at its last position."""
    right = BlockRule().outcomes(proposal, target_probs)
    joint, size = torch.ones((), dtype=torch.float64), target_probs.shape[-1]
    for i, token in enumerate(proposal.tokens):
        joint = joint * target_probs[i][token].double() / draft_row(proposal, i, size)[token].double()
    last, joint = right.stops[-1], joint.clamp(max=1)
    others = right.stops[:-1] * torch.where(last < 1, (1 - joint) / (1 - last), 0)
    return Rows(torch.cat([others, joint[None]]), [right.after(stop) for stop in range(len(proposal) + 1)])


def accept_in_top_k(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """A chain's token is accepted whenever it is one of the target's two likeliest."""
    right = TokenRule().outcomes(proposal, target_probs)
    good = [bool((target_probs[i] > target_probs[i][x]).sum() < 2) for i, x in enumerate(proposal.tokens)]
    stop = good.index(False) if False in good else len(proposal)
    stops = torch.nn.functional.one_hot(torch.tensor(stop), len(proposal) + 1).double()
    return Rows(stops, [right.after(i) for i in range(len(proposal) + 1)])


def compare_with_argmax(proposal: Proposal, target_probs: Tensor) -> Outcomes:
    """Draft tokens are compared with the target's argmax, and only the token behind them is sampled."""
    best = torch.nn.functional.one_hot(target_probs.argmax(-1), target_probs.shape[-1]).to(target_probs.dtype)
    return Rows(TokenRule().outcomes(proposal, best).stops, list(target_probs))


# --- drafters --------------------------------------------------------------------------------------------------


class WrongDrafter:
    """A drafter whose asks or proposals are twisted."""

    def __init__(
        self,
        right: Drafter,
        ask: Callable[[Ask], Ask] | None = None,
        proposal: Callable[[Proposal], Proposal] | None = None,
    ) -> None:
        self.name, self.layers, self.gamma = right.name, right.layers, right.gamma
        self.draws, self.branches = right.draws, right.branches
        self._right, self._ask, self._proposal = right, ask, proposal

    def start(self, target: Any) -> DraftSession:
        """The right one's session."""
        return self._right.start(target)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The right one's proposals, twisted."""
        proposals = self._right.propose([self._ask(ask) if self._ask else ask for ask in asks])
        return [self._proposal(one) if self._proposal else one for one in proposals]


class Drawing:
    """A source that draws from another row than the one it is given, which is the one that gets reported."""

    def __init__(self, source: Source, twist: Callable[[Tensor], Tensor]) -> None:
        self._source, self._twist = source, twist

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """A token of the twisted row."""
        return self._source.draw(self._twist(row), key)

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """As it should be."""
        return self._source.ranked(row, k, position)


def drawn_from(twist: Callable[[Tensor], Tensor]) -> Callable[[Ask], Ask]:
    """The drafter draws from twist(row) and reports the row."""
    return lambda ask: replace(ask, source=Drawing(ask.source, twist))


def told(twist: Callable[[Tensor], Tensor]) -> Callable[[Proposal], Proposal]:
    """The drafter draws from the row and reports twist(row)."""

    def change(proposal: Proposal) -> Proposal:
        rows = proposal.probs
        return proposal if rows is None else replace(proposal, probs=torch.stack([twist(row) for row in rows]))

    return change


def argmax_of(row: Tensor) -> Tensor:
    """[V] one-hot at the likeliest token."""
    return torch.nn.functional.one_hot(row.argmax(), len(row)).to(row.dtype)


def top_two(row: Tensor) -> Tensor:
    """[V] the row cut to its two likeliest tokens."""
    return probabilities(row.log()[None], SamplingParams(temperature=1.0, top_k=2))[0]


def flatter(row: Tensor) -> Tensor:
    """[V] the row at temperature 2."""
    return probabilities(row.log()[None], SamplingParams(temperature=2.0))[0]


def unlikely_withdrawn(proposal: Proposal) -> Proposal:
    """A chain cut before its first drawn token with a draft probability under one half."""
    assert proposal.probs is not None
    sure = proposal.probs.gather(1, proposal.tokens[:, None])[:, 0] >= 0.5
    length = len(proposal) if bool(sure.all()) else int((~sure).int().argmax())
    return Proposal(proposal.tokens[:length], proposal.parents[:length], proposal.probs[:length])


def row_of_the_eldest(proposal: Proposal) -> Proposal:
    """Siblings drawn without replacement, told as if drawn with it: all carry the eldest's row."""
    assert proposal.probs is not None
    kids = tree.children(proposal.parents)
    return replace(proposal, probs=proposal.probs[[kids[parent][0] for parent in proposal.parents]])


# --- sources ---------------------------------------------------------------------------------------------------


class UniformReused:
    """The uniform that drew the first draft token decides about accepting it, too."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.ranked = source.ranked

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """Under the draft's key where the stop is drawn."""
        return self._source.draw(row, Key(key.position, "draft", 0) if key.use == "stop" else key)


class SharedNoise:
    """Draft tokens and corrections are picked with the noise of their position, acceptance by ratio."""

    def __init__(self, source: Source) -> None:
        self._source, self._stop = source, 0
        self.ranked = source.ranked

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """By Gumbel-max, except for the stop; in a chain the i-th draft token stands i places on."""
        if key.use == "stop":
            stop = self._source.draw(row, key)
            self._stop = int(stop)
            return stop
        at = key.index if key.use == "draft" else self._stop
        return self._source.ranked(row, 1, key.position + at)[0]


class StuckNoise:
    """Two neighbouring positions share their noise."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.draw = source.draw

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """With the noise of the odd one."""
        return self._source.ranked(row, k, position | 1)


# --- samplers --------------------------------------------------------------------------------------------------


class WrongPrefix(FastSampler):
    """Every node is given the committed prefix, without the draft tokens before it."""

    def scores(self, logits: Tensor, context: Sequence[int], proposal: Proposal, nodes: Sequence[int]) -> Tensor:
        """As if all rows stood at the root."""
        return super().scores(logits, context, proposal, [tree.ROOT] * len(nodes))


class GarbageTemperature(FastSampler):
    """Rows behind the first are taken at another temperature, as when parameters are expanded to the wrong rows."""

    def probabilities(self, scores: Tensor) -> Tensor:
        """Row 0 right, the rest at twice the temperature."""
        hot = replace(self.params, temperature=2 * self.params.temperature)
        return torch.cat([probabilities(scores[:1], self.params), probabilities(scores[1:], hot)])
