"""Several drafters that cost something: the one that pays most is found, and the others are tried rarely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from toys import run, shared_target

from draftproof.contracts import Ask
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AutoLength
from draftproof.drafters.null import NullDrafter
from draftproof.drafters.odds import Turns
from draftproof.engine import Engine
from draftproof.types import Proposal, SamplingParams, chain
from draftproof.verify import CoupledRule

COSTS = Costs(Curve(((1, 1.0), (17, 1.6))), {"good": Curve(((1, 0.2), (8, 1.6))), "bad": Curve(((1, 0.2), (8, 1.6)))})


class Sometimes:
    """The plain text, wrong at every place that `wrong` divides."""

    layers: tuple[int, ...] = ()
    draws = branches = False
    gamma = 8

    def __init__(self, name: str, text: Sequence[int], wrong: int) -> None:
        self.name, self.text, self.wrong = name, text, wrong

    def start(self, target: Any) -> Sometimes:
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        pass

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._one(len(ask.context), ask.depth) for ask in asks]

    def _one(self, at: int, depth: int) -> Proposal:
        right = enumerate(self.text[at : at + depth], at)
        return chain([(token + (place % self.wrong == 0)) % 16 for place, token in right])


@pytest.mark.parametrize("order", [("good", "bad"), ("bad", "good")])
@pytest.mark.parametrize("hoped", ["good", "bad"])
def test_the_better_drafter_is_found_whatever_was_hoped_of_either(order: tuple[str, str], hoped: str) -> None:
    plain = run(Engine(shared_target(), NullDrafter(), CoupledRule()), SamplingParams(max_tokens=500))[0]
    text = [0, 1, 0, *plain]
    known = {"good": Sometimes("good", text, 9), "bad": Sometimes("bad", text, 2)}
    guesses = {name: 0.95 if name == hoped else 0.5 for name in known}
    made = AutoLength([], [known[name] for name in order], COSTS, guesses)
    written, steps = run(Engine(shared_target(), made, CoupledRule()), SamplingParams(max_tokens=400))
    assert written == plain[:400]
    late = Counter(step.drafter for step in steps[len(steps) // 4 :] if step.num_draft_tokens)
    assert late["good"] > 5 * late["bad"] and late["bad"] <= 8


def test_trials_become_rarer_until_the_drafter_is_chosen_again() -> None:
    turns = Turns(2, 8)
    assert [step for step in range(1, 40) if turns.due()] == [2, 6, 14, 22, 30, 38]
    turns.chosen()
    assert [step for step in range(1, 8) if turns.due()] == [2, 6]
