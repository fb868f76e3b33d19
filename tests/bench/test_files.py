"""Where numbers come from, and reading reports back."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.scripted import answered, items, reported

from draftproof.bench import provenance, results
from draftproof.types import InputError


def run_report() -> dict[str, Any]:
    """A small report of `bench run`."""
    made = reported(items(chat=2), null=answered(2.0), other=answered(1.0))
    return {"kind": "run", **made, "provenance": {}}


def test_provenance_names_machine_versions_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draftproof", "bench", "cost", f"{Path.home()}/a model", "--json"])
    made = provenance.provenance(("numpy", "no-such-package"))
    assert made["command"] == "draftproof bench cost '~/a model' --json"
    assert list(made["versions"]) == ["numpy"] and made["cores"] >= 1 and made["cpu"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["date"])
    assert made["commit"] is None or re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", made["commit"])
    json.dumps(made)


def test_outside_a_checkout_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.commit() is None


@pytest.mark.parametrize("wrap", ["plain", "indented", "in a result", "last line"])
def test_reports_are_read_as_written_wrapped_or_as_printed(tmp_path: Path, wrap: str) -> None:
    report = json.loads(json.dumps(run_report()))
    text = {
        "plain": json.dumps(report),
        "indented": json.dumps(report, indent=1),
        "in a result": json.dumps({"command": "x", "result": report}),
        "last line": f"something was said\n{json.dumps(report)}\n",
    }[wrap]
    (tmp_path / "run.json").write_text(text)
    assert results.read(tmp_path / "run.json") == report


BAD = {
    "nothing": "",
    "text": "hello",
    "list": "[1]",
    "another object": '{"a": 1}',
    "another kind": '{"kind": "audit", "methods": [], "provenance": {}}',
    "no methods": '{"kind": "run", "methods": [], "provenance": {}}',
    "methods of nothing": '{"kind": "run", "methods": [{"name": "x"}], "provenance": {}}',
    "kind of a kind": '{"kind": ["run"], "methods": [{}], "provenance": {}}',
    "numbers for models": '{"kind": "cost", "models": [1, 2], "provenance": {}}',
    "deep": "[" * 200_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(InputError, match="no report of draftproof bench"):
        results.read(file)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path, tmp_path / "missing", tmp_path / "bytes"):
        with pytest.raises(InputError, match=re.escape(str(file))):
            results.read(file)
