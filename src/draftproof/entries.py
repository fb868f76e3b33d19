"""What a name of the catalogue stands for: options with their types, and a factory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from draftproof import specs
from draftproof.memory import Need
from draftproof.types import InputError


@dataclass(frozen=True)
class Entry:
    """One name of the catalogue: what it is, its options with their types, and the factory behind it.

    argument: what stands behind the colon, "" where nothing may. A "spec" takes the options that are not listed.
    looks: a drafter whose tokens cost no forward and carry confidences.
    guess: how often a drafter's tokens are taken, before a request has taught better; it begins to draft by that.
    wants: what a target must be able to do (`Model.can`) to have this drafter; "" where any will do.
    need: the memory of a model, from the same arguments; None where that is next to nothing.
    """

    summary: str
    options: Mapping[str, Callable[[str], Any]]
    make: Callable[..., Any]
    argument: str = ""
    looks: bool = False
    guess: float = 0.6
    wants: str = ""
    need: Callable[..., Need] | None = None


def find(kind: str, table: Mapping[str, Entry], name: str) -> Entry:
    """The entry of this name. InputError, which lists the names, where there is none."""
    if name not in table:
        raise InputError(f"there is no {kind} {name!r}; the {kind}s are: {', '.join(table)}.")
    return table[name]


def make(kind: str, table: Mapping[str, Entry], parsed: specs.Spec, *rest: Any) -> Any:
    """What the entry makes of argument and options."""
    entry = find(kind, table, parsed.name)
    own = split(parsed, entry)
    return entry.make(own.argument, specs.convert(own, entry.options), *rest)


def split(parsed: specs.Spec, entry: Entry) -> specs.Spec:
    """The spec with its argument checked; options that are not the entry's own move into an inner spec."""
    if parsed.argument and not entry.argument:
        options = ", ".join(entry.options) or "none"
        raise InputError(f"{parsed.name} takes options alone ({options}), not {parsed.name}:{parsed.argument}.")
    if entry.argument not in ("", "SEED") and not parsed.argument:
        raise InputError(f"{parsed.name} needs what it names: {parsed.name}:{entry.argument}.")
    if entry.argument != "spec":
        return parsed
    own = {key: value for key, value in parsed.options.items() if key in entry.options}
    others = [f"{key}={value}" for key, value in parsed.options.items() if key not in own]
    return specs.Spec(parsed.name, ",".join([parsed.argument, *others]), own)


def possible(table: Mapping[str, Entry], can: Collection[str]) -> list[str]:
    """The drafters that a target of these abilities has without a further model, and each look-up before each other."""
    names = [name for name, entry in table.items() if not entry.argument and (not entry.wants or entry.wants in can)]
    looks = [name for name in names if table[name].looks]
    paid = [name for name in names if not table[name].looks and "gamma" in table[name].options]
    return [*looks, *paid, *(f"{look}+{other}" for look in looks for other in paid)]
