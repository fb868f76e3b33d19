from __future__ import annotations

import pytest
from cli.calls import Call


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "80")
    return Call(capsys, monkeypatch)
