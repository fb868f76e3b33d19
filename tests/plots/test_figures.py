"""Figures are real files with the words they need."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from bench.scripted import answered, items, reported

from draftproof.plots import style
from draftproof.types import InputError

pytest.importorskip("matplotlib", reason="the extra plots is not installed")

from draftproof.plots.figures import figures

SVG = "{http://www.w3.org/2000/svg}"


def words(file: Path) -> str:
    """All text of an SVG."""
    return "\n".join("".join(node.itertext()) for node in ElementTree.parse(file).iter(f"{SVG}text"))


def drawn(report: dict[str, Any], folder: Path) -> dict[str, list[Path]]:
    """Name of a figure -> its files."""
    with style.styled():
        return {name: style.save(figure, folder, name) for name, figure in figures(report).items()}


def shown(axis: Any) -> list[Any]:
    """The tick labels that lie within an axis; matplotlib keeps others that it does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def run_report(methods: int = 2, categories: int = 3, fastest: float = 2.0) -> dict[str, Any]:
    """Methods of different speed, each with an acceptance by position."""
    names = {f"topic-{number}": 2 for number in range(categories)}
    answers = {f"method-{n}": answered(4.0 / (1 + n * (fastest - 1) / methods)) for n in range(1, methods + 1)}
    made = reported(items(**names), null=answered(4.0), **answers)
    for number, one in enumerate(made["methods"][1:]):
        rates = {str(d): {"drafted": 9, "accepted": 5, "rate": 0.9 - 0.1 * number % 0.9} for d in range(1, 4 + number)}
        one["acceptance_by_position"] = rates
    return {"kind": "run", **made, "provenance": {}}


def cost_report(contexts: tuple[int, ...] = (100, 1000), slowest: float = 1.0) -> dict[str, Any]:
    """Two models."""
    curve = {"tokens": {"1": 0.02, "4": 0.03, "16": 0.06}, "ratio": {"1": 1.0, "4": 1.5, "16": 3.0}}
    slow = {**curve, "tokens": {k: slowest * v for k, v in curve["tokens"].items()}}
    models = [
        {"name": name, "by_context": {str(length): made for length in contexts}}
        for name, made in (("native:small", curve), ("hf:small", slow))
    ]
    return {"kind": "cost", "models": models, "provenance": {}}


@pytest.mark.parametrize("report", [run_report(), cost_report()], ids=["run", "cost"])
def test_both_files_of_every_figure_are_real(tmp_path: Path, report: dict[str, Any]) -> None:
    for svg, png in drawn(report, tmp_path).values():
        assert ElementTree.parse(svg).getroot().tag == f"{SVG}svg"
        head = png.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
        assert width > 600 and height > 300


def test_speedups_name_methods_categories_and_axis(tmp_path: Path) -> None:
    text = words(drawn(run_report(), tmp_path)["speedup"][0])
    for part in ("method-1", "method-2", "topic-0", "topic-2", "geometric mean", "Speed-up over null", "wall time"):
        assert part in text
    assert "null\n" not in text, "the baseline is the line at 1"


def test_acceptance_names_methods_and_positions(tmp_path: Path) -> None:
    text = words(drawn(run_report(), tmp_path)["acceptance"][0])
    for part in ("method-1", "method-2", "position in the draft", "accepted share"):
        assert part in text


def test_cost_names_models_contexts_and_units(tmp_path: Path) -> None:
    text = words(drawn(cost_report(), tmp_path)["cost"][0])
    for part in (
        "native:small",
        "hf:small",
        "behind 100 tokens",
        "behind 1000 tokens",
        ", ms",
        "Ratio to",
        "tokens in",
    ):
        assert part in text


def test_scales_that_span_much_are_logarithmic(tmp_path: Path) -> None:
    for report, spans in ((cost_report(slowest=50.0), True), (cost_report(slowest=1.0), False)):
        with style.styled():
            left, right = figures(report)["cost"].axes
        assert (left.get_yscale() == "log") == spans and right.get_yscale() == "linear"
    with style.styled():
        (axes,) = figures(run_report(fastest=30.0))["speedup"].axes
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize("report", [run_report(9, 13, 20.0), run_report(1, 1), cost_report((100,))])
def test_nothing_is_cut_off(tmp_path: Path, report: dict[str, Any]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style.styled():
        for figure in figures(report).values():
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            edges, renderer = figure.bbox, canvas.get_renderer()
            texts = [text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in shown(axis)]
            texts += [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label, axes.title)]
            texts += [text for legend in figure.legends for text in legend.get_texts()]
            for text in texts:
                box = text.get_window_extent(renderer)
                if text.get_text():
                    assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= edges.x1 + 1 and box.y1 <= edges.y1 + 1, text


def test_the_same_report_gives_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    made = [drawn(cost_report(), folder)["cost"][0].read_bytes() for folder in (first, second)]
    assert made[0] == made[1]


def test_what_has_no_numbers_is_not_drawn(tmp_path: Path) -> None:
    assert set(figures(run_report())) == {"speedup", "acceptance"}
    alone = {"kind": "run", **reported(items(chat=1), null=answered(1.0)), "provenance": {}}
    assert figures(alone) == {}


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="extra plots"), style.styled():
        pass
