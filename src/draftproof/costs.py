"""What a step costs on this machine, by draft length: measured by running the engine, then remembered.

Remembered, because lengths chosen from another measurement would give a seed another text under the ratio rules.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from draftproof.contracts import Ask, Drafter, DraftSession, Model
from draftproof.cost_memory import remembered
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AUTO_GAMMA, AutoLength
from draftproof.engine import Engine
from draftproof.files import cache_folder
from draftproof.request import Request
from draftproof.stats import total
from draftproof.types import InputError, Proposal, SamplingParams, Timing, chain
from draftproof.verify import CoupledRule

_CONTEXT = 64
_FURTHER = 1024
_LONGEST_READ = 5.0  # seconds that reading the longer text may take
_FIRST_COUNTS = (1, 8, 4, AUTO_GAMMA + 1)
_OTHER_COUNTS = (2, 6, 12, 3, 16, 5, 10, 20)
_DRAFT_DEPTHS = (1, 4)
_MOST_ROUNDS = 9
_FIRST_ROUNDS = 2


@dataclass(frozen=True)
class Part:
    """A drafter whose length is to follow cost.

    looks  its tokens cost no forward
    spec   the name of its costs
    guess  the chance of its tokens, before a request has taught better
    """

    drafter: Drafter
    looks: bool
    spec: str
    guess: float


def by_cost(parts: Sequence[Part], target: Model) -> Drafter:
    """The drafters in one, lengths chosen step by step. InputError for one of trees."""
    for part in parts:
        if part.drafter.branches:
            raise InputError(f"the length of a tree is its shape: give {part.spec} a gamma, or no shape and width.")
    paid = [part for part in parts if not part.looks]
    name = " ".join([target.name, target.dtype, str(target.device), "+".join(part.spec for part in paid)])
    drafts = [part.drafter for part in paid]
    known = remembered(name, cache_folder() / "costs", lambda: measure(target, drafts))
    guesses = {part.drafter.name: part.guess for part in paid}
    return AutoLength([part.drafter for part in parts if part.looks], drafts, known, guesses, time.perf_counter)


def measure(target: Model, drafts: Sequence[Drafter], seconds: float = 2.0) -> Costs:
    """Costs of steps of one request behind a short text, and behind a longer one where the target reads it soon.

    seconds: for each of both; a large model takes longer, since a few counts are measured twice whatever it costs.
    """
    began = time.perf_counter()
    most = target.max_context
    short = _Bench(target, drafts, _CONTEXT if most is None else min(_CONTEXT, most // 2))
    reading = (time.perf_counter() - began) / (1 + len(drafts))
    costs = short.costs(_OTHER_COUNTS, seconds)
    if (most is not None and most < 2 * _FURTHER) or reading * _FURTHER / _CONTEXT > _LONGEST_READ:
        return costs
    return replace(costs, further=_Bench(target, drafts, _FURTHER).costs((), seconds))


class _Bench:
    """Requests behind a text of so many tokens: one whose drafts are given, one for each drafter."""

    def __init__(self, target: Model, drafts: Sequence[Drafter], context: int) -> None:
        self.context = context
        self._given = _Fixed(target, _Given(), context, 0.0)
        # Drawn texts hardly repeat themselves, so that no draft is cheap because look-up guesses it.
        self._drafts = {part.name: _Fixed(target, part, context, 1.0) for part in drafts}

    def costs(self, others: Sequence[int], seconds: float) -> Costs:
        """In rounds of all counts, for as long as the seconds last.

        A count's share of a plain step is its median over the rounds, each of which sees the machine in one state; a
        plain step is the least of all, since other programs only ever add time.
        """
        rounds = list(self._rounds(others, seconds))
        unit = min(one["", 1] for one in rounds)

        def curve(drafter: str) -> Curve:
            counts = sorted({count for one in rounds for name, count in one if name == drafter})
            shares = {n: [one[drafter, n] / one["", 1] for one in rounds if (drafter, n) in one] for n in counts}
            return Curve(tuple((n, unit * median(share)) for n, share in shares.items()))

        return Costs(curve(""), {name: curve(name) for name in self._drafts}, self.context)

    def _rounds(self, others: Sequence[int], seconds: float) -> Iterator[dict[tuple[str, int], float]]:
        """Seconds by drafter and its draft tokens, and, without a name, by tokens put to the target."""
        began = time.perf_counter()
        for number in range(_MOST_ROUNDS):
            if number >= _FIRST_ROUNDS and time.perf_counter() - began > seconds:
                return
            counts = (*_FIRST_COUNTS, *(others if number >= _FIRST_ROUNDS else ()))
            took = {("", count): self._verifying(count) for count in counts}
            for name, drafting in self._drafts.items():
                took |= {(name, depth): drafting.step(depth).draft for depth in _DRAFT_DEPTHS}
            took["", 1] = min(took["", 1], self._verifying(1))
            yield took

    def _verifying(self, count: int) -> float:
        """Seconds of a whole step that puts so many tokens to the target, drafting not counted."""
        timing = self._given.step(count - 1)
        return total(timing) - timing.draft


class _Fixed:
    """A request whose drafter is asked for so many tokens, whatever is wanted. One that has ended begins again."""

    def __init__(self, target: Model, part: Drafter, context: int, temperature: float) -> None:
        self._params = SamplingParams(max_tokens=2**31, temperature=temperature, seed=0)
        self.name, self.layers, self.draws, self.branches = part.name, part.layers, part.draws, part.branches
        self.gamma, self.start, self._part, self._depth = part.gamma, part.start, part, 0
        self._prompt = [(7 * i + 1) % target.vocab_size for i in range(context)]
        self._engine = Engine(target, self, CoupledRule())
        self._request = self._begin()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The drafter's own."""
        return self._part.propose([replace(ask, depth=min(ask.depth, self._depth)) for ask in asks])

    def step(self, depth: int) -> Timing:
        """One step with so many draft tokens, behind the text."""
        if self._request.finish_reason is not None:
            self._request = self._begin()
        return self._step(self._request, depth)

    def _begin(self) -> Request:
        request = self._engine.submit(self._prompt, self._params)
        while len(request.context) == len(self._prompt) and request.finish_reason is None:
            self._step(request, 0)
        self._step(request, _DRAFT_DEPTHS[0])  # a drafter's first call reads the text
        if request.finish_reason is not None:
            raise InputError("no draft fits into the model's context: give a gamma, or no drafter.")
        return request

    def _step(self, request: Request, depth: int) -> Timing:
        self._depth = depth
        (step,) = self._engine.step([request])
        if step.error is not None:
            raise InputError(step.error)
        return step.timing


class _Given:
    """Proposes any tokens; what is measured is what it costs to verify them."""

    name = "given"
    layers: tuple[int, ...] = ()
    draws = branches = False
    gamma = AUTO_GAMMA

    def start(self, target: Any) -> DraftSession:
        """Nothing to remember."""
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        """Nothing to learn."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The last tokens of the text once more."""
        return [chain(ask.context[max(0, len(ask.context) - ask.depth) :]) for ask in asks]
