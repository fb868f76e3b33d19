"""The examples run, say what they should, and stay short."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
NUMBER = r"(\d\.\d+e[-+]\d+)"


def output(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the example prints when it is called without arguments."""
    file = FOLDER / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file)])
    runpy.run_path(str(file), run_name="__main__")
    return capsys.readouterr().out


def distances(printed: str) -> list[float]:
    return [float(number) for number in re.findall(NUMBER, printed)]


def test_generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = output("generate", monkeypatch, capsys)
    calls = re.search(r"^40 tokens in (\d+) target calls", printed, re.M)
    assert calls and int(calls[1]) < 40
    assert "+'" in printed and "*'" in printed


def test_custom_drafter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = re.search(r"^400 tokens in (\d+) target calls", output("custom_drafter", monkeypatch, capsys), re.M)
    assert calls and int(calls[1]) < 300


def test_custom_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    token, block, lenient = distances(output("custom_rule", monkeypatch, capsys))
    assert token < 1e-12 and block < 1e-12 and lenient > 0.05


def test_audit_drafter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    honest, picky = distances(output("audit_drafter", monkeypatch, capsys))
    assert honest < 1e-12 and picky > 0.05


def test_transformers_generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = output("transformers_generate", monkeypatch, capsys)
    assert printed.count("same tokens: True") == len(printed.splitlines()) == 2


def test_every_example_is_run_here_and_is_under_40_lines() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert files and all(f"test_{file.stem}" in globals() for file in files)
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) < 40, f"{file.name} is no longer short"
