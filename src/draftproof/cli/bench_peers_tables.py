"""How the report of `draftproof bench peers` looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.cli import bench_tables, show
from draftproof.cli.bench_tables import Sheet

Report = Mapping[str, Any]


def show_peers(report: Report, markdown: bool, color: bool | None = None) -> None:
    """All methods, tokens/s by category, ours against the best mode of each other project, then the notes."""
    bench_tables.print_sheets(peer_sheets(report), report["notes"], markdown, color)


def peer_sheets(report: Report) -> list[Sheet]:
    """The tables."""
    return [_overview(report), _by_category(report), *(_ahead(report, size) for size in _sizes(report))]


def _overview(report: Report) -> Sheet:
    rows = [
        (
            one["name"],
            _setting(one["setting"]),
            _fixed(one["tokens_per_s"], 1),
            _fixed(one["decode_tokens_per_s"], 1),
            f"{_fixed(one['geomean_speedup'])} ({_fixed(one['low'])}–{_fixed(one['high'])})",
            _length(one),
            show.percent(one["same_tokens_share"]),
            "–" if one["same_as_own_plain_share"] is None else show.percent(one["same_as_own_plain_share"]),
        )
        for one in report["methods"]
    ]
    columns = ("method", "setting", ">tokens/s", ">behind the\n1st token", ">speed-up\n(95 %)", ">accept.\nlength")
    title = f"All prompts (speed-up over {report['baseline']}: geometric mean over categories)"
    return Sheet(title, (*columns, ">tokens\nas ours", ">as its\nown plain"), tuple(rows))


def _by_category(report: Report) -> Sheet:
    names = list(report["methods"][0]["categories"])
    rows = [
        (one["name"], *(_fixed(one["categories"][name]["tokens_per_s"], 1) for name in names))
        for one in report["methods"]
    ]
    return Sheet("Tokens/s by category", ("method", *(f">{name}" for name in names)), tuple(rows))


def _ahead(report: Report, size: int) -> Sheet:
    entries = [one for one in report["ahead"] if one["bits"] == size]
    names = list(entries[0]["categories"])
    rows = [
        (one["name"], one["project"], *(_against(one["categories"][name]) for name in names), _fixed(one["geomean"]))
        for one in entries
    ]
    title = f"{size} bits a weight: tokens/s over those of the best mode of another project in each category"
    return Sheet(title, ("ours", "against", *(f">{name}" for name in names), ">geometric\nmean"), tuple(rows))


def _sizes(report: Report) -> Sequence[int]:
    return sorted({one["bits"] for one in report["ahead"]}, reverse=True)


def _against(one: Report) -> str:
    return f"{_fixed(one['ratio'])}\n({_fixed(one['low'])}–{_fixed(one['high'])})"


def _setting(setting: Mapping[str, Any]) -> str:
    shown = dict(setting)
    threads, flash = shown.pop("threads"), shown.pop("flash_attn", False)
    others = [str(value) for key, value in shown.items() if key != "dtype"]
    return ", ".join([show.count(threads, "thread"), *others, *(["flash"] if flash else [])])


def _length(one: Report) -> str:
    return _fixed(one["speculation"]["mean_acceptance_length"]) if one["speculation"] else "–"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
