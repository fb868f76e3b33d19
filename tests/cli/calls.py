"""Running a command line in this process."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from draftproof.cli.__main__ import run

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
TOY = ("--target", "toy:3,vocab=40")


@dataclass(frozen=True)
class Called:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object on the last line."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def lines(self) -> list[Any]:
        """Every line as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Call:
    """`call("generate", "hi", stdin=b"")`: standard input is a pipe with these bytes."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Called:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        code = run(list(arguments))
        out, err = self._capsys.readouterr()
        return Called(code, out, err)
