"""The figures of the benchmark's reports: cost curves, speed-ups, acceptance by position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.plots import style

Report = Mapping[str, Any]
_MOST_POSITIONS = 16
_MOST_SPAN = 8
_CHARACTER = 0.075  # inches a character of a legend takes
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
    made, (left, right) = style.figure(8.4, 4.0, columns=2)
    models, contexts = report["models"], list(report["models"][0]["by_context"])
    for number, model in enumerate(models):
        for place, curve in enumerate(model["by_context"].values()):
            counts = [int(k) for k in curve["tokens"]]
            look = {"color": style.color(number), "marker": style.marker(number), "linestyle": _dash(place)}
            left.plot(counts, [1e3 * seconds for seconds in curve["tokens"].values()], **look)
            right.plot(counts, list(curve["ratio"].values()), **look)
    right.axhline(1, color=style.INK, linewidth=0.8, zorder=0)
    longest = max(int(k) for curve in models[0]["by_context"].values() for k in curve["tokens"])
    for axes, title in ((left, "Time of a target call, ms"), (right, "Ratio to a call over one token")):
        axes.set_title(title)
        axes.set_xlabel("tokens in the call")
        axes.set_xlim(0.5, longest + 0.5)
        axes.set_xticks(_ticks(longest))
        axes.grid(axis="y")
        _scale(axes.yaxis, [value for line in axes.get_lines() for value in line.get_ydata()])
    keys = [_key(number, model["name"]) for number, model in enumerate(models)]
    styles = [style.key(f"behind {c} tokens", color=style.INK, linestyle=_dash(i)) for i, c in enumerate(contexts)]
    _legend_below(made, [*keys, *styles])
    return made


def speedups(report: Report, methods: Sequence[Report]) -> Any:
    """Categories downwards, a point with its 95 % interval for each method; the line at 1 is the baseline."""
    names = list(methods[0]["categories"])
    rows = [*names, "geometric mean"]
    made, (axes,) = style.figure(7.2, 1.5 + max(0.36, 0.15 + 0.08 * len(methods)) * len(rows))
    axes.axvline(1, color=style.INK, linewidth=0.8)
    for number, method in enumerate(methods):
        entries = [*(method["categories"][name] for name in names), {**method, "speedup": method["geomean_speedup"]}]
        offset = 0.7 * ((number + 0.5) / len(methods) - 0.5)
        places = [row + offset for row in range(len(rows))]
        values = [one["speedup"] for one in entries]
        arms = [[v - one["low"] for v, one in zip(values, entries, strict=True)]]
        arms.append([one["high"] - v for v, one in zip(values, entries, strict=True)])
        look = {"color": style.color(number), "fmt": style.marker(number), "elinewidth": 1.4, "capsize": 0}
        axes.errorbar(values, places, xerr=arms, **look)
    for row in range(len(rows) - 1):
        axes.axhline(row + 0.5, color=style.FAINT, linewidth=1.2 if row == len(rows) - 2 else 0.6)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    ends = [one[key] for method in methods for one in method["categories"].values() for key in ("low", "high")]
    _scale(axes.xaxis, [1.0, *ends])
    axes.set_title(f"Speed-up over {report['baseline']}, with 95 % intervals")
    axes.set_xlabel(f"wall time of {report['baseline']} / wall time (higher is faster)")
    _legend_below(made, [_key(number, one["name"], "") for number, one in enumerate(methods)])
    return made


def acceptance(report: Report, methods: Sequence[Report]) -> Any:
    """Conditional acceptance rate at each position of a draft."""
    made, (axes,) = style.figure(6.0, 3.6)
    longest = 1
    for number, method in enumerate(methods):
        rates = {int(depth): one["rate"] for depth, one in method["acceptance_by_position"].items()}
        depths = [depth for depth in sorted(rates) if depth <= _MOST_POSITIONS]
        longest = max(longest, *depths)
        look = {"color": style.color(number), "marker": style.marker(number), "clip_on": False}
        axes.plot(depths, [rates[depth] for depth in depths], **look)
    axes.set_title("Accepted at this position, if all before it were")
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted share of draft tokens")
    axes.set_xlim(0.5, longest + 0.5)
    axes.set_xticks(_ticks(longest))
    axes.set_ylim(0, 1)
    axes.grid(axis="y")
    _legend_below(made, [_key(number, method["name"]) for number, method in enumerate(methods)])
    return made


def _scale(axis: Any, values: Sequence[float]) -> None:
    """An axis from 0; a logarithmic one with ticks at 1, 2, 5 where the values span more than a factor of eight."""
    low, high = min(values), max(values)
    limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim
    if high < _MOST_SPAN * low:
        limits(0, 1.06 * high)
        return
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    limits(low / 1.15, high * 1.15)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    shown = [m * 10.0**e for e in powers for m in (1, 2, 5) if low / 1.15 <= m * 10.0**e <= high * 1.15]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])
    axis.set_minor_locator(style.no_ticks())


def _key(number: int, name: str, line: str = "-") -> Any:
    """An entry of a legend."""
    return style.key(name, color=style.color(number), marker=style.marker(number), linestyle=line)


def _legend_below(made: Any, keys: Sequence[Any]) -> None:
    """Two columns where the names are short enough for the figure's width."""
    most = max(len(key.get_label()) for key in keys)
    columns = 2 if (2 * most + 14) * _CHARACTER < made.get_figwidth() else 1
    made.legend(handles=keys, loc="outside lower center", ncols=min(columns, len(keys)))


def _dash(number: int) -> Any:
    return _DASHES[number % len(_DASHES)]


def _ticks(longest: int) -> list[int]:
    step = max(1, math.ceil(longest / 16))
    return sorted({1, *range(step, longest + 1, step)})
