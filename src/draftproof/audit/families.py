"""What the sampled audit tests when it is not told, and the controls it must catch each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from draftproof.audit import wrong
from draftproof.audit.sampled import Plan, Report, Tested, Tick, examine, independence
from draftproof.catalog import Loaded, engine_for
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.types import SamplingParams
from draftproof.verify import TokenRule

TARGET = "toy:40,vocab=6"
CONTROL_DRAWS = 4000
CONTROLS = ("correction from the target", "argmax drawn, softmax told")


@dataclass(frozen=True)
class Combination:
    """A drafter spec, a rule and sampling parameters, under a name for the reader."""

    name: str
    drafter: str
    rule: str
    params: SamplingParams


def family(target: Loaded) -> tuple[Combination, ...]:
    """Drawn, chosen, n-gram, early-exit and low-bit drafts; chains and trees; temperatures and filters.

    A target that is no toy has no draft model at hand, so its own layers and its text draft.
    """
    model = "model:toy:7" if isinstance(target.model, ToyModel) else "early-exit:"
    base = SamplingParams(temperature=1.0)
    rows: tuple[tuple[str, str, dict[str, object]], ...] = (
        (f"{model},gamma=3", "token", {}),
        (f"{model},gamma=3", "block", {"temperature": 0.5}),
        (f"{model},gamma=3", "block", {"temperature": 1.5}),
        (f"{model},gamma=3", "block", {"top_k": 3}),
        (f"{model},gamma=3,children=chosen", "token", {"min_p": 0.05}),
        (f"{model},shape=2x2", "tree", {"top_p": 0.8}),
        (f"{model},shape=2x1,children=drawn", "tree", {}),
        (f"{model},shape=2x1,children=drawn", "token", {}),
        (f"{model},shape=2x2", "coupled", {}),
        ("ngram:min=1,gamma=3", "token", {"logit_bias": ((0, 1.0), (2, -1.0))}),
        ("ngram:min=1,gamma=3", "coupled", {}),
        ("early-exit:gamma=3", "block", {"presence_penalty": 0.5}),
        ("lowbit:gamma=3,rounding=nearest", "block", {}),
        ("ngram:min=1,gamma=3+lowbit:gamma=3,rounding=nearest", "block", {}),
    )
    able = {"early-exit": "early_exit", "lowbit": "lowbit"}
    usable = [row for row in rows if all(can in target.model.can for name, can in able.items() if name in row[0])]
    made = []
    for drafter, rule, changes in usable:
        drafter = drafter.replace(":,", ":")
        label = ", ".join([drafter, rule, *(f"{key}={value}" for key, value in changes.items())])
        made.append(Combination(label, drafter, rule, replace(base, **changes)))  # type: ignore[arg-type]
    return tuple(made)


def asked(drafter: str, rules: Sequence[str], params: SamplingParams) -> tuple[Combination, ...]:
    """One drafter under the rules a user names."""
    return tuple(Combination(f"{drafter}, {rule}", drafter, rule, params) for rule in rules)


def default_draws(target: Loaded) -> int:
    """On a toy enough to find shifts of 3 % in 36 cells; a real model gets what it can draw in a few minutes."""
    return 25_000 if isinstance(target.model, ToyModel) else 1_000


def audit(
    target: Loaded, combinations: Sequence[Combination], prompt: Sequence[int], plan: Plan, tick: Tick = lambda n: None
) -> Report:
    """All combinations, the independence of unseeded requests with the first of them, the controls."""
    report = Report(plan)
    # Holm's first threshold; the independence of unseeded requests is one more member of the family.
    strict = replace(plan, alpha=plan.alpha / (len(combinations) + 1))
    for one in combinations:
        report.tests.append(examine(one.name, _engine(target, one), prompt, one.params, strict, tick))
    first = combinations[0]
    report.duplicates, report.independence = independence(_engine(target, first), prompt, first.params, plan)
    report.controls.extend(controls(plan, tick))
    return report


def size(combinations: Sequence[Combination], plan: Plan) -> int:
    """All draws that `audit` ticks."""
    return len(combinations) * plan.draws + len(CONTROLS) * min(plan.draws, CONTROL_DRAWS)


def _engine(target: Loaded, one: Combination) -> Engine:
    return engine_for(target, one.drafter, one.rule)


def controls(plan: Plan, tick: Tick = lambda n: None) -> Iterator[Tested]:
    """A broken rule and a broken drafter on a toy pair of their own, so that what they show is the test's power."""
    plan = replace(plan, draws=min(plan.draws, CONTROL_DRAWS))
    makers: tuple[Callable[[ToyModel], Engine], ...] = (_broken_rule, _broken_drafter)
    for name, make in zip(CONTROLS, makers, strict=True):
        engine = make(ToyModel(0, 6))
        yield examine(name, engine, (1, 2, 1), SamplingParams(temperature=1.0), plan, tick)


def _draft() -> ModelDrafter:
    return ModelDrafter(ToyModel(7, 6), 6, Shape.of(2, "", "drawn"))


def _broken_rule(target: ToyModel) -> Engine:
    return Engine(target, _draft(), wrong.WrongRule(wrong.correction_from_target))


def _broken_drafter(target: ToyModel) -> Engine:
    return Engine(target, wrong.WrongDrafter(_draft(), wrong.drawn_from(wrong.argmax_of)), TokenRule())
