"""Prompts from JSONL files, and the project's own small set of natural ones (written for it, Apache-2.0)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from draftproof.types import InputError

Message = dict[str, str]
BUNDLED = "bundled"
_KINDS = ("prompt", "turns", "messages", "token_ids")


@dataclass(frozen=True)
class Prompt:
    """One conversation that the model is to go on with.

    messages  what has been said before the first turn ({"role", "content"} each); may be empty
    turns     user messages, answered one after the other. Without turns the reply to `messages` is wanted
    token_ids the prompt as ids, which no template is put around; then there are neither messages nor turns
    where     where it was read, for error messages
    """

    turns: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    id: str = ""
    category: str = ""
    where: str = "the prompt"
    token_ids: tuple[int, ...] = ()

    @property
    def replies(self) -> int:
        """How many replies it asks for."""
        return max(1, len(self.turns))


def read(path: str | Path) -> list[Prompt]:
    """The prompts of a JSONL file, in its order; `bundled` or `bundled:CATEGORY` names the project's own.

    A line is {"prompt": text}, {"turns": [text, ...]}, {"messages": [{"role", "content"}, ...]},
    {"token_ids": [id, ...]} or a JSON string; `id` and `category` are optional. InputError names file and line of
    what cannot be used.
    """
    name, _, category = str(path).partition(":")
    if name == BUNDLED:
        return bundled(category)
    # Only "\n" ends a line of JSONL; JSON itself may hold the other characters that end lines, such as U+2028.
    lines = read_text(path).split("\n")
    prompts = [_parse(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path} holds no prompts: write one JSON object a line.")
    return prompts


def bundled(category: str = "") -> list[Prompt]:
    """The project's own prompts, of one category if it is named."""
    known = categories()
    if category and category not in known:
        raise InputError(f"there are no bundled prompts of the category {category!r}; there are: {', '.join(known)}.")
    folder = resources.files(__name__)
    names = [category] if category else known
    lines = [(name, line) for name in names for line in _lines(folder.joinpath(f"{name}.jsonl"))]
    return [_parse(line, f"the bundled prompts of {name}") for name, line in lines]


def categories() -> list[str]:
    """Categories of the bundled prompts."""
    files = (item.name for item in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".jsonl") for name in files if name.endswith(".jsonl"))


def read_text(path: str | Path) -> str:
    """A text file as UTF-8. InputError where that is not possible."""
    try:
        return decoded(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_stdin() -> str:
    """All of standard input as UTF-8. InputError where that is not possible."""
    return decoded(sys.stdin.buffer.read(), "standard input")


def decoded(data: bytes, where: str) -> str:
    """Bytes as UTF-8. InputError where that is not possible."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text (byte {error.start}): convert it first.") from error


def _lines(item: Any) -> Iterable[str]:
    return [line for line in item.read_text(encoding="utf-8").split("\n") if line.strip()]


def _parse(line: str, where: str) -> Prompt:
    try:
        return _prompt(json.loads(line), where)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}.") from error
    except RecursionError as error:
        raise InputError(f"{where} is nested too deeply: write one JSON object a line.") from error


def _prompt(value: Any, where: str) -> Prompt:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a JSON object or a string, not {json.dumps(value)[:40]}.")
    given = [key for key in _KINDS if key in value]
    if len(given) != 1:
        kinds, found = f"{', '.join(_KINDS[:-1])} and {_KINDS[-1]}", " and ".join(given) or "none"
        raise InputError(f"{where} must hold one of {kinds}, not {found}.")
    content = value[given[0]]
    if given[0] == "messages":
        return Prompt((), _messages(content, where), *_labels(value), where)
    if given[0] == "token_ids":
        return Prompt((), (), *_labels(value), where, _ids(content, where))
    turns = [content] if given[0] == "prompt" else content
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        kind = "a text that is not empty" if given[0] == "prompt" else "a list of texts, none of them empty"
        raise InputError(f"{where}: {given[0]} must be {kind}.")
    return Prompt(tuple(clean(turn, where) for turn in turns), (), *_labels(value), where)


def _labels(value: Mapping[str, Any]) -> tuple[str, str]:
    return tuple("" if value.get(key) is None else str(value[key]) for key in ("id", "category"))  # type: ignore[return-value]


def _messages(value: object, where: str) -> tuple[Message, ...]:
    good = isinstance(value, list) and value and all(_is_message(message) for message in value)
    if not good or not isinstance(value, list):
        raise InputError(f'{where}: messages must be a list of {{"role": text, "content": text}}.')
    return tuple({key: clean(text, where) for key, text in message.items()} for message in value)


def _ids(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(token) is int for token in value):
        raise InputError(f"{where}: token_ids must be a list of whole numbers, at least one.")
    return tuple(value)


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {"role", "content"} == set(value)
        and all(isinstance(v, str) for v in value.values())
    )


def clean(text: str, where: str = "the prompt") -> str:
    """The text. InputError for half a character, a lone surrogate: JSON can spell it, invalid UTF-8 becomes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where} is not valid text: character {error.start + 1} is half of one.") from error
    return text
