"""`draftproof bench`: what a target call costs, and what speculation brings. A sub-command a file."""

from __future__ import annotations

import typer

from draftproof.cli import bench_cost, bench_peers, bench_run

HELP = """Measure: what a target call costs, and what speculation brings.

Methods are interleaved, warm-ups dropped, speed-ups have intervals, and each report says where it comes from.
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=HELP)
app.command("cost", help=bench_cost.HELP)(bench_cost.command)
app.command("run", help=bench_run.HELP)(bench_run.command)
app.command("peers", help=bench_peers.HELP)(bench_peers.command)
