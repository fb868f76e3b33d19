"""Streaming text and stop strings: a delta shows only what no later token can change, so none is taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from draftproof.types import InputError


class Tokens(Protocol):
    """What streaming needs of a tokenizer; `text.Text` has it."""

    byte_level: bool

    @property
    def tokens(self) -> Sequence[str | None]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def content(self, token: int) -> bytes: ...
    def is_byte(self, token: int) -> bool: ...
    def tail(self, ids: Sequence[int]) -> str: ...
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class Stream:
    """Text of a growing token list: the deltas of `push` and `flush` concatenate to `Text.decode` of all tokens.

    A delta is never taken back: bytes of an unfinished character and text that may begin a stop string are held
    back. With stop strings the result is `cut(Text.decode(tokens), stop_strings)`. Time is linear in the tokens.
    """

    def __init__(self, text: Tokens, stop_strings: Sequence[str] = (), skip_special: bool = True) -> None:
        self.stopped = False
        self._hidden = text.special_ids if skip_special else frozenset()
        self._known = text.tokens
        self._detokenizer: _Detokenizer = _Bytes(text) if text.byte_level else _Pieces(text)
        self._stops = StopStrings(stop_strings)

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is now certain, whether a stop string ended it); after the end always ("", True)."""
        if self.stopped:
            return "", True
        # Ids without a token (padding) and hidden ones are dropped before decoding, as the backend does.
        if token in self._hidden or not 0 <= token < len(self._known) or self._known[token] is None:
            return "", False
        delta, self.stopped = self._stops.push(self._detokenizer.push(token))
        return delta, self.stopped

    def flush(self) -> str:
        """What was still held back, once no token follows."""
        if self.stopped:
            return ""
        delta, self.stopped = self._stops.push(self._detokenizer.flush())
        return delta if self.stopped else delta + self._stops.flush()


class StopStrings:
    """Ends a text at the stop string that is complete first (of several that end together, the longest).

    A function of the text alone, however it is cut into deltas. One prefix automaton a string (Knuth, Morris and
    Pratt 1977), so the time is linear and what is held back is exactly what may still begin a stop string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise InputError("a stop string must not be empty.")
        self._strings = tuple(dict.fromkeys(strings))
        self._borders = [_borders(string) for string in self._strings]
        self._matched = [0] * len(self._strings)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that lies before any stop string, whether one was found)."""
        buffer = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            if length := self._advance(char):
                self._held = ""
                return buffer[: end - length], True
        start = len(buffer) - max(self._matched, default=0)
        self._held = buffer[start:]
        return buffer[:start], False

    def flush(self) -> str:
        """What was held back; no text follows."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Length of the longest stop string that this character completes, or 0."""
        longest = 0
        for i, (string, borders) in enumerate(zip(self._strings, self._borders, strict=True)):
            matched = self._matched[i]
            while matched and string[matched] != char:
                matched = borders[matched - 1]
            self._matched[i] = matched = matched + (string[matched] == char)
            if matched == len(string):
                longest = max(longest, matched)
        return longest


def cut(text: str, stop_strings: Sequence[str]) -> tuple[str, bool]:
    """(the text before the stop string that is complete first, whether there is one)."""
    stops = StopStrings(stop_strings)
    kept, stopped = stops.push(text)
    return kept if stopped else kept + stops.flush(), stopped


class _Detokenizer(Protocol):
    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class _Bytes:
    """Byte-level tokens: their bytes through an incremental UTF-8 decoder, which holds back at most three."""

    def __init__(self, text: Tokens) -> None:
        self._text = text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._text.content(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _Pieces:
    """Sentencepiece-like tokens: each has its text, but the first loses a space and bytes in a row count together.

    A run of byte tokens is held until it ends: one invalid byte anywhere turns every byte of it into U+FFFD.
    """

    def __init__(self, text: Tokens) -> None:
        self._text = text
        self._head: list[int] | None = []
        self._run: list[int] = []

    def push(self, token: int) -> str:
        if self._text.is_byte(token):
            self._run.append(token)
            return ""
        return self.flush() + self._emit([token])

    def flush(self) -> str:
        run, self._run = self._run, []
        return self._emit(run) if run else ""

    def _emit(self, ids: list[int]) -> str:
        if self._head is None:
            return self._text.tail(ids)
        self._head += ids
        delta = self._text.decode(self._head, skip_special=False)
        if delta:
            self._head = None
        return delta


def _borders(string: str) -> list[int]:
    """borders[i]: length of the longest proper prefix of string[: i + 1] that is also its suffix."""
    borders = [0] * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = borders[length - 1]
        length += string[i] == string[length]
        borders[i] = length
    return borders
