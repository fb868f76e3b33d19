"""Several drafters in one: each is asked where those before it had nothing to propose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Ask, Drafter, DraftSession
from draftproof.device import upload
from draftproof.types import Proposal, chain


class ChainedDrafter:
    """`ngram+lowbit`: look-up first, the other where there is no match. Every proposal says who made it.

    Whether a drafter proposes anything is settled before it draws, so no drawn token is withdrawn by the order.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)
        self.layers: tuple[int, ...] = tuple(sorted({layer for drafter in drafters for layer in drafter.layers}))
        self.draws = any(drafter.draws for drafter in drafters)
        self.branches = any(drafter.branches for drafter in drafters)
        self.gamma = max(drafter.gamma for drafter in drafters)

    def start(self, target: Any) -> DraftSession:
        """The state of every drafter for one request."""
        sessions = [drafter.start(target) for drafter in self.drafters]
        places = [[self.layers.index(layer) for layer in drafter.layers] for drafter in self.drafters]
        return _ChainedSession(sessions, places, chain([], device=target.model.device))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Each drafter in its turn, batched over the requests that have no draft yet."""
        sessions = [ask.session for ask in asks if isinstance(ask.session, _ChainedSession)]
        for session in sessions:
            session.forget()
        for number, drafter in enumerate(self.drafters):
            open_ = [i for i, session in enumerate(sessions) if not len(session.proposal)]
            inner = [
                replace(asks[i], session=sessions[i].parts[number], depth=min(asks[i].depth, drafter.gamma))
                for i in open_
            ]
            for i, proposal in zip(open_, drafter.propose(inner) if inner else [], strict=True):
                sessions[i].take(number, replace(proposal, drafter=proposal.drafter or drafter.name))
        return [session.proposal for session in sessions]


@dataclass(eq=False)
class _ChainedSession:
    """One request's state in every drafter, and who proposed last (-1: nobody)."""

    parts: Sequence[DraftSession]
    places: Sequence[Sequence[int]]
    nothing: Proposal

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A new step begins."""
        self.proposal, self._number = self.nothing, -1

    def take(self, number: int, proposal: Proposal) -> None:
        """The proposal of one drafter, if it made one."""
        if len(proposal):
            self.proposal, self._number = proposal, number

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Each drafter is told of the text, of its own draft tokens, and of the states it wants."""
        for number, (part, places) in enumerate(zip(self.parts, self.places, strict=True)):
            own = drafted if number == self._number else ()
            part.observe(context, own, None if hidden is None or not places else _states(hidden, places))
        self.forget()


def _states(hidden: Tensor, places: Sequence[int]) -> Tensor:
    """[n, layers of one drafter, H]."""
    return torch.index_select(hidden, 1, upload(places, hidden.device))
