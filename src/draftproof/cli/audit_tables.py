"""How the audits' reports look in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.text import Text

from draftproof.audit import exact, paths, sampled
from draftproof.audit.statistics import POWER
from draftproof.cli import show

_BAR = 20


def show_exact(report: exact.Report) -> None:
    """Drafters x rules with the largest distance, then the controls."""
    out = show.console(sys.stdout)
    cells: dict[tuple[str, str], list[exact.Result]] = {}
    for result in report.results:
        cells.setdefault((result.case.drafter, result.case.rule), []).append(result)
    drafters, rules = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    table = show.table("drafter", *(f">{rule}" for rule in rules), title="Largest total variation (combinations)")
    for drafter in drafters:
        table.add_row(drafter, *(_cell(cells.get((drafter, rule), ())) for rule in rules))
    out.print(table)
    engines = sum(result.case.engine for result in report.results)
    outside = sum(result.outside for result in report.results)
    out.print(
        f"\n{len(report.results)} combinations ({engines} through the whole engine as well): largest total variation "
        f"{report.max_total_variation:.1e}, sequences outside the target's support: {outside}\n"
    )
    for result in report.results:
        if not result.passed:
            out.print(f"WRONG: {result}", style="red")
    out.print(_controls(report))
    _passed(report.passed)


def _cell(results: Sequence[exact.Result]) -> Text:
    if not results:
        return Text("–", "dim")
    good = all(result.passed for result in results)
    worst = max(result.total_variation for result in results)
    return Text(f"{worst:.0e} ({len(results)})", "green" if good else "bold red")


def _controls(report: exact.Report) -> object:
    table = show.table("wrong on purpose", ">distance", "", "", "what it mirrors")
    for one in report.findings:
        bar = "█" * max(1, round(_BAR * min(1.0, one.total_variation)))
        style, found = ("green", "caught") if one.caught else ("bold red", "MISSED")
        table.add_row(one.name, f"{one.total_variation:.3f}", Text(bar, style), Text(found, style), one.mirrors)
    return table


def show_sampled(report: sampled.Report) -> None:
    """One row a combination, then the controls and the independence of unseeded requests."""
    out, defects, plan = show.console(sys.stdout), report.defects(), report.plan
    out.print(
        f"Joint law of the first {plan.tokens} tokens, {plan.draws:,} draws a combination. A right engine fails with "
        f"probability {plan.alpha:g} at most; a shift of the total variation under 'detects' is found with "
        f"{show.percent(POWER)}.\n"
    )
    table = show.table("combination", ">cells", ">chi²", ">p-value", ">detects", ">outside", ">accepted", "")
    for one in report.tests:
        found = Text("DEFECT", "bold red") if one.name in defects else Text("ok", "green")
        table.add_row(*_row(one), found)
    for one in report.controls:
        found = Text("caught", "green") if report.caught(one) else Text("MISSED", "bold red")
        table.add_row(f"wrong on purpose: {one.name}", *_row(one)[1:], found)
    out.print(table)
    out.print(
        f"\nunseeded requests: {report.duplicates} of {sampled.PAIRS} pairs equal, p-value {report.independence:.3g}"
    )
    _passed(report.passed, defects)


def _row(one: sampled.Tested) -> tuple[str, ...]:
    numbers = f"{one.statistic:.1f}", f"{one.p_value:.3g}", f"{one.detectable:.3f}", str(one.outside)
    return one.name, str(one.cells), *numbers, f"{one.accepted:.2f}"


def show_paths(report: paths.Report) -> None:
    """The differences, then the counts."""
    out, summary = show.console(sys.stdout), report.summary()
    table = show.table("prompt", ">seed", ">position", ">plain margin", ">verified margin", ">gap", ">noise", "")
    for one in report.comparisons:
        if (found := one.difference) is None:
            continue
        numbers = (found.plain_margin, found.speculative_margin, found.gap, found.noise)
        seed = "" if one.seed is None else str(one.seed)
        style = "bold red" if one.finding == "defect" else "yellow"
        shown = (f"{number:.3g}" for number in numbers)
        table.add_row(str(one.prompt), seed, str(found.position), *shown, Text(one.finding, style))
    if table.row_count:
        out.print(table)
    out.print(
        f"{summary['prompts']} prompts, {summary['runs']} runs: {summary['identical']} identical, "
        f"{summary['numeric_ties']} numeric ties, {summary['defects']} defects ({summary['tokens']} tokens, "
        f"{summary['accepted_tokens']} of {summary['draft_tokens']} draft tokens accepted)"
    )
    if not summary["draft_tokens"]:
        out.print("nothing was drafted, so this says nothing about speculation", style="yellow")
    _passed(report.passed)


def _passed(passed: bool, defects: Sequence[str] = ()) -> None:
    out = show.console(sys.stdout)
    out.print("passed" if passed else " · ".join(["FAILED", *defects]), style="bold green" if passed else "bold red")
