"""The draft length by cost: each step drafts as many tokens as are expected to raise tokens per second, 0 included.

A step that drafts n tokens commits E(n) = 1 + a_1 + a_1 a_2 + ... tokens and takes T(n) seconds. A text is written
fastest when every step takes the n with the largest E(n) - r T(n), r being the tokens per second written so far: a
renewal-reward process in the long run (Ross, "Stochastic Processes", section 3.6). T is measured (`costs.py`), the
chances a_i are learned from what became of the request's earlier drafts. A drafter that can say how sure it is of its
tokens goes on, token by token, for as long as one more pays (`patience.py`).

What is written stays the target's: whether a token is drawn is settled before it is, only chosen ones are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, Drafter, DraftSession
from draftproof.drafters.cost_curves import Costs, Tuned
from draftproof.drafters.odds import Choice, Odds, Pace, Turns, best_depth
from draftproof.drafters.patience import Patience, always, class_of, drawn_chance
from draftproof.types import Proposal, chain

AUTO_GAMMA = 24
_GUESS = 0.6
_DEEPEST_CLASS = 8
_FIRST_WAIT = 8
_LONGEST_WAIT = 256
_STRETCH = 64  # tokens of context over which costs count as the same
_GUESSED = -1.0  # a class of tokens that is no depth and no confidence
_NONE: Mapping[str, float] = MappingProxyType({})


class AutoLength:
    """A drafter that asks others for as many tokens as pay at the moment, and the one that pays best.

    looks: drafters whose tokens cost next to nothing and say how sure they are (`Proposal.confidence`): they are
    always asked, and cut. drafts: those whose every token costs something; the one that promises most is asked, and
    the others are tried now and then.
    """

    def __init__(
        self,
        looks: Sequence[Drafter],
        drafts: Sequence[Drafter],
        costs: Costs,
        guesses: Mapping[str, float] = _NONE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """guesses: the chance of a drafter's tokens before the request has taught better, by its name.

        clock: in seconds; with it the costs follow the steps' own times wherever no length can change the text.
        """
        self.parts = parts = (*looks, *drafts)
        self.guesses, self.clock, self.tuned = guesses, clock, Tuned(costs)
        self.looks, self.drafts, self.costs = tuple(looks), tuple(drafts), costs
        self._measured = lru_cache(maxsize=256)(lambda length, shares: costs.behind(length).called(dict(shares)))
        self.name = "+".join(part.name for part in parts)
        self.layers = tuple(sorted({layer for part in parts for layer in part.layers}))
        self.draws, self.branches = any(part.draws for part in parts), any(part.branches for part in parts)
        self.gamma = max(part.gamma for part in parts)

    def start(self, target: Any) -> DraftSession:
        """The parts' sessions, and what the request has taught so far."""
        sessions = [part.start(target) for part in self.parts]
        return _Sized(self, sessions, chain([], device=target.model.device))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Look-ups for all, cut to what pays; the other drafter for the requests in which it promises more."""
        own = [ask.session for ask in asks if isinstance(ask.session, _Sized)]
        begun = self._now()
        looked = [
            part.propose([_for(ask, session, i) for ask, session in zip(asks, own, strict=True)])
            for i, part in enumerate(self.looks)
        ]
        choices = [
            session.settle(ask, [found[i] for found in looked], len(asks))
            for i, (ask, session) in enumerate(zip(asks, own, strict=True))
        ]
        made = [session.cut(choice) for session, choice in zip(own, choices, strict=True)]
        for i, part in enumerate(self.drafts, len(self.looks)):
            those = [j for j, choice in enumerate(choices) if choice.depth and choice.drafter == part.name]
            wanted = [own[j].wanted(asks[j], i, choices[j]) for j in those]
            for j, proposal in zip(those, part.propose(wanted) if those else [], strict=True):
                made[j] = own[j].made(proposal, choices[j])
        for session, proposal in zip(own, made, strict=True):
            session.proposed = proposal
            session.times = (begun, self._now()) if len(asks) == 1 else None
        return made

    def _now(self) -> float:
        return 0.0 if self.clock is None else self.clock()

    def costs_for(self, ask: Ask, guessed: Callable[[str], float]) -> Costs | Tuned:
        """Those measured where another length would be another text: the clock must not decide on that.

        guessed: the share of a drafter's tokens that look-up guesses in this request.
        """
        if self.clock is not None and _free(ask):
            return self.tuned
        shares = tuple((part.name, 1 - class_of(guessed(part.name))) for part in self.drafts)
        return self._measured(len(ask.context) // _STRETCH * _STRETCH, shares)


class _Sized:
    """One request: the sessions of the parts, the odds of their tokens, its pace."""

    def __init__(self, drafter: AutoLength, sessions: list[DraftSession], nothing: Proposal) -> None:
        self.drafter, self.sessions = drafter, sessions
        self.odds, self.sureness = Odds(), Odds()
        self.pace: Pace | None = None
        self.proposed: Proposal | None = None
        self.times: tuple[float, float] | None = None
        self._nothing, self._looked = nothing, dict[str, Proposal]()
        self._cost, self._at = 0.0, 0
        self._turns = {part.name: Turns(_FIRST_WAIT, _LONGEST_WAIT) for part in drafter.drafts}
        self._telling = set[str]()  # drafters that have said how sure they are
        self._price: Callable[[int], float] = partial(drafter.costs.step, drafter="")

    def settle(self, ask: Ask, looked: Sequence[Proposal], requests: int) -> Choice:
        """What pays best now. Lengths that could change the text must not depend on who else is in the call."""
        alike = requests if _free(ask) else 1
        drafter, costs = self.drafter, self.drafter.costs_for(ask, lambda name: self.odds.chance(name, _GUESSED, 0.0))
        if self.pace is None:
            self.pace = Pace(_FIRST_WAIT, _FIRST_WAIT * costs.step(0, ""))
        rate = self.pace.rate
        self._looked = {part.name: found for part, found in zip(drafter.looks, looked, strict=True)}
        choice = Choice(1 - rate * costs.step(0, "", alike))
        ways = [
            (name, partial(self._by_sureness, name, found), len(found.confidence))
            for name, found in self._looked.items()
        ]
        ways += [(one.name, partial(self._at_depth, one.name), min(ask.depth, one.gamma)) for one in drafter.drafts]
        for name, chance, most in ways:
            price = partial(_price, rate, costs, name, alike)
            choice = max(choice, best_depth(chance, most, price, name), key=lambda one: one.worth)
        choice = self._try_again(choice)
        if costs is drafter.tuned and drafter.tuned.stale:
            choice = Choice(choice.worth)
        self._price = partial(costs.step, drafter=choice.drafter, requests=alike)
        self._cost, self._at = self._price(choice.depth), len(ask.context)
        return choice

    def wanted(self, ask: Ask, part: int, choice: Choice) -> Ask:
        """The ask for the part that was chosen. It may go on beyond the length while it is sure of its tokens.

        A drafter that has never said so is only asked to say it.
        """
        name, inner = choice.drafter, _for(ask, self, part, choice.depth)
        if choice.trial or self.pace is None:
            return inner
        if name not in self._telling:
            return replace(inner, go_on=always)
        rate, price = self.pace.rate, self._price
        guess = drawn_chance if self.drafter.parts[part].draws and not ask.policy.greedy else float
        patience = Patience(
            lambda sure: self.sureness.chance(name, class_of(sure), guess(sure)),
            lambda depth: self._at_depth(name, depth),
            lambda depth: rate * (price(depth) - price(depth - 1)),
        )
        return replace(inner, depth=ask.depth, go_on=patience)

    def made(self, proposal: Proposal, choice: Choice) -> Proposal:
        """A part's proposal, whose length is known only now."""
        if proposal.confidence:
            self._telling.add(choice.drafter)
        for number in range(len(proposal) - 1):
            self.odds.learn(choice.drafter, _GUESSED, number < proposal.guessed)
        self._cost = self._price(len(proposal))
        return replace(proposal, drafter=choice.drafter)

    def _by_sureness(self, name: str, found: Proposal, depth: int) -> float:
        """The chance of a looked-up token by what the look-up says of it."""
        sure = found.confidence[depth - 1]
        return self.odds.chance(name, round(sure, 1), sure)

    def _at_depth(self, name: str, depth: int) -> float:
        """The chance at a depth, drawn towards that of all depths together."""
        guess = self.drafter.guesses.get(name, _GUESS)
        return self.odds.chance(name, min(depth, _DEEPEST_CLASS), self.odds.chance(name, 0, guess))

    def _try_again(self, choice: Choice) -> Choice:
        """What is never tried is never learned: one draft token now and then, at twice the distance each time."""
        if choice.depth and choice.drafter in self._looked:
            return choice
        for name, turns in self._turns.items():
            if choice.depth and choice.drafter == name:
                turns.chosen()
            elif turns.due():
                return Choice(choice.worth, 1, name, trial=True)
        return choice

    def cut(self, choice: Choice) -> Proposal:
        """The look-up that was chosen, as far as it pays; otherwise nothing."""
        found, depth = self._looked.get(choice.drafter), choice.depth
        if found is None or not depth:
            return self._nothing
        sure = found.confidence[:depth]
        return Proposal(found.tokens[:depth], found.parents[:depth], confidence=sure, drafter=choice.drafter)

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Learn from the tokens that were committed, then tell the parts."""
        # A chunk of a long prompt says nothing of the proposal that waits for its verdict.
        proposed = None
        if len(context) > self._at:
            proposed, self.proposed = self.proposed, None
        if proposed is not None and self.pace is not None:
            new = context[self._at :]
            self.pace.add(len(new), self._cost)
            self._learn(new, proposed, drafted)
            self._time(proposed)
        for part, session in zip(self.drafter.parts, self.sessions, strict=True):
            made_here = proposed is not None and proposed.drafter == part.name
            session.observe(context, drafted if made_here else (), self._states(part, hidden))

    def _learn(self, new: Sequence[int], proposed: Proposal, drafted: Sequence[int]) -> None:
        """A look-up is compared whole, also what was cut: its tokens are known, and so is what the target wrote."""
        for name, found in self._looked.items():
            tokens = found.tokens.tolist() if found.tokens.device.type == "cpu" else drafted
            for sure, taken in zip(found.confidence, _taken(tokens, new), strict=False):
                self.odds.learn(name, round(sure, 1), taken)
        if proposed.drafter in {part.name for part in self.drafter.drafts} and tree.is_chain(proposed.parents):
            for depth, taken in enumerate(_taken(drafted, new), 1):
                self.odds.learn(proposed.drafter, 0, taken)
                self.odds.learn(proposed.drafter, min(depth, _DEEPEST_CLASS), taken)
            for sure, taken in zip(proposed.confidence, _taken(drafted, new), strict=False):
                self.sureness.learn(proposed.drafter, class_of(sure), taken)
        self._looked = {}

    def _time(self, proposed: Proposal) -> None:
        """What the step took is known when its tokens come back."""
        now = self.drafter.clock
        if now is not None and self.times is not None:
            begun, sent = self.times
            self.drafter.tuned.learn(len(proposed), proposed.drafter, sent - begun, now() - sent)
        self.times = None

    def _states(self, part: Drafter, hidden: Tensor | None) -> Tensor | None:
        if hidden is None or not part.layers:
            return None
        return hidden[:, [self.drafter.layers.index(layer) for layer in part.layers]]


def _price(rate: float, costs: Costs | Tuned, name: str, requests: int, depth: int) -> float:
    """Tokens that the request could write in the time of such a step."""
    return rate * costs.step(depth, name, requests)


def _free(ask: Ask) -> bool:
    """Is the text the same whatever is drafted?"""
    return ask.coupled or ask.policy.greedy


def _for(ask: Ask, session: _Sized, part: int, depth: int | None = None) -> Ask:
    """The same ask for one of the parts."""
    return replace(ask, session=session.sessions[part], depth=ask.depth if depth is None else depth)


def _taken(tokens: Sequence[int], new: Sequence[int]) -> list[bool]:
    """Which of the chain's tokens the target wrote itself, up to the first that it did not."""
    same = [token == written for token, written in zip(tokens, new, strict=False)]
    return same[: same.index(False) + 1] if False in same else same
