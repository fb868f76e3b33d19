"""`draftproof plot`: the benchmark's reports as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.options import Json

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
# One line a paragraph: typer keeps the line ends of a docstring.
HELP = """Draw the reports of bench as SVG and PNG: cost curves, speed-ups with intervals, acceptance by position.

The figures of FILE.json are FILE-cost, FILE-speedup and FILE-acceptance.
"""


@app.command(help=HELP)
def command(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="What bench wrote with --output or --json.")],
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of the figures; without it beside each file.")
    ] = "",
    json: Json = False,
) -> None:
    """Read all, then draw, then name the figures."""
    from draftproof.bench.results import read
    from draftproof.cli import show
    from draftproof.types import InputError

    reports = {Path(file): read(file) for file in files}
    if output and len({file.stem for file in reports}) < len(reports):
        raise InputError("two files have the same name, so their figures would have: draw them one by one.")
    made = []
    with show.busy("drawing"):
        for file, report in reports.items():
            made += draw(report, _folder(output) if output else file.parent, file.stem)
    if json:
        show.print_json({"figures": [str(path) for path in made]})
        return
    for path in made:
        typer.echo(str(path))


def draw(report: dict[str, object], folder: Path, stem: str) -> list[Path]:
    """The figures of one report. InputError where it has nothing to draw or the folder takes no file."""
    from draftproof.files import refusing
    from draftproof.plots import figures, style
    from draftproof.types import InputError

    with style.styled():
        with refusing(f"the report {stem} cannot be drawn, since numbers are missing"):
            drawn = figures.figures(report)
        if not drawn:
            raise InputError(f"{stem} has nothing to draw: it holds one method alone, and that drafted nothing.")
        return [path for name, figure in drawn.items() for path in style.save(figure, folder, f"{stem}-{name}")]


def _folder(name: str) -> Path:
    from draftproof.types import InputError

    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{name} cannot be made: {error.strerror or error}.") from error
    return folder
