"""One look for all figures: little ink, dark on white, colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftproof.files import said
from draftproof.types import InputError

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe & Ito 2008, without the yellow that vanishes on white."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
INK, FAINT = "#222222", "#d9d9d9"
_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    # Text stays text, so that an SVG can be searched; ids are the same in every run.
    "svg.fonttype": "none",
    "svg.hashsalt": "draftproof",
    "savefig.dpi": 160,
}


@contextmanager
def styled() -> Iterator[None]:
    """The settings of every figure, for the time of the block. InputError where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots need matplotlib: install draftproof with the extra plots.") from error
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    """(figure, its axes row by row), in inches; what is inside never overlaps the edges."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False)
    return made, list(axes.flat)


def color(number: int) -> str:
    """Of the n-th line."""
    return COLORS[number % len(COLORS)]


def marker(number: int) -> str:
    """Of the n-th line; beyond the colours the pair is still unlike all others."""
    return MARKERS[(number + number // len(COLORS)) % len(MARKERS)]


def save(made: Any, folder: Path, stem: str) -> list[Path]:
    """As SVG and PNG. InputError where the folder takes no file."""
    files = [folder / f"{stem}.svg", folder / f"{stem}.png"]
    for file in files:
        try:
            made.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
        except OSError as error:
            raise InputError(f"{file} cannot be written: {error.strerror or said(error)}.") from error
    return files


def key(label: str, **look: Any) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def no_ticks() -> Any:
    """A locator that finds nothing."""
    from matplotlib.ticker import NullLocator

    return NullLocator()
