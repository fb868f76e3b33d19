"""How the report of `draftproof bench peers` looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.cli import bench_tables, show
from draftproof.cli.bench_tables import Sheet

Report = Mapping[str, Any]
_CATEGORIES = 5


def show_peers(report: Report, markdown: bool, color: bool | None = None) -> None:
    """All methods, tokens/s by category, ours against the best mode of each other project, then the notes."""
    bench_tables.print_sheets(peer_sheets(report), report["notes"], markdown, color)


def peer_sheets(report: Report) -> list[Sheet]:
    """The tables; many categories are split, so that each fits a terminal."""
    names = list(report["methods"][0]["categories"])
    parts = [names[at : at + _CATEGORIES] for at in range(0, len(names), _CATEGORIES)]
    sheets = [_overview(report), _agreement(report), *(_by_category(report, part) for part in parts)]
    return [*sheets, *(_ahead(report, size, part) for size in _sizes(report) for part in parts)]


def _overview(report: Report) -> Sheet:
    rows = [
        (
            one["name"],
            show.count(one["setting"]["threads"], "thread"),
            _fixed(one["tokens_per_s"], 1),
            _fixed(one["decode_tokens_per_s"], 1),
            _fixed(one["geomean_speedup"]),
            f"{_fixed(one['low'])}–{_fixed(one['high'])}",
        )
        for one in report["methods"]
    ]
    title = f"All prompts (speed-up over {report['baseline']}: geometric mean over categories)"
    return Sheet(title, ("method", "", ">tokens/s", ">behind\n1st tok.", ">speed-\nup", ">95 %"), tuple(rows))


def _agreement(report: Report) -> Sheet:
    rows = [
        (
            one["name"],
            _setting(one["setting"]),
            _length(one),
            show.percent(one["same_tokens_share"]),
            "–" if one["same_as_own_plain_share"] is None else show.percent(one["same_as_own_plain_share"]),
            _fixed(max((abs(d["margin"] or 0) for d in one["first_differences"].values()), default=None)),
        )
        for one in report["methods"]
    ]
    columns = ("method", "attention", ">accept.\nlength", ">as\nours", ">as its\nplain", ">largest\nmargin")
    title = "Prompts with the tokens of our plain decoding of as many bits, and of its own; logits apart where it parts"
    return Sheet(title, columns, tuple(rows))


def _by_category(report: Report, names: Sequence[str]) -> Sheet:
    rows = [
        (one["name"], *(_fixed(one["categories"][name]["tokens_per_s"], 1) for name in names))
        for one in report["methods"]
    ]
    return Sheet("Tokens/s by category", ("method", *(f">{name}" for name in names)), tuple(rows))


def _ahead(report: Report, size: int, names: Sequence[str]) -> Sheet:
    entries = [one for one in report["ahead"] if one["bits"] == size]
    rows = [
        (
            one["name"].removeprefix("draftproof "),
            one["project"],
            *(_against(one["categories"][name]) for name in names),
            _against({**one, "ratio": one["geomean"]}),
        )
        for one in entries
    ]
    title = f"{size} bits a weight: our tokens/s over those of the other's best mode in each category"
    return Sheet(title, ("ours", "against", *(f">{name}" for name in names), ">geometric\nmean of all"), tuple(rows))


def _sizes(report: Report) -> Sequence[int]:
    return sorted({one["bits"] for one in report["ahead"]}, reverse=True)


def _against(one: Report) -> str:
    return f"{_fixed(one['ratio'])}\n({_fixed(one['low'])}–{_fixed(one['high'])})"


def _setting(setting: Mapping[str, Any]) -> str:
    """What is chosen besides threads and precision."""
    return str(setting.get("attention", "fused" if setting.get("flash_attn") else ""))


def _length(one: Report) -> str:
    return _fixed(one["speculation"]["mean_acceptance_length"]) if one["speculation"] else "–"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
