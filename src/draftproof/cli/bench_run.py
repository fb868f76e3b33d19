"""`draftproof bench run`: speculation against plain decoding on natural prompts, by category."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.bench_cost import short, torch_threads
from draftproof.cli.benching import PromptOptions, ReportOptions, RunOptions
from draftproof.cli.options import Device, Dtype, Threads, grouped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftproof.bench.compare import Item, Measured, Plan
    from draftproof.bench.ours import EngineMethod
    from draftproof.catalog import Loaded, Place

_model = partial(typer.Option, rich_help_panel="Models and method")
_COST_REPEATS, _COST_SIZES = 9, 16
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Speculation against plain decoding on natural prompts, by category.

The null drafter first, then each --drafter: all answer every prompt --repeats times, in turn. Speed-up is wall time \
plain / wall time speculative, with a 95 % interval. Beside it: where the time went, what was accepted, and the \
speed-up that theory predicts from acceptance, the cost of drafting and that of a verification, all of the same run.
"""


@dataclass(frozen=True)
class MethodOptions:
    """What is compared, and where it runs."""

    target: Annotated[
        str, _model(metavar="SPEC", help="Target model: native:FOLDER, hf:FOLDER; without it the demo's model.")
    ] = ""
    drafter: Annotated[list[str] | None, _model(metavar="SPEC", help="May be repeated; without one ngram.")] = None
    rule: Annotated[str, _model(metavar="NAME", help="auto, token, block, tree or coupled.")] = "auto"
    gamma: Annotated[int | None, _model(metavar="N", min=1, help="Draft tokens a step, at most.")] = None
    temperature: Annotated[float, _model(metavar="T", help="0 is greedy.")] = 0.0
    device: Device = "cpu"
    dtype: Dtype = "auto"
    threads: Threads = None


@grouped
def command(models: MethodOptions, texts: PromptOptions, runs: RunOptions, output: ReportOptions) -> None:
    """Load, measure, compute, tell."""
    output.check()
    import torch

    from draftproof.bench.compare import Plan
    from draftproof.bench.provenance import provenance
    from draftproof.bench.report import report
    from draftproof.cli import bench_tables, benching, setup

    place, origin = setup.settle(models.device, models.dtype, models.threads), provenance()
    most = torch.get_num_threads()
    target = setup.load_target(models.target, place)
    torch.set_num_threads(torch_threads(target.model, place, most))
    methods = engines(target, models, place)
    plan = Plan(runs.max_tokens, runs.repeats, runs.seed)
    limit = target.model.max_context
    prompts, left_out = benching.items(_text(target), texts, None if limit is None else limit - plan.max_tokens)
    _announce(target, methods, prompts, plan)
    made = benching.measured(methods, prompts, plan)
    made, cost = _with_cost(target, made, plan)
    curve = None if cost is None else {int(k): value for k, value in cost["ratio"].items()}
    result: dict[str, Any] = {
        "kind": "run",
        **_described(target, models, plan, prompts),
        **report(made, [method.name for method in methods], curve),
        "left_out": left_out,
        "cost": cost,
        "provenance": origin,
    }
    for method, entry in zip(methods, result["methods"], strict=True):
        drafter = method.engine.drafter
        entry |= {"drafter": drafter.name, "rule": method.engine.rule.name, "gamma": drafter.gamma}
    result["notes"] = benching.notes(result, plan.repeats * len(prompts)) + (
        [] if models.temperature else _apart(result)
    )
    benching.deliver(result, output, lambda: bench_tables.show_run(result, output.markdown, output.color))


def engines(target: Loaded, models: MethodOptions, place: Place) -> list[EngineMethod]:
    """The null drafter, then those asked for; one asked for twice is told apart by a number."""
    from draftproof.bench.ours import EngineMethod
    from draftproof.catalog import engine_for
    from draftproof.types import SamplingParams

    params, seen = SamplingParams(temperature=models.temperature), Counter[str]()
    made = []
    for number, spec in enumerate(["null", *(models.drafter or ["ngram"])]):
        rule, gamma = ("auto", None) if number == 0 else (models.rule, models.gamma)
        engine = engine_for(target, spec, rule, place, gamma)
        name = short(spec)
        seen[name] += 1
        made.append(EngineMethod(name if seen[name] == 1 else f"{name} ({seen[name]})", engine, params))
    return made


def _apart(result: dict[str, Any]) -> list[str]:
    """Greedy methods whose tokens are not those of plain decoding."""
    return [
        f"{one['name']} did not write plain decoding's tokens everywhere: a near tie in low precision, or a defect."
        " draftproof audit paths tells which."
        for one in result["methods"]
        if not one["same_tokens"]
    ]


def _text(target: Loaded) -> Any:
    from draftproof.types import InputError

    if target.text is None:
        raise InputError(f"{target.model.name} has no tokenizer, so it cannot read the prompts: use another target.")
    return target.text


def _with_cost(target: Loaded, made: Measured, plan: Plan) -> tuple[Measured, dict[str, Any] | None]:
    """The cost of target calls beside what was measured, which Ctrl-C must not lose."""
    if made.interrupted:
        return made, None
    try:
        return made, _cost(target, made, plan)
    except KeyboardInterrupt:
        return replace(made, interrupted=True), None


def _cost(target: Loaded, made: Measured, plan: Plan) -> dict[str, Any]:
    """The cost of target calls as long as those of the run, behind a context as long as its middle one."""
    import torch

    from draftproof.bench import cost
    from draftproof.cli import show
    from draftproof.cli.setup import threads_of

    nodes = {size for one in made.trials for record in one.records.values() for size, _ in record.shapes}
    sizes = sorted({1, *(1 + size for size in nodes)})
    while len(sizes) > _COST_SIZES:
        sizes = [*sizes[:-1:2], sizes[-1]]
    context = int(median(len(one.item.tokens) for one in made.trials)) + plan.max_tokens // 2
    if target.model.max_context is not None:
        context = max(1, min(context, target.model.max_context - sizes[-1]))
    contender = cost.Contender(target.model.name, target.model, threads_of(target.model), torch.get_num_threads())
    schedule = cost.Plan(tuple(sizes), (context,), _COST_REPEATS)
    with show.Bar("timing target calls", schedule.size) as bar:
        curves, bandwidth = cost.measure([contender], schedule, bar.update)
    (entry,) = cost.report([contender], curves, bandwidth)["models"]
    return {key: entry[key] for key in ("context", "tokens", "ratio", "achieved_gb_s", "bandwidth_gb_s")}


def _described(target: Loaded, models: MethodOptions, plan: Plan, prompts: Sequence[Item]) -> dict[str, Any]:
    """What was run on what."""
    from draftproof.cli.setup import threads_of

    model = target.model
    return {
        "target": short(model.name),
        "device": str(model.device),
        "dtype": model.dtype,
        "isa": getattr(model, "isa", None),
        "threads": threads_of(model),
        "temperature": models.temperature,
        "seed": plan.seed,
        "max_tokens": plan.max_tokens,
        "categories": dict(Counter(item.category for item in prompts)),
    }


def _announce(target: Loaded, methods: Sequence[EngineMethod], prompts: Sequence[Item], plan: Plan) -> None:
    """What will be measured, in one line."""
    from draftproof.cli import show
    from draftproof.cli.setup import threads_of

    model = target.model
    where = f"{model.device}, {model.dtype}, {show.count(threads_of(model), 'thread')}"
    asked = ", ".join(f"{one.name} (γ {one.engine.drafter.gamma}, {one.engine.rule.name})" for one in methods[1:])
    size = f"{show.count(len(prompts), 'prompt')} × {plan.repeats}, up to {plan.max_tokens} tokens"
    show.notice(f"target {short(model.name)} · {where} · null against {asked} · {size}")
