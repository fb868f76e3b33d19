"""The draft length by cost: each step drafts as many tokens as are expected to raise tokens per second, 0 included.

A step that drafts n tokens commits E(n) = 1 + a_1 + a_1 a_2 + ... tokens and takes T(n) seconds. A text is written
fastest when every step takes the n with the largest E(n) - r T(n), r being the tokens per second written so far: a
renewal-reward process in the long run (Ross, "Stochastic Processes", section 3.6). T is measured (`costs.py`), the
chances a_i are learned from what became of the request's earlier drafts.

What is written stays the target's: a length is settled before a token is drawn, only chosen tokens are cut behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from draftproof import tree
from draftproof.contracts import Ask, Drafter, DraftSession
from draftproof.types import Proposal, chain

AUTO_GAMMA = 24
_GUESS = 0.6
_TRUST = 3.0
_MEMORY = 0.97
_DEEPEST_CLASS = 8
_FIRST_WAIT = 8
_LONGEST_WAIT = 256


@dataclass(frozen=True)
class Curve:
    """Seconds by a count, as measured at some counts: linear between and behind them, never falling.

    Other programs only ever add time, so a count costs no more than what a larger one took.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.points]
        if not counts or counts != sorted(set(counts)) or any(not seconds >= 0 for _, seconds in self.points):
            raise ValueError("a cost curve needs ascending counts with seconds of at least 0")

    @cached_property
    def _rising(self) -> list[tuple[int, float]]:
        return [(at, min(seconds for _, seconds in self.points[i:])) for i, (at, _) in enumerate(self.points)]

    def at(self, count: float) -> float:
        """Seconds at this count."""
        rising = self._rising
        if count <= rising[0][0] or len(rising) == 1:
            return rising[0][1]
        upper = next((i for i, (at, _) in enumerate(rising) if at >= count), len(rising) - 1)
        (x0, y0), (x1, y1) = rising[upper - 1], rising[upper]
        return y0 + (y1 - y0) * (count - x0) / (x1 - x0)


@dataclass(frozen=True)
class Costs:
    """verify: seconds of a step that puts so many tokens to the target. drafts: by drafter, of so many draft tokens."""

    verify: Curve
    drafts: dict[str, Curve] = field(default_factory=dict)

    def draft(self, depth: int, drafter: str) -> float:
        """Seconds of drafting so many tokens; none for a drafter that looks up."""
        return self.drafts[drafter].at(depth) if depth and drafter in self.drafts else 0.0

    def step(self, depth: int, drafter: str, requests: int = 1) -> float:
        """A request's share of a step in which `requests` of them draft `depth` tokens each."""
        return self.verify.at(requests * (1 + depth)) / requests + self.draft(depth, drafter)


class Odds:
    """How often draft tokens of a class were taken once their parent was: counts that fade, around a guess."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, float], tuple[float, float]] = {}

    def chance(self, drafter: str, kind: float, guess: float) -> float:
        """The chance of this class; the guess counts as a few tries."""
        taken, tries = self._counts.get((drafter, kind), (0.0, 0.0))
        return (taken + _TRUST * guess) / (tries + _TRUST)

    def learn(self, drafter: str, kind: float, taken: bool) -> None:
        """One more draft token of this class."""
        before = self._counts.get((drafter, kind), (0.0, 0.0))
        self._counts[drafter, kind] = (before[0] * _MEMORY + taken, before[1] * _MEMORY + 1)


@dataclass
class Pace:
    """Tokens per second of the request, in the seconds of the cost curve; it begins as plain decoding's."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def add(self, tokens: int, seconds: float) -> None:
        """One more step."""
        self.tokens = self.tokens * _MEMORY + tokens
        self.seconds = self.seconds * _MEMORY + seconds


@dataclass(frozen=True)
class Choice:
    """So many tokens of this drafter; `worth` is E(n) - r T(n)."""

    worth: float
    depth: int = 0
    drafter: str = ""


def best_depth(chances: Sequence[float], costs: Costs, drafter: str, rate: float, requests: int = 1) -> Choice:
    """The depth 0 ... len(chances) of the largest worth; chances[i]: of token i + 1 once the i before it are taken."""
    choice = Choice(1 - rate * costs.step(0, drafter, requests), 0, drafter)
    expected = reach = 1.0
    for depth, chance in enumerate(chances, 1):
        reach *= chance
        expected += reach
        worth = expected - rate * costs.step(depth, drafter, requests)
        if worth > choice.worth:
            choice = Choice(worth, depth, drafter)
    return choice


class AutoLength:
    """A drafter that asks others for as many tokens as pay at the moment, and the one that pays best.

    looks: drafters whose tokens cost next to nothing and say how sure they are (`Proposal.confidence`): they are
    always asked, and cut. drafts: at most one whose every token costs a forward: its length is settled beforehand.
    """

    def __init__(self, looks: Sequence[Drafter], drafts: Sequence[Drafter], costs: Costs) -> None:
        parts = (*looks, *drafts)
        self.looks, self.drafts, self.costs = tuple(looks), tuple(drafts), costs
        self.name = "+".join(part.name for part in parts)
        self.layers = tuple(sorted({layer for part in parts for layer in part.layers}))
        self.draws, self.branches = any(part.draws for part in parts), any(part.branches for part in parts)
        self.gamma = max(part.gamma for part in parts)

    def start(self, target: Any) -> DraftSession:
        """The parts' sessions, and what the request has taught so far."""
        sessions = [part.start(target) for part in (*self.looks, *self.drafts)]
        return _Sized(self, sessions, chain([], device=target.model.device))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Look-ups for all, cut to what pays; the other drafter for the requests in which it promises more."""
        own = [ask.session for ask in asks if isinstance(ask.session, _Sized)]
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
            drafted = part.propose([_for(asks[j], own[j], i, choices[j].depth) for j in those]) if those else []
            for j, proposal in zip(those, drafted, strict=True):
                made[j] = proposal
        named = [replace(one, drafter=choice.drafter) for one, choice in zip(made, choices, strict=True)]
        for session, proposal in zip(own, named, strict=True):
            session.proposed = proposal
        return named


class _Sized:
    """One request: the sessions of the parts, the odds of their tokens, its pace."""

    def __init__(self, drafter: AutoLength, sessions: list[DraftSession], nothing: Proposal) -> None:
        self.drafter, self.sessions = drafter, sessions
        self.odds = Odds()
        plain = drafter.costs.step(0, "")
        self.pace = Pace(_FIRST_WAIT, _FIRST_WAIT * plain)
        self.proposed: Proposal | None = None
        self._nothing, self._looked = nothing, dict[str, Proposal]()
        self._cost, self._at = plain, 0
        self._idle, self._wait = 0, _FIRST_WAIT

    def settle(self, ask: Ask, looked: Sequence[Proposal], requests: int) -> Choice:
        """What pays best now. Lengths that could change the text must not depend on who else is in the call."""
        alike = requests if ask.coupled or ask.policy.greedy else 1
        drafter, costs, rate = self.drafter, self.drafter.costs, self.pace.rate
        self._looked = {part.name: found for part, found in zip(drafter.looks, looked, strict=True)}
        choice = Choice(1 - rate * costs.step(0, "", alike))
        for name, found in self._looked.items():
            chances = [self.odds.chance(name, round(sure, 1), sure) for sure in found.confidence]
            choice = max(choice, best_depth(chances, costs, name, rate, alike), key=lambda one: one.worth)
        for part in drafter.drafts:
            chances = [self._at_depth(part.name, depth) for depth in range(1, min(ask.depth, part.gamma) + 1)]
            choice = max(choice, best_depth(chances, costs, part.name, rate, alike), key=lambda one: one.worth)
        choice = self._try_again(choice)
        self._cost, self._at = costs.step(choice.depth, choice.drafter, alike), len(ask.context)
        return choice

    def _at_depth(self, name: str, depth: int) -> float:
        """The chance at a depth, drawn towards that of all depths together."""
        return self.odds.chance(name, min(depth, _DEEPEST_CLASS), self.odds.chance(name, 0, _GUESS))

    def _try_again(self, choice: Choice) -> Choice:
        """What is never tried is never learned: one draft token now and then, at twice the distance each time."""
        drafts = self.drafter.drafts
        if choice.depth or not drafts:
            self._idle = 0
            self._wait = _FIRST_WAIT if choice.drafter in {part.name for part in drafts} else self._wait
            return choice
        self._idle += 1
        if self._idle < self._wait:
            return choice
        self._idle, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        return Choice(choice.worth, 1, drafts[0].name)

    def cut(self, choice: Choice) -> Proposal:
        """The look-up that was chosen, as far as it pays; otherwise nothing."""
        found = self._looked.get(choice.drafter, self._nothing)
        depth = choice.depth
        return replace(
            found, tokens=found.tokens[:depth], parents=found.parents[:depth], confidence=found.confidence[:depth]
        )

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Learn from the tokens that were committed, then tell the parts."""
        # A chunk of a long prompt says nothing of the proposal that waits for its verdict.
        proposed = None
        if len(context) > self._at:
            proposed, self.proposed = self.proposed, None
        if proposed is not None:
            new = context[self._at :]
            self.pace.add(len(new), self._cost)
            self._learn(new, proposed, drafted)
        for part, session in zip((*self.drafter.looks, *self.drafter.drafts), self.sessions, strict=True):
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
        self._looked = {}

    def _states(self, part: Drafter, hidden: Tensor | None) -> Tensor | None:
        if hidden is None or not part.layers:
            return None
        return hidden[:, [self.drafter.layers.index(layer) for layer in part.layers]]


def _for(ask: Ask, session: _Sized, part: int, depth: int | None = None) -> Ask:
    """The same ask for one of the parts."""
    return replace(ask, session=session.sessions[part], depth=ask.depth if depth is None else depth)


def _taken(tokens: Sequence[int], new: Sequence[int]) -> list[bool]:
    """Which of the chain's tokens the target wrote itself, up to the first that it did not."""
    same = [token == written for token, written in zip(tokens, new, strict=False)]
    return same[: same.index(False) + 1] if False in same else same
