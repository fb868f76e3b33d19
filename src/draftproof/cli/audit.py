"""`draftproof audit`: is the output the target's? By enumeration, by sampling, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.options import Device, Dtype, Json, Threads, grouped

if TYPE_CHECKING:
    from draftproof.catalog import Loaded
    from draftproof.cli.show import Bar

# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Prove that the output is the target's: exactly, by sampling, token by token.

Each audit is shown mistakes made on purpose, so that a pass means something. Exit code 0 if it passes, 1 if not.
"""
EXACT = """Enumerate every outcome of every combination on a toy target, in float64, against plain decoding.

Rules x drafters x shapes x sampling parameters over sequences of 4 tokens, through the real code. Then the controls: \
each is wrong on purpose and must be caught.
"""
SAMPLED = """Test the joint law of the first tokens, drawn through the real engine, against teacher forcing.

Without a drafter it tests a family of drafters, rules and parameters: Pearson's test on pooled cells, with Holm's \
correction, so that a right engine fails with probability --alpha at most. Two controls must be caught.
"""
PATHS = """Compare token by token with plain decoding: greedy, and the rule coupled at any temperature.

Where two texts part it is a numeric tie if the scores of both tokens lie within 4 times the noise between a call of \
one row and one of a verification's rows, else a defect. Exit code 0 only without a defect.
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)


@dataclass(frozen=True)
class Where:
    """Where the models run."""

    device: Device = "cpu"
    dtype: Dtype = "auto"
    threads: Threads = None


@dataclass(frozen=True)
class DrawOptions:
    """What the sampled audit draws from, how much, and how sure it is."""

    temperature: Annotated[float, typer.Option(metavar="T", help="With a drafter named; above 0.")] = 1.0
    top_k: Annotated[int, typer.Option(metavar="N", help="With a drafter named; 0 keeps all.")] = 0
    top_p: Annotated[float, typer.Option(metavar="P", help="With a drafter named.")] = 1.0
    min_p: Annotated[float, typer.Option(metavar="P", help="With a drafter named.")] = 0.0
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What all requests begin with.")] = "a b a b a"
    draws: Annotated[
        int | None, typer.Option(metavar="N", help="A combination; without it 25000, for a model that is no toy 1000.")
    ] = None
    tokens: Annotated[int, typer.Option(metavar="N", help="First tokens whose joint law is tested.")] = 3
    alpha: Annotated[float, typer.Option(metavar="P", help="False-alarm rate of the whole family.")] = 1e-4
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="First seed; every draw has its own.")] = 0
    batch: Annotated[int, typer.Option(metavar="N", help="Requests that run at a time.")] = 256


@dataclass(frozen=True)
class MethodOptions:
    """What is compared with plain decoding."""

    drafter: Annotated[str, typer.Option(metavar="SPEC", help="See draftproof list.")] = "ngram"
    rule: Annotated[str, typer.Option(metavar="NAME", help="auto, token, block, tree or coupled.")] = "auto"
    gamma: Annotated[int | None, typer.Option(metavar="N", min=1, help="Draft tokens a step, at most.")] = None
    breaks: Annotated[
        str, typer.Option("--break", metavar="WHAT", help="Self-test; rollback: rejected entries stay in the cache.")
    ] = ""


@dataclass(frozen=True)
class TextOptions:
    """On which texts."""

    prompts: Annotated[
        str, typer.Option(metavar="FILE.jsonl", help="Prompts, as of generate; without it the bundled.")
    ] = ""
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N prompts.")] = None
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False
    temperature: Annotated[float, typer.Option(metavar="T", help="Above 0 only with the rule coupled.")] = 0.0
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Seeds a prompt, at a temperature above 0.")] = 1
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="New tokens a prompt, at most.")] = 128


@app.command(help=EXACT)
def exact(
    quick: Annotated[bool, typer.Option("--quick", help="A sixth of the combinations, in seconds.")] = False,
    json: Json = False,
) -> None:
    """Enumerate, show, judge."""
    import torch

    from draftproof.audit.exact import audit, size
    from draftproof.cli import audit_tables, show

    torch.set_num_threads(1)
    with show.Bar("enumerating", size(quick)) as bar:
        report = audit(quick, _ticker(bar))
    show.print_json(report.summary()) if json else audit_tables.show_exact(report)
    _end(report.passed)


@app.command(help=SAMPLED)
@grouped
def sampled(
    draw: DrawOptions,
    where: Where,
    target: Annotated[str, typer.Argument(help="Target model; without it a toy.")] = "",
    drafter: Annotated[str, typer.Argument(help="Drafter; without it a family of combinations.")] = "",
    rules: Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Rules; without them auto.")] = None,
    json: Json = False,
) -> None:
    """Load, draw, test, show."""
    from draftproof.audit import families
    from draftproof.audit.sampled import Plan
    from draftproof.cli import audit_tables, setup, show
    from draftproof.types import SamplingParams

    params = SamplingParams(temperature=draw.temperature, top_k=draw.top_k, top_p=draw.top_p, min_p=draw.min_p)
    loaded = setup.load_target(target or families.TARGET, setup.settle(where.device, where.dtype, where.threads))
    draws = families.default_draws(loaded) if draw.draws is None else draw.draws
    plan = Plan(draws, draw.tokens, draw.alpha, draw.seed, draw.batch)
    combinations = families.asked(drafter, rules or ["auto"], params) if drafter else families.family(loaded)
    prompt = _prompt(loaded, draw.prompt)
    with show.Bar("drawing", families.size(combinations, plan)) as bar:
        report = families.audit(loaded, combinations, prompt, plan, _ticker(bar))
    show.print_json(report.summary()) if json else audit_tables.show_sampled(report)
    _end(report.passed)


@app.command(help=PATHS)
@grouped
def paths(
    method: MethodOptions,
    texts: TextOptions,
    where: Where,
    target: Annotated[str, typer.Argument(help="Target model; without it the demo's.")] = "",
    json: Json = False,
) -> None:
    """Load, decode both ways, classify, show."""
    from draftproof import catalog
    from draftproof.audit import paths as audits
    from draftproof.cli import audit_tables, setup, show
    from draftproof.types import InputError

    if method.breaks not in ("", "rollback"):
        raise InputError(f"--break knows rollback, not {method.breaks}.")
    place = setup.settle(where.device, where.dtype, where.threads)
    runs = audits.runs(texts.temperature, texts.seeds, texts.max_tokens)
    loaded = setup.load_target(target, place)
    judged = audits.without_rollback(loaded) if method.breaks else loaded
    engine = catalog.engine_for(judged, method.drafter, method.rule, place, method.gamma)
    prompts = _prompts(loaded, texts)
    with show.Bar("comparing", len(prompts) * len(runs)) as bar:
        report = audits.audit(engine, prompts, runs, loaded.model, _ticker(bar))
    show.print_json(report.summary()) if json else audit_tables.show_paths(report)
    _end(report.passed)


def _prompts(loaded: Loaded, texts: TextOptions) -> list[list[int]]:
    """Those of the file, else generated ones for a toy and the project's own for other targets."""
    from draftproof.audit.prompts import generated, prompt_ids
    from draftproof.models.toy import ToyModel

    if not texts.prompts and isinstance(loaded.model, ToyModel):
        return list(generated(loaded.model.vocab_size))[: texts.limit]
    return prompt_ids(texts.prompts or "bundled", loaded.text, texts.raw, texts.limit)


def _prompt(loaded: Loaded, prompt: str) -> list[int]:
    from draftproof.types import InputError

    if loaded.text is None:
        raise InputError("the target has no tokenizer, so there is no prompt to begin with: use another target.")
    return list(loaded.text.encode(prompt))


def _ticker(bar: Bar) -> Callable[..., None]:
    done = 0

    def tick(count: int = 1) -> None:
        nonlocal done
        done += count
        bar.update(done)

    return tick


def _end(passed: bool) -> None:
    if not passed:
        raise typer.Exit(1)
