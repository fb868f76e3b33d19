"""The figures of the benchmark's reports: cost curves, speed-ups, acceptance by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.plots import style

Report = Mapping[str, Any]
_MOST_POSITIONS = 16
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))


def figures(report: Report) -> dict[str, Any]:
    """Name -> figure: those that this report has the numbers for."""
    if report["kind"] == "cost":
        return {"cost": cost(report)}
    made = {}
    others = [one for one in report["methods"] if one["name"] != report["baseline"]]
    if others:
        made["speedup"] = speedups(report, others)
    drafting = [one for one in report["methods"] if one["acceptance_by_position"]]
    if drafting:
        made["acceptance"] = acceptance(report, drafting)
    return made


def cost(report: Report) -> Any:
    """Left milliseconds, right the ratio to one token; a colour a model, a line style a context length."""
    made, (left, right) = style.figure(8.4, 3.9, columns=2)
    longest = 1
    for number, model in enumerate(report["models"]):
        for dash, (context, curve) in zip(_styles(len(model["by_context"])), model["by_context"].items(), strict=True):
            counts = [int(k) for k in curve["tokens"]]
            longest = max(longest, *counts)
            look = {"color": style.color(number), "linestyle": dash, "marker": style.marker(number)}
            label = f"{model['name']}, context {context}"
            left.plot(counts, [1e3 * seconds for seconds in curve["tokens"].values()], label=label, **look)
            right.plot(counts, list(curve["ratio"].values()), **look)
    right.axhline(1, color=style.INK, linewidth=0.8, zorder=0)
    for axes, title in ((left, "Time of a target call, ms"), (right, "Ratio to a call over one token")):
        axes.set_title(title)
        axes.set_xlabel("tokens in the call")
        axes.set_xlim(0.5, longest + 0.5)
        axes.set_xticks(_ticks(longest))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    _legend_below(made, left, columns=2)
    return made


def speedups(report: Report, methods: Sequence[Report]) -> Any:
    """Categories downwards, a point with its 95 % interval for each method; the line at 1 is the baseline."""
    names = list(methods[0]["categories"])
    rows = [*names, "geometric mean"]
    made, (axes,) = style.figure(7.2, 1.5 + max(0.36, 0.17 * len(methods)) * len(rows))
    axes.axvline(1, color=style.INK, linewidth=0.8)
    for number, method in enumerate(methods):
        entries = [*(method["categories"][name] for name in names), {**method, "speedup": method["geomean_speedup"]}]
        offset = 0.7 * ((number + 0.5) / len(methods) - 0.5)
        places = [row + offset for row in range(len(rows))]
        values = [one["speedup"] for one in entries]
        arms = [[v - one["low"] for v, one in zip(values, entries, strict=True)]]
        arms.append([one["high"] - v for v, one in zip(values, entries, strict=True)])
        look = {"color": style.color(number), "fmt": style.marker(number), "elinewidth": 1.4, "capsize": 0}
        axes.errorbar(values, places, xerr=arms, label=method["name"], **look)
    for row in range(len(rows) - 1):
        axes.axhline(row + 0.5, color=style.FAINT, linewidth=1.2 if row == len(rows) - 2 else 0.6)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _ratio_axis(axes, methods)
    axes.set_title(f"Speed-up over {report['baseline']}, with 95 % intervals")
    axes.set_xlabel(f"wall time of {report['baseline']} / wall time (higher is faster)")
    if len(methods) > 1:
        _legend_below(made, axes, columns=2)
    else:
        axes.set_title(f"Speed-up of {methods[0]['name']} over {report['baseline']}, with 95 % intervals")
    return made


def acceptance(report: Report, methods: Sequence[Report]) -> Any:
    """Conditional acceptance rate at each position of a draft."""
    made, (axes,) = style.figure(6.0, 3.6)
    longest = 1
    for number, method in enumerate(methods):
        rates = {int(depth): one["rate"] for depth, one in method["acceptance_by_position"].items()}
        depths = [depth for depth in sorted(rates) if depth <= _MOST_POSITIONS]
        longest = max(longest, *depths)
        look = {"color": style.color(number), "marker": style.marker(number)}
        axes.plot(depths, [rates[depth] for depth in depths], label=method["name"], **look)
    axes.set_title("Accepted at this position, if all before it were")
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of draft tokens")
    axes.set_xlim(0.5, longest + 0.5)
    axes.set_xticks(_ticks(longest))
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y")
    _label_ends(axes, methods, longest)
    return made


def _label_ends(axes: Any, methods: Sequence[Report], longest: int) -> None:
    """Names at the right ends of the lines instead of a legend, pushed apart where they would overlap."""
    lines = axes.get_lines()
    heights = style.spread([line.get_ydata()[-1] for line in lines], 0.065)
    for line, height, method in zip(lines, heights, methods, strict=True):
        axes.annotate(
            method["name"],
            (longest, height),
            xytext=(8, 0),
            textcoords="offset points",
            color=line.get_color(),
            verticalalignment="center",
            annotation_clip=False,
        )


def _ratio_axis(axes: Any, methods: Sequence[Report]) -> None:
    """From 0 where that costs no room; a logarithmic axis where the ratios span more than a factor of six."""
    ends = [one[key] for method in methods for one in method["categories"].values() for key in ("low", "high")]
    low, high = min(1.0, *ends), max(1.0, *ends)
    axes.grid(axis="x")
    if high / low < 6:
        axes.set_xlim(0, 1.06 * high)
        return
    axes.set_xscale("log")
    axes.set_xlim(low / 1.1, high * 1.1)
    steps = [
        m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    ]
    shown = [step for step in steps if low / 1.1 <= step <= high * 1.1]
    axes.set_xticks(shown, [f"{step:g}" for step in shown])
    axes.minorticks_off()


def _legend_below(made: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def _styles(count: int) -> list[Any]:
    return [_DASHES[i % len(_DASHES)] for i in range(count)]


def _ticks(longest: int) -> list[int]:
    step = max(1, math.ceil(longest / 16))
    return [1, *range(1 + step, longest + 1, step)] if step == 1 else [1, *range(step, longest + 1, step)]
