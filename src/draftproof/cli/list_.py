"""`draftproof list`: what the catalogue holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from draftproof.cli.options import Json

if TYPE_CHECKING:
    from draftproof.entries import Entry

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WRITTEN = {
    "models": "--target NAME:ARGUMENT,option=value",
    "drafters": "--drafter NAME:option=value",
    "rules": "--rule NAME",
}


@app.command()
def command(json: Json = False) -> None:
    """Models, drafters and rules, with their options."""
    from draftproof import catalog
    from draftproof.cli import show
    from draftproof.prompts import bundled, categories

    kinds = {"models": catalog.models(), "drafters": catalog.drafters(), "rules": catalog.rules()}
    prompts = {name: len(bundled(name)) for name in categories()}
    if json:
        show.print_json({**{kind: _described(entries) for kind, entries in kinds.items()}, "prompts": prompts})
        return
    out = show.console(sys.stdout)
    for kind, entries in kinds.items():
        rows = show.table("name", "what it is", "options", title=f"{kind}: {_WRITTEN[kind]}")
        for name, entry in entries.items():
            options = ", ".join(f"{option}={kind_of}" for option, kind_of in _options(entry).items())
            rows.add_row(name, entry.summary, options or "-")
        out.print(rows)
        out.print()
    out.print(
        "prompts: --prompts bundled, or one category of them: " + ", ".join(f"bundled:{name}" for name in prompts)
    )


def _described(entries: Mapping[str, Entry]) -> list[dict[str, object]]:
    return [{"name": name, "summary": entry.summary, "options": _options(entry)} for name, entry in entries.items()]


def _options(entry: Entry) -> dict[str, str]:
    names = {"int": "N", "float": "X", "str": "TEXT", "gamma": "N|auto"}
    return {option: names[getattr(kind, "__name__", "str")] for option, kind in entry.options.items()}
