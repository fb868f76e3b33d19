"""Spec strings: `name:argument,key=value,…`. Pure text; what a key means is the catalogue's business."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.types import InputError


@dataclass(frozen=True)
class Spec:
    """A parsed spec string. `argument` is what stands between the first colon and the first option."""

    name: str
    argument: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        head = f"{self.name}:{self.argument}" if self.argument else self.name
        options = [f"{key}={value}" for key, value in self.options.items()]
        return ",".join([head, *options]) if self.argument or not options else f"{head}:{','.join(options)}"


def parse(text: str) -> Spec:
    """`model:hf:PATH,gamma=5` -> Spec("model", "hf:PATH", {"gamma": "5"})."""
    head, *parts = text.split(",")
    name, colon, argument = head.partition(":")
    if not colon and "=" in name:
        raise InputError(f"a spec begins with a name, not with an option: {text!r}.")
    if "=" in argument and "/" not in argument and ":" not in argument:
        parts, argument = [argument, *parts], ""
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InputError(f"write options as key=value; {part!r} in {text!r} is none.")
        if key in options:
            raise InputError(f"{key} stands twice in {text!r}.")
        options[key] = value
    return Spec(name.strip(), argument.strip(), options)


def links(text: str, names: Iterable[str]) -> list[str]:
    """The parts of a chain: `ngram:min=3+lowbit` -> ["ngram:min=3", "lowbit"]. A plus within a path is none."""
    known = "|".join(re.escape(name) for name in names)
    return re.split(rf"\+(?=(?:{known})(?:[:,+]|$))", text)


def convert(spec: Spec, kinds: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The options with their types; an unknown key or a value that does not fit is an error that lists what does."""
    values: dict[str, Any] = {}
    for key, value in spec.options.items():
        if key not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            raise InputError(f"{spec.name} has no option {key}; its options are: {known}.")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            raise InputError(f"{value!r} is no value for {key} of {spec.name}.") from None
    return values
