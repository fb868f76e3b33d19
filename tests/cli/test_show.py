from __future__ import annotations

import io
import json

import pytest
from cli.calls import ESCAPE
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from draftproof.cli import show
from draftproof.prompts import bundled, categories
from draftproof.run import Piece

PIECES = st.lists(st.text("ab \n字é", min_size=1, max_size=9).map(lambda text: Piece(text, "accepted")), max_size=30)


def wrapped(pieces: list[Piece], width: int, **settings: bool) -> str:
    file = io.StringIO()
    writer = show.Wrapped(Console(file=file, width=width, **settings))  # type: ignore[arg-type]
    for piece in pieces:
        writer.write(piece)
    writer.end()
    return file.getvalue()


@given(PIECES, st.integers(30, 90))
def test_wrapping_keeps_the_words_and_the_width(pieces: list[Piece], width: int) -> None:
    shown = wrapped(pieces, width)
    text = "".join(piece.text for piece in pieces)
    assert "".join(shown.split()) == "".join(text.split())
    longest = max((cell_len(word) for word in text.split()), default=0)
    assert all(cell_len(line) <= max(width, longest + 4) for line in shown.split("\n"))
    assert not ESCAPE.search(shown) and not any(line.endswith(" ") for line in shown.split("\n"))


def test_wrapping_keeps_indentation_and_blank_lines() -> None:
    code = "def f():\n    return 1\n\nf()"
    assert wrapped([Piece(code, "plain")], 40) == "".join(f"  {line}\n" if line else "\n" for line in code.split("\n"))


@given(PIECES)
def test_wrapping_breaks_between_words_wherever_the_pieces_end(pieces: list[Piece]) -> None:
    joined = [Piece("".join(piece.text for piece in pieces) or " ", "accepted")]
    assert wrapped(pieces, 40).strip() == wrapped(joined, 40).strip()


def test_wrapped_text_keeps_its_colours() -> None:
    shown = wrapped([Piece("ab ", "accepted"), Piece("c", "bonus")], 40, force_terminal=True)
    assert "\x1b[32ma" in shown and "\x1b[94mc" in shown


@given(st.text())
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    shown = show.visible(text)
    assert len(shown) == len(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown)


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_json({"a": float("inf"), "b": [float("nan"), 1.5, ("x", {1: 2})]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5, ["x", {"1": 2}]]}


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.69e8, "269 MB"), (3e13, "30 TB")]
)
def test_sizes(number: float, text: str) -> None:
    assert show.size(number) == text


def test_bundled_prompts_are_natural_and_complete() -> None:
    prompts = bundled()
    assert set(categories()) >= {"chat", "rewriting", "summarising", "question-answering", "code"}
    for category in categories():
        assert 4 <= len(bundled(category)) <= 6
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert all(
        (len(turn) > 40 and turn == turn.strip()) or "```" in turn for prompt in prompts for turn in prompt.turns
    )
