"""How the benchmark's reports look: the same tables in a terminal and in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from draftproof.bench.estimates import NO_DIFFERENCE
from draftproof.cli import show
from draftproof.types import Timing

_POSITIONS = 10
_TELLING = ("2", "4", "6", "8", "12", "16")
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Sheet:
    """A table as text. Columns that begin with ">" are numbers; a line end in a head breaks it in a terminal alone."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """A heading and a Markdown table."""
        heads = [_one_line(column.lstrip(">")) for column in self.columns]
        rules = ["--:" if column.startswith(">") else "---" for column in self.columns]
        lines = [heads, rules, *([_one_line(cell) for cell in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return f"**{self.title}**\n\n{table}"


def show_cost(report: Report, markdown: bool, color: bool | None = None) -> None:
    """A table a context, and how near the models are to the memory's bandwidth."""
    sentences = [*map(_reach, report["models"]), *report["notes"]]
    print_sheets(cost_sheets(report, numbered=not markdown), sentences, markdown, color)


def show_run(report: Report, markdown: bool, color: bool | None = None) -> None:
    """The overview, a table a method, acceptance by position, the time's split, then the notes."""
    print_sheets(run_sheets(report), report["notes"], markdown, color)


def cost_sheets(report: Report, numbered: bool = False) -> list[Sheet]:
    """All models side by side, then a table a model. numbered: numbers stand for their names, which are long."""
    models = report["models"]
    labels = [str(n) for n in range(1, len(models) + 1)] if numbered else [one["name"] for one in models]
    titles = [f"{label}: {one['name']}" if numbered else label for label, one in zip(labels, models, strict=True)]
    curves = [_curves(one, title, report["repeats"]) for one, title in zip(models, titles, strict=True)]
    return [_side_by_side(report, labels), *curves]


def _side_by_side(report: Report, labels: Sequence[str]) -> Sheet:
    """A row a model and context; of many call sizes those that tell most."""
    counts = list(report["models"][0]["tokens"])
    chosen = [k for k in counts if k != "1"]
    chosen = chosen if len(chosen) <= len(_TELLING) else [k for k in chosen if k in _TELLING]
    rows = []
    for label, model in zip(labels, report["models"], strict=True):
        for context, curve in model["by_context"].items():
            ratios = (_fixed(curve["ratio"][k]) for k in chosen)
            speed = (_fixed(curve["achieved_gb_s"], 1), _share(curve["bandwidth_share"]))
            rows.append((label, context, f"{1e3 * curve['tokens']['1']:.1f}", *ratios, *speed))
    heads = (">behind", ">ms, one\ntoken", *(f">{k}" for k in chosen), ">GB/s", ">of the\nmemory's")
    return Sheet("Target calls: time over one token, and ratio to it over more", ("model", *heads), tuple(rows))


def _curves(model: Report, title: str, repeats: int) -> Sheet:
    contexts = model["by_context"]
    heads = [f">{what}" for context in contexts for what in (f"behind\n{context}: ms", "least\nms", "ratio")]
    rows = [(k, *(cell for curve in contexts.values() for cell in _timed(curve, k))) for k in model["tokens"]]
    return Sheet(f"{title}, median and least of {repeats}", (">tokens", *heads), tuple(rows))


def run_sheets(report: Report) -> list[Sheet]:
    """All tables of `bench run`, those of a method that tells less than our engine without its columns."""
    methods, baseline = report["methods"], report["baseline"]
    inside = [one for one in methods if one["speculation"] is not None]
    drafting = [one for one in inside if one["speculation"]["num_draft_tokens"]]
    sheets = [_overview(methods)]
    sheets += [_by_category(one, methods[0]) for one in methods if one["name"] != baseline]
    sheets += [_theory(one) for one in drafting]
    if drafting:
        sheets.append(_positions(drafting))
    if inside:
        sheets.append(_stages(inside))
    return sheets


def _overview(methods: Sequence[Report]) -> Sheet:
    rows = [
        (
            one["name"],
            _fixed(one["tokens_per_s"], 1),
            _fixed(one["decode_tokens_per_s"], 1),
            _fixed(one["geomean_speedup"]),
            _interval(one),
            _fixed(one["geomean_decode_speedup"]),
            "yes" if one["same_tokens"] else "no",
        )
        for one in methods
    ]
    columns = ("method", ">tokens/s", ">decoding", ">speed-up", ">95 %", ">decoding", "same\ntokens")
    return Sheet("All prompts; decoding is what lies behind the first token", columns, tuple(rows))


def _by_category(method: Report, plain: Report) -> Sheet:
    rows = [
        (
            category,
            str(one["prompts"]),
            _fixed(plain["categories"][category]["tokens_per_s"], 1),
            _fixed(one["tokens_per_s"], 1),
            _fixed(one["speedup"]),
            _interval(one),
            _finding(one),
        )
        for category, one in method["categories"].items()
    ]
    overall = _fixed(method["geomean_speedup"]), _interval(method), _finding(method)
    rows.append(("geometric mean", "", "", "", *overall))
    columns = ("category", ">n", f">{plain['name']}\ntokens/s", ">tokens/s", ">speed-up", ">95 %")
    return Sheet(f"{method['name']} against {plain['name']}", (*columns, "finding"), tuple(rows))


def _theory(method: Report) -> Sheet:
    rows = [
        (
            category,
            _fixed(one["mean_acceptance_length"]),
            _fixed(one["alpha"]),
            _fixed(one["coverage"]),
            _fixed(one["cost_ratio_c"], 3),
            _fixed(one["predicted_speedup"]),
            _fixed(one["predicted_from_lengths"]),
            _fixed(one["decode_speedup"]),
        )
        for category, one in method["categories"].items()
    ]
    columns = ("category", ">accept.\nlength", ">α", ">cover-\nage", ">c", ">theory,\nfrom α", ">from\nlengths")
    title = f"{method['name']}: acceptance, and the speed-up of decoding"
    return Sheet(title, (*columns, ">measured"), tuple(rows))


def _positions(methods: Sequence[Report]) -> Sheet:
    deepest = max((int(depth) for one in methods for depth in one["acceptance_by_position"]), default=0)
    depths = [str(depth) for depth in range(1, min(deepest, _POSITIONS) + 1)]
    rows = [
        (one["name"], *(_fixed(one["acceptance_by_position"].get(depth, {}).get("rate")) for depth in depths))
        for one in methods
    ]
    return Sheet("Accepted at position i, if all before it were", ("method", *(f">{d}" for d in depths)), tuple(rows))


def _stages(methods: Sequence[Report]) -> Sheet:
    names = [field.name for field in fields(Timing)]
    rows = []
    for one in methods:
        timing = one["timing"]
        shares = [f"{100 * timing[name] / timing['wall']:.1f}" for name in names]
        rows.append((one["name"], *shares, f"{100 * timing['outside_share']:.1f}"))
    return Sheet("Where the time went, % of wall time", ("method", *(f">{n}" for n in names), ">outside"), tuple(rows))


def print_sheets(sheets: Iterable[Sheet], sentences: Sequence[str], markdown: bool, color: bool | None) -> None:
    if markdown:
        print("\n\n".join([*(sheet.markdown() for sheet in sheets), *sentences]))
        return
    out = show.console(sys.stdout, color)
    for sheet in sheets:
        out.print(sheet.title, style="bold")
        table = show.table(*sheet.columns)
        for row in sheet.rows:
            table.add_row(*row)
        out.print(table)
        out.print()
    for sentence in sentences:
        out.print(sentence)


def _reach(model: Report) -> str:
    name, reach = model["name"], model["bandwidth_gb_s"]
    memory = f"{reach:.1f} GB/s read from memory by {show.count(model['threads'], 'thread')}"
    if model["achieved_gb_s"] is None:
        return f"{name}: the size of its weights is not known; {memory}."
    share = show.percent(model["bandwidth_share"])
    return f"{name}: weights at {model['achieved_gb_s']:.1f} GB/s over one token, {share} of {memory}."


def _share(value: float | None) -> str:
    return "–" if value is None else show.percent(value)


def _timed(curve: Report, k: str) -> tuple[str, str, str]:
    return f"{1e3 * curve['tokens'][k]:.2f}", f"{1e3 * curve['minimum'][k]:.2f}", f"{curve['ratio'][k]:.2f}"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(one: Report) -> str:
    return f"{one['low']:.2f}–{one['high']:.2f}"


def _finding(one: Report) -> str:
    return "no measurable\ndifference" if one["verdict"] == NO_DIFFERENCE else str(one["verdict"])


def _one_line(text: str) -> str:
    return text.replace("-\n", "").replace("\n", " ").replace("|", "\\|")
