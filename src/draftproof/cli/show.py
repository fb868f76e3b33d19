"""How things look: text coloured by kind of token, tables, one-line statistics, JSON."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from draftproof.memory import size as size
from draftproof.run import Piece
from draftproof.stats import Stats

STYLES = {"accepted": "green", "correction": "yellow", "bonus": "bright_blue", "plain": "dim"}
LEGEND = {
    "accepted": "accepted draft token",
    "correction": "correction",
    "bonus": "bonus token",
    "plain": "nothing drafted",
}
# Control characters a model may write, which a terminal would obey.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(128, 160), 65533)


def console(stream: TextIO, color: bool | None = None) -> Console:
    """For stdout or stderr; colours where it is a terminal unless told otherwise. Never cuts or decorates text."""
    settings: dict[str, Any] = {"file": stream, "highlight": False, "emoji": False, "markup": False}
    if color is not None:
        settings["no_color"] = not color
    if color is True and not stream.isatty():
        settings["force_terminal"], settings["color_system"] = True, "standard"
    return Console(**settings)


def notice(text: str, style: str = "dim") -> None:
    """A line about what is done, on standard error."""
    err = console(sys.stderr)
    err.print(Text(text, style if err.is_terminal else ""), soft_wrap=not err.is_terminal)


class Writer:
    """Streams pieces of text to standard output as they come; colours by kind of token where wanted."""

    def __init__(self, color: bool | None, plain: bool = False, silent: bool = False) -> None:
        """plain: nothing is drafted, so there is nothing to tell apart. silent: write nothing at all."""
        self._console = console(sys.stdout, color)
        shown = color is True or (color is None and self._console.is_terminal and not self._console.no_color)
        self._colored = shown and not plain and not silent
        self._terminal, self._silent = sys.stdout.isatty(), silent
        self._last = "\n"

    def legend(self) -> None:
        """What the colours mean, on standard error."""
        if self._colored and sys.stderr.isatty():
            console(sys.stderr).print(legend())

    def write(self, pieces: Sequence[Piece]) -> None:
        """Their text, exactly where standard output is no terminal."""
        for piece in [] if self._silent else pieces:
            self._last = piece.text[-1]
            text = visible(piece.text) if self._terminal else piece.text
            if self._colored:
                self._console.print(Text(text, STYLES[piece.origin]), end="", soft_wrap=True)
            else:
                sys.stdout.write(text)
        sys.stdout.flush()

    def end(self) -> None:
        """Close the last line."""
        if self._last != "\n":
            sys.stdout.write("\n")
        self._last = "\n"
        sys.stdout.flush()


class Wrapped:
    """Pieces broken into lines between words, behind a margin; a word is printed when it is complete."""

    def __init__(self, out: Console, margin: str = "  ") -> None:
        self._out, self._margin = out, margin
        self._width = max(20, out.width - 1)
        self._column = self._spaces = 0
        self._word: list[tuple[str, str]] = []

    def write(self, piece: Piece) -> None:
        """Take over a piece."""
        for char in visible(piece.text):
            if char in " \n":
                self._put_word()
            if char == " ":
                self._spaces += 1
            elif char == "\n":
                self._break_line()
            else:
                self._word.append((char, STYLES[piece.origin]))
            if cell_len(char) > 1:
                self._put_word()

    def end(self) -> None:
        """The last word, and the end of its line."""
        self._put_word()
        if self._column:
            self._break_line()

    def _put_word(self) -> None:
        size = sum(cell_len(char) for char, _ in self._word)
        if not size:
            return
        if self._column and self._column + self._spaces + size > self._width:
            self._break_line()
        start = (self._margin if not self._column else "") + " " * self._spaces
        self._put(Text.assemble(start, *self._word))
        self._column += len(start) + size
        self._spaces, self._word = 0, []

    def _break_line(self) -> None:
        """Spaces at a line's end are dropped."""
        self._put(Text("\n"))
        self._column = self._spaces = 0

    def _put(self, text: Text) -> None:
        self._out.print(text, end="", soft_wrap=True)


def visible(text: str) -> str:
    """Control characters as pictures, so that a terminal shows them and does not obey them."""
    return text.translate(_VISIBLE)


def legend() -> Text:
    """One line: what each colour means."""
    parts: list[tuple[str, str]] = []
    for origin, meaning in LEGEND.items():
        parts += [("■ ", STYLES[origin]), (meaning, STYLES[origin]), ("   ", "")]
    return Text.assemble(*parts[:-1])


def statistics(stats: Stats, tokens_per_second: float) -> str:
    """The line behind a reply: counts first."""
    parts = [count(stats.tokens, "token"), count(stats.target_calls, "target call")]
    if stats.draft_tokens:
        length, expected = stats.mean_acceptance_length, stats.expected_acceptance_length
        share = f"{stats.accepted_tokens} of {stats.draft_tokens} drafted ({percent(stats.draft_acceptance_rate)})"
        parts += [f"mean acceptance length {length:.2f}, expected {expected:.2f}", f"accepted {share}"]
        parts.append(f"α {stats.alpha:.2f}")
    else:
        parts.append("nothing drafted")
    return " · ".join([*parts, f"{tokens_per_second:.1f} tokens/s"])


def table(*columns: str, title: str | None = None) -> Table:
    """A table with a head line; columns that begin with ">" are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.padding, made.show_edge = (0, 1, 0, 0), False
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return made


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line of standard output; what JSON has no number for becomes null."""
    sys.stdout.write(json.dumps(jsonable(value), allow_nan=False) + "\n")
    sys.stdout.flush()


def percent(share: float) -> str:
    """0.256 -> "26 %"."""
    return f"{100 * share:.0f} %"


def count(number: int, what: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something loads; silent when that is no terminal."""
    err = console(sys.stderr)
    with err.status(what) if err.is_terminal else contextlib.nullcontext():
        yield


class Bar:
    """A progress bar on standard error that shows up after two seconds; silent when that is no terminal."""

    def __init__(self, what: str, total: float) -> None:
        err = console(sys.stderr)
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._progress.add_task(what, total=total)
        self._possible, self._shown = err.is_terminal, False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def update(self, done: float, what: str | None = None) -> None:
        """So much of the total is done."""
        self._progress.update(self._task, completed=done, description=what)
        task = self._progress.tasks[0]
        if self._possible and not self._shown and (task.elapsed or 0) > 2:
            self._progress.start()
            self._shown = True

    def hide(self) -> None:
        """Off the screen until the next update, so that other lines can be printed."""
        if self._shown:
            self._progress.stop()
            self._shown = False


def jsonable(value: Any) -> Any:
    """The value with text keys and null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
