"""`draftproof train`: a head or an early-exit adapter for a target, from the target's own answers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.options import Device, Dtype, Json, Threads, grouped

if TYPE_CHECKING:
    from draftproof.catalog import Loaded
    from draftproof.training.assemble import Wanted
    from draftproof.training.loop import Schedule, Standing

_what = partial(typer.Option, rich_help_panel="What is trained")
_texts = partial(typer.Option, rich_help_panel="Texts")
_run = partial(typer.Option, rich_help_panel="Run")
_UNITS = {"s": 1, "m": 60, "h": 3600}
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Train a head (EAGLE-3) or an early-exit adapter for a target.

The target answers the prompts, with its own chat template and at several temperatures, many at once; the states of \
those same calls are what is learned from. Held-out prompts tell, at each evaluation, the mean acceptance length that \
greedy drafting would have; the best checkpoint stays in OUT, which --drafter eagle:OUT (or \
early-exit:layer=L,adapter=OUT) loads. Killed runs go on with --resume.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class WhatOptions:
    """What comes out."""

    kind: Annotated[str, _what(metavar="NAME", help="eagle or early-exit.")] = "eagle"
    layers: Annotated[
        str, _what(metavar="L,L,L", help="Of eagle: layers whose states it reads; without it low, middle and high.")
    ] = ""
    draft_vocab: Annotated[int, _what(metavar="N", min=1, help="Of eagle: tokens that it can draft.")] = 8192
    layer: Annotated[int, _what(metavar="L", min=0, help="Of early-exit: the layer; 0 is a quarter of all.")] = 0
    rank: Annotated[int, _what(metavar="N", min=1, help="Of early-exit: the adapter's rank.")] = 256
    steps: Annotated[int, _what(metavar="N", min=1, max=8, help="Of eagle: how many steps deep a lesson goes.")] = 3
    loss: Annotated[
        str, _what(metavar="NAME", help="distance of the rows, or length: that less the expected accepted length.")
    ] = "distance"
    start: Annotated[
        str, _what(metavar="HEAD", help="Of eagle: begin with this head; without it the target's last layer.")
    ] = ""
    format: Annotated[
        str, _what(metavar="NAME", help="draftproof, int8 (a quarter of its size), vllm or speculators.")
    ] = "draftproof"


@dataclass(frozen=True)
class TextOptions:
    """From which texts."""

    prompts: Annotated[str, _texts(metavar="FILE.jsonl", help="Prompts that the target answers.")] = "bundled"
    texts: Annotated[
        str, _texts(metavar="FILE.jsonl", help="Conversations or texts to read instead of answers of the target.")
    ] = ""
    writer: Annotated[
        str, _texts(metavar="SPEC", help="Who writes the answers: a quicker form of the target; without it the target.")
    ] = ""
    temperatures: Annotated[str, _texts(metavar="T,T", help="In turn.")] = "0,0.7,1"
    max_tokens: Annotated[int, _texts(metavar="N", min=2, help="New tokens an answer at most.")] = 256
    max_batch: Annotated[int, _texts(metavar="N", min=1, help="Answers written at once.")] = 64
    held_out: Annotated[int, _texts(metavar="N", min=1, help="Prompts kept apart for the evaluations.")] = 64
    store: Annotated[str, _texts(metavar="FOLDER", help="Store the states there first; without it online.")] = ""
    store_tokens: Annotated[int, _texts(metavar="N", min=1, help="New tokens to store.")] = 1_000_000
    show_sample: Annotated[bool, _texts("--show-sample", help="Show what is learned from in one answer; end.")] = False


@dataclass(frozen=True)
class LearnOptions:
    """How long, and how."""

    budget: Annotated[str, _run(metavar="TIME", help="Such as 30m or 6h, all but the loading.")] = "60m"
    rounds: Annotated[int | None, _run(metavar="N", min=1, help="End after N rounds, whatever the time.")] = None
    round_tokens: Annotated[int, _run(metavar="N", min=1, help="New tokens a round.")] = 20_000
    reuse: Annotated[float, _run(metavar="X", min=1, help="How often a token is learned from, on average.")] = 2.0
    batch_tokens: Annotated[int, _run(metavar="N", min=16, help="Tokens a batch.")] = 4096
    evaluations: Annotated[int, _run(metavar="N", min=1, help="On the held-out prompts.")] = 12
    gamma: Annotated[int, _run(metavar="N", min=1, help="Draft tokens a step in the evaluations.")] = 5
    rate: Annotated[float, _run(metavar="X", min=0, help="Learning rate at its highest.")] = 5e-3
    seed: Annotated[int, _run(metavar="N", min=0, help="Of all that is drawn.")] = 0
    resume: Annotated[bool, _run("--resume", help="Go on from OUT's checkpoint.")] = False
    device: Device = "cpu"
    dtype: Dtype = "auto"
    threads: Threads = None


@app.command(help=HELP)
@grouped
def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="native:FOLDER or hf:FOLDER.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder of the result and of its checkpoint.")],
    what: WhatOptions,
    text: TextOptions,
    run: LearnOptions,
    json: Json = False,
) -> None:
    """Load, prepare, train, tell."""
    import torch

    from draftproof import prompts as files
    from draftproof.cli import setup, show
    from draftproof.training.assemble import example, prepare

    wanted = _wanted(target, out, what, text, run)
    place = setup.settle(run.device, run.dtype, run.threads)
    most = torch.get_num_threads()
    loaded = setup.load_target(target, place)
    writer = setup.load_target(text.writer, place) if text.writer else loaded
    _refuse_other_writer(loaded, writer)
    asked = files.read(text.prompts)
    given = files.read(text.texts) if text.texts else []
    if text.show_sample:
        _show(example(wanted, loaded, writer, asked, given), loaded)
        return
    wanted = replace(wanted, schedule=replace(wanted.schedule, threads=run.threads or most))
    training, first = prepare(wanted, loaded, writer, asked, given, show.notice)
    _announce(wanted, loaded, training.course.module)
    standing = _watched(training, first)
    _tell(wanted, standing, getattr(training.course.module.config, "layer", None), json)


def seconds(text: str) -> float:
    """ "90s", "30m" or "6h" in seconds. InputError for anything else."""
    from draftproof.types import InputError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or not float(found[1]):
        raise InputError(f"write --budget as a time such as 90s, 30m or 6h, not {text}.")
    return float(found[1]) * _UNITS[found[2]]


def _wanted(target: str, out: str, what: WhatOptions, text: TextOptions, run: LearnOptions) -> Wanted:
    from draftproof import specs
    from draftproof.drafters.eagle_write import FORMATS
    from draftproof.files import folder_at
    from draftproof.training.assemble import KINDS, Wanted
    from draftproof.training.capture import Plan
    from draftproof.training.losses import LOSSES

    kind, loss = _one_of("--kind", what.kind, KINDS), _one_of("--loss", what.loss, LOSSES)
    parsed = specs.parse(target)
    folder = parsed.argument if parsed.name in ("native", "hf") else target.split(",")[0]
    return Wanted(
        folder=folder_at(folder),
        out=Path(out),
        kind=kind,
        layers=tuple(int(one) for one in _numbers("--layers", what.layers)),
        layer=what.layer,
        rank=what.rank,
        draft_vocab=what.draft_vocab,
        steps=what.steps,
        loss=loss,
        held_out=text.held_out,
        form=_one_of("--format", what.format, FORMATS),
        resume=run.resume,
        start=Path(what.start) if what.start else None,
        store=Path(text.store) if text.store else None,
        store_tokens=text.store_tokens,
        plan=Plan(_numbers("--temperatures", text.temperatures), text.max_tokens, text.max_batch, run.seed),
        schedule=_schedule(text, run),
    )


def _schedule(text: TextOptions, run: LearnOptions) -> Schedule:
    from draftproof.training.loop import Schedule

    return Schedule(
        seconds=None if run.rounds else seconds(run.budget),
        rounds=run.rounds,
        round_tokens=run.round_tokens,
        reuse=1.0 if text.store else run.reuse,
        batch_tokens=run.batch_tokens,
        evaluations=run.evaluations,
        gamma=run.gamma,
        rate=run.rate,
        seed=run.seed,
    )


def _one_of(option: str, value: str, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise typer.BadParameter(f"{option} is one of {', '.join(known)}, not {value}.")
    return value


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers with commas between them, not {text}.") from None


def _refuse_other_writer(target: Loaded, writer: Loaded) -> None:
    """States of another model would teach nothing."""
    from draftproof.types import InputError
    from draftproof.vocab import fingerprint

    one, other = target.model, writer.model
    alike = (one.num_layers, one.vocab_size) == (other.num_layers, other.vocab_size)
    if not alike or (target.text and fingerprint(target.text) != fingerprint(writer.text)):
        raise InputError(f"{other.name} is no form of {one.name}: the writer must be the same model.")


def _announce(wanted: Wanted, target: Loaded, module: Any) -> None:
    from draftproof.cli import show
    from draftproof.training.assemble import estimates

    count = sum(parameter.numel() for parameter in module.parameters())
    layers = len(wanted.layers or (0, 0, 0)) + 1 if wanted.kind == "eagle" else 2
    width = int(next(iter(module.parameters())).shape[-1]) if wanted.kind == "early-exit" else module.config.hidden
    show.notice(f"target {Path(target.model.name).name} · {wanted.kind} · {count / 1e6:.1f} M parameters")
    show.notice(estimates(wanted, count, layers, width))


def _watched(training: Any, first: Any) -> Standing:
    """Run with a bar; each evaluation is a line of its own."""
    from draftproof.cli import show

    seen = len(training.standing.evaluations)
    with show.Bar("learning", 1.0) as bar:

        def progress(share: float, standing: Standing) -> None:
            nonlocal seen
            bar.update(share, _line(standing))
            for entry in standing.evaluations[seen:]:
                bar.hide()
                show.notice(f"{share:4.0%}  {_held(entry)}  {_line(standing)}")
            seen = len(standing.evaluations)

        result: Standing = training.run(progress, first)
    return result


def _line(standing: Standing) -> str:
    agree = " ".join(f"{one:.2f}" for one in standing.agreement)
    held = f" · held out {standing.evaluations[-1]['mean_acceptance_length']:.2f}" if standing.evaluations else ""
    return f"loss {standing.loss:.3f} · agreement by step {agree} · {standing.written:,} tokens{held}"


def _held(entry: dict[str, Any]) -> str:
    shares = " ".join(f"{one:.2f}" for one in entry["acceptance"])
    return f"held out: mean acceptance length {entry['mean_acceptance_length']:.2f}, by position {shares} ·"


def _tell(wanted: Wanted, standing: Standing, layer: int | None, as_json: bool) -> None:
    """layer: of an early exit."""
    best = max(standing.evaluations, key=lambda entry: entry["mean_acceptance_length"])
    if as_json:
        typer.echo(json.dumps({"out": str(wanted.out), "kind": wanted.kind, **asdict(standing)}))
        return
    spec = f"eagle:{wanted.out}" if layer is None else f"early-exit:layer={layer},adapter={wanted.out}"
    typer.echo(f"{_held(best)} {standing.written:,} tokens written, {standing.learned:,} learned from")
    if standing.skipped:
        typer.echo(f"batches with nothing to learn from, skipped: {standing.skipped}")
    typer.echo(f"use it: --drafter {spec}")


def _show(sample: Any, target: Loaded) -> None:
    """Green is learned from; dim is read alone."""
    import sys

    from rich.text import Text

    from draftproof.cli import show

    begin = sample.first + 2
    shown = Text()
    for place, token in enumerate(sample.tokens.tolist()):
        shown.append(show.visible(target.text.label(token)), "green" if place >= begin else "dim")
    out = show.console(sys.stdout)
    out.print(shown, soft_wrap=True)
    learned = len(sample.tokens) - begin
    out.print(Text(f"{learned} of {len(sample.tokens)} tokens are learned from (green)", "bold"))
