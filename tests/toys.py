"""Small things the tests share: toy engines by name, and a plain run to compare with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from draftproof.contracts import Drafter, Rule
from draftproof.drafters.chained import ChainedDrafter
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.length import AutoLength
from draftproof.drafters.lowbit import LowBitDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.toy import ToyModel
from draftproof.stats import Stats
from draftproof.types import SamplingParams, Step
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

Make = Callable[[ToyModel, int], Drafter]
RULES: dict[str, Callable[[], Rule | CoupledRule]] = {
    "token": TokenRule,
    "block": BlockRule,
    "tree": TreeRule,
    "coupled": CoupledRule,
}


@cache
def shared_target() -> ToyModel:
    """The target of most tests; its rows are computed once."""
    return ToyModel(7)


@cache
def _near(size: int, weight: float) -> ToyModel:
    return ToyModel(99, size, near=(7, weight))


def near(target: ToyModel, weight: float = 0.7) -> ToyModel:
    """A draft model whose rows lie between its own and the target's."""
    return _near(target.vocab_size, weight)


def _model(widths: str, children: str) -> Make:
    return lambda target, gamma: ModelDrafter(near(target), target.vocab_size, Shape.of(gamma, widths, children))


def _exit(widths: str, children: str) -> Make:
    return lambda target, gamma: EarlyExitDrafter(target, 3, Shape.of(gamma, widths, children))


COSTS = Costs(Curve(((1, 1.0), (6, 1.3), (12, 2.4))), {"model": Curve(((1, 0.2), (4, 0.8)))})


def _by_cost(target: ToyModel, gamma: int) -> Drafter:
    looks, drafts = DRAFTERS["ngram"](target, gamma), DRAFTERS["model"](target, gamma)
    return AutoLength([looks], [drafts], COSTS)


def _lowbit(widths: str, children: str, vocab: int = 0) -> Make:
    def make(target: ToyModel, gamma: int) -> Drafter:
        twin = target.lowbit(LowBit(vocab=vocab), Calibration(list))
        return LowBitDrafter(target, twin, Shape.of(gamma, widths, children))

    return make


def _chained(*names: str) -> Make:
    return lambda target, gamma: ChainedDrafter([DRAFTERS[name](target, gamma) for name in names])


DRAFTERS: dict[str, Make] = {
    "null": lambda target, gamma: NullDrafter(),
    "ngram": lambda target, gamma: NgramDrafter(gamma, min=1),
    "ngram-tree": lambda target, gamma: NgramDrafter(gamma, min=1, width=3),
    "model": _model("", "drawn"),
    "model-chosen": _model("", "chosen"),
    "model-tree": _model("3x2x1", "drawn"),
    "model-mixed": _model("3x2x1", "mixed"),
    "model-chosen-tree": _model("2x2x2", "chosen"),
    "by-cost": _by_cost,
    "ngram-by-cost": lambda target, gamma: AutoLength([DRAFTERS["ngram"](target, gamma)], [], COSTS),
    "exit": _exit("", "drawn"),
    "exit-tree": _exit("2x2x1", "drawn"),
    "exit-mixed": _exit("3x1x1", "mixed"),
    "lowbit": _lowbit("", "drawn"),
    "lowbit-chosen": _lowbit("", "chosen", vocab=9),
    "lowbit-tree": _lowbit("2x2x1", "mixed", vocab=9),
    "ngram+lowbit": _chained("ngram", "lowbit"),
    "ngram+model": _chained("ngram", "model"),
    "ngram-tree+lowbit": _chained("ngram-tree", "lowbit-tree"),
}


def pairs() -> list[tuple[str, str]]:
    """Every drafter with every rule that can verify it."""
    trees = [name for name in DRAFTERS if "tree" in name or "mixed" in name]
    return [(drafter, rule) for drafter in DRAFTERS for rule in RULES if not (rule == "block" and drafter in trees)]


def engine(drafter: str, rule: str, gamma: int = 4, target: ToyModel | None = None) -> Engine:
    """A toy engine by names."""
    target = target or shared_target()
    return Engine(target, DRAFTERS[drafter](target, gamma), RULES[rule]())


def run(made: Engine, params: SamplingParams, prompt: tuple[int, ...] = (0, 1, 0)) -> tuple[list[int], list[Step]]:
    """(emitted tokens, steps)."""
    steps = list(made.generate(prompt, params))
    return [token for step in steps for token in step.tokens], steps


def stats(steps: list[Step]) -> Stats:
    """The fold of the steps."""
    return Stats.of(steps)
