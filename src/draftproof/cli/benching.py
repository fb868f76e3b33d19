"""What the benchmark's commands share: their options, the prompts, the progress, and where the report goes."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.options import Color, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftproof.bench.compare import Item, Measured, Plan
    from draftproof.bench.methods import Method
    from draftproof.text import Text

ENOUGH_REPEATS = 5
_text = partial(typer.Option, rich_help_panel="Prompts")
_runs = partial(typer.Option, rich_help_panel="Measurement")
_output = partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True)
class PromptOptions:
    """On which texts."""

    prompts: Annotated[
        str, _text(metavar="FILE.jsonl", help="A line is {id, category, turns or prompt}; the first turn counts.")
    ] = "bundled"
    category: Annotated[
        list[str] | None, _text(metavar="NAME", help="Only prompts of this category; may be repeated.")
    ] = None
    per_category: Annotated[
        int | None, _text(metavar="N", min=1, help="Only the first N prompts of each category.")
    ] = None
    raw: Annotated[bool, _text("--raw", help="No chat template.")] = False


@dataclass(frozen=True)
class RunOptions:
    """How much is measured."""

    max_tokens: Annotated[int, _runs(metavar="N", min=1, help="New tokens an answer at most.")] = 128
    repeats: Annotated[int, _runs(metavar="N", min=1, help="Answers of every method to every prompt.")] = ENOUGH_REPEATS
    seed: Annotated[int, _runs(metavar="N", min=0, help="Of the random numbers, where any are drawn.")] = 0


@dataclass(frozen=True)
class ReportOptions:
    """Where the numbers go."""

    json: Json = False
    markdown: Annotated[bool, _output("--markdown", help="Print the tables in Markdown.")] = False
    output: Annotated[str, _output(metavar="FILE", help="Write the report as JSON; draftproof plot draws it.")] = ""
    color: Color = None

    def check(self) -> None:
        """Before anything is measured. InputError for a file that could not be written."""
        from draftproof.types import InputError

        if self.json and self.markdown:
            raise typer.BadParameter("--json and --markdown exclude each other: give one.")
        folder = Path(self.output).absolute().parent
        if self.output and (Path(self.output).is_dir() or not os.access(folder, os.W_OK)):
            raise InputError(f"{self.output} cannot be written: name a file in a folder that exists.")


def items(text: Text, options: PromptOptions, room: int | None) -> tuple[list[Item], list[str]]:
    """The prompts as ids, and the ids of those left out because they are longer than `room`.

    InputError where nothing is left, and for a category that is not there.
    """
    from draftproof.batch import job_of
    from draftproof.bench.compare import Item
    from draftproof.prompts import read
    from draftproof.types import InputError

    prompts = [replace(one, turns=one.turns[:1], category=one.category or "prompts") for one in read(options.prompts)]
    known = sorted({one.category for one in prompts})
    wanted = options.category or known
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"there are no prompts of the category {unknown[0]!r}; there are: {', '.join(known)}.")
    taken, left_out, seen = [], [], Counter[str]()
    for prompt in prompts:
        if prompt.category not in wanted or seen[prompt.category] == options.per_category:
            continue
        seen[prompt.category] += 1
        name = prompt.id or f"{prompt.category}-{seen[prompt.category]}"
        ids = tuple(job_of(text, prompt, options.raw).encode([]))
        if room is not None and len(ids) > room:
            left_out.append(name)
        else:
            taken.append(Item(name, prompt.category, ids))
    if not taken:
        raise InputError(f"every prompt is longer than the {room} tokens of context that --max-tokens leaves.")
    return taken, left_out


def measured(methods: Sequence[Method], prompts: Sequence[Item], plan: Plan) -> Measured:
    """All trials, behind a progress bar. Ctrl-C keeps the complete ones; without any it is Ctrl-C."""
    from draftproof.bench.compare import measure
    from draftproof.cli import show

    with show.Bar("measuring", plan.repeats * len(prompts)) as bar:
        made = measure(methods, prompts, plan, bar.update)
    if not made.trials:
        raise KeyboardInterrupt
    return made


def notes(report: dict[str, Any], planned: int) -> list[str]:
    """What limits these numbers, in sentences. planned: trials that were wanted."""
    made = []
    if report["interrupted"]:
        done = sum(len(one["methods"][report["baseline"]]["seconds"]) for one in report["answers"])
        made.append(f"Stopped before the end: {done} of {planned} trials are complete and counted.")
    if report["repeats"] < ENOUGH_REPEATS:
        made.append(f"Fewer than {ENOUGH_REPEATS} repeats: the intervals are too narrow to be trusted.")
    categories = report["methods"][0]["categories"]
    if alone := [name for name, one in categories.items() if one["prompts"] < 3]:
        made.append(f"One or two prompts speak for: {', '.join(alone)}. Their intervals say nothing of others.")
    for key, why in (("left_out", "too long for the context"), ("without_tokens", "answered without a token")):
        if report.get(key):
            made.append(f"Left out, {why}: {', '.join(report[key])}.")
    return [*made, *busy(report["provenance"])]


def busy(provenance: dict[str, Any]) -> list[str]:
    """A sentence where the machine had other work."""
    load, cores = provenance["load_average"], provenance["cores"]
    if load is None or load <= cores / 2:
        return []
    return [f"Other programs were running: load average {load:.1f} on {cores} cores. Times are noisy."]


def deliver(report: dict[str, Any], options: ReportOptions, show_tables: Callable[[], None]) -> None:
    """Print the report as asked for, write the file, and end with code 130 if Ctrl-C cut it short."""
    from draftproof.cli import show

    if options.json:
        show.print_json(report)
    else:
        show_tables()
        sys.stdout.flush()
    if options.output:
        _write(Path(options.output), report)
        show.notice(f"written: {options.output}")
    if report.get("interrupted"):
        raise typer.Exit(130)


def _write(file: Path, report: dict[str, Any]) -> None:
    """In one step, so that there is never half a file. InputError where that is not possible."""
    from draftproof.cli.show import jsonable
    from draftproof.types import InputError

    part = file.with_name(f"{file.name}.part")
    try:
        part.write_text(json.dumps(jsonable(report), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}.") from error
