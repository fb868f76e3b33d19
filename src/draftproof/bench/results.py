"""Reading the reports of the benchmark back from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftproof.types import InputError

_KINDS = {"cost": "models", "run": "methods", "peers": "methods"}
_NEEDED = {
    "cost": ("name", "threads", "by_context", "bandwidth_gb_s", "achieved_gb_s"),
    "run": ("name", "categories", "geomean_speedup", "low", "high", "acceptance_by_position"),
}


def read(path: str | Path) -> dict[str, Any]:
    """A report of `draftproof bench`. InputError for every other file.

    The last line of a file counts where it is no single object: the output of --json may have been kept whole.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no report of draftproof bench: it is not text.") from error
    report = _object(text)
    report = _object(text.rpartition("\n")[2]) if report is None else report
    if report is None:
        raise InputError(f"{path} is no report of draftproof bench: it is not JSON.")
    # Published results wrap a report in what is said about it.
    inner = report.get("result")
    report = inner if "kind" not in report and isinstance(inner, dict) else report
    if not _fits(report):
        raise InputError(
            f"{path} is no report of draftproof bench: write one by bench cost or bench run with --output."
        )
    return report


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fits(report: dict[str, Any]) -> bool:
    """Is it of a known kind, with entries that hold what a reader needs?"""
    kind = report.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        return False
    entries, needed = report.get(_KINDS[kind]), _NEEDED["cost" if kind == "cost" else "run"]
    good = isinstance(entries, list) and bool(entries) and isinstance(report.get("provenance"), dict)
    return good and all(isinstance(one, dict) and set(needed) <= set(one) for one in entries or ())
