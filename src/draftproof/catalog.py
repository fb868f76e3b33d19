"""Names -> factories for models, drafters and rules: plain data. The only place where a method's name is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftproof import specs
from draftproof.backends import (
    ON_CPU,
    Options,
    load_hf_folder,
    load_native_folder,
    load_toy,
    need_of_hf_folder,
    need_of_native_folder,
)
from draftproof.backends import Loaded as Loaded
from draftproof.backends import Place as Place
from draftproof.contracts import Drafter, Rule
from draftproof.engine import Engine
from draftproof.memory import Need, Room, refuse_beyond, room_on
from draftproof.types import InputError
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

AUTO = "auto"


@dataclass(frozen=True)
class Entry:
    """One name of the catalogue: what it is, its options with their types, and the factory behind it.

    argument: what stands behind the colon, "" where nothing may. A "spec" takes the options that are not listed.
    looks: a drafter whose tokens cost no forward and carry confidences.
    need: the memory of a model, from the same arguments; None where that is next to nothing.
    """

    summary: str
    options: Mapping[str, Callable[[str], Any]]
    make: Callable[..., Any]
    argument: str = ""
    looks: bool = False
    need: Callable[..., Need] | None = None


def _null(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.drafters.null import NullDrafter

    return NullDrafter()


def _ngram(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.drafters.ngram import NgramDrafter

    return NgramDrafter(**options)


def _model(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.drafters.model import ModelDrafter
    from draftproof.vocab import compare

    draft = load_model(argument, place_of_draft(argument, place))
    allowed = None
    if target.text is not None and draft.text is not None:
        pairing = compare(target.text, draft.text, target.model.vocab_size, draft.model.vocab_size)
        pairing.refuse_if_different()
        allowed = pairing.allowed
    return ModelDrafter(draft.model, target.model.vocab_size, _shape(options), allowed)


def _early_exit(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.heads import load_early_exit

    return load_early_exit(options.get("layer"), options.get("adapter"), target, _shape(options))


def _eagle(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.heads import load_eagle

    shape = _shape(options)
    if "nodes" in options:
        from draftproof.drafters.best_first import DEFAULT_WIDTH, BestFirst

        shape = BestFirst(options["nodes"], shape.gamma, options.get("width", DEFAULT_WIDTH))
    return load_eagle(argument, target, shape)


def _shape(options: Options) -> Any:
    from draftproof.drafters.children import DEFAULT_GAMMA, Shape

    widths = options.get("shape", "")
    scheme = "mixed" if "x" in widths else "drawn"
    return Shape.of(options.get("gamma", DEFAULT_GAMMA), widths, options.get("children", scheme))


def _place_options() -> dict[str, Callable[[str], Any]]:
    return {"device": str, "dtype": str}


def _shape_options() -> dict[str, Callable[[str], Any]]:
    return {"gamma": gamma, "shape": str, "children": str}


def gamma(text: str) -> int:
    """A number, or the longest that `auto` takes."""
    from draftproof.drafters.length import AUTO_GAMMA

    return AUTO_GAMMA if text == AUTO else int(text)


def models() -> dict[str, Entry]:
    """Backends by name; a target is `name:argument,option=value`."""
    toy = {"vocab": int, "order": int, "near": int, "weight": float, "context": int}
    native = {"weights": str, "activations": str, "threads": int, "isa": str}
    return {
        "native": Entry(
            "a Hugging Face folder, run by our own CPU kernels",
            native,
            load_native_folder,
            "FOLDER",
            need=need_of_native_folder,
        ),
        "hf": Entry(
            "a Hugging Face folder, run by transformers",
            _place_options(),
            load_hf_folder,
            "FOLDER",
            need=need_of_hf_folder,
        ),
        "toy": Entry("a random exact table, for tests and audits; the argument is its seed", toy, load_toy, "SEED"),
    }


def drafters() -> dict[str, Entry]:
    """Drafters by name."""
    shape = _shape_options()
    return {
        "null": Entry("proposes nothing: plain decoding", {}, _null),
        "ngram": Entry(
            "continues the longest earlier match of the text's end",
            {"gamma": gamma, "min": int, "max": int, "width": int},
            _ngram,
            looks=True,
        ),
        "model": Entry("a separate draft model: model:hf:PATH", shape, _model, "spec"),
        "early-exit": Entry(
            "the target's first layers with its own norm and head, and a trained adapter",
            {**shape, "layer": int, "adapter": str},
            _early_exit,
        ),
        "eagle": Entry(
            "a trained head on the target's states: EAGLE-1, EAGLE-3, speculators",
            {**shape, "nodes": int, "width": int},
            _eagle,
            "FOLDER",
        ),
    }


def rules() -> dict[str, Entry]:
    """Verification rules by name; `auto` picks among the others (`choose_rule`)."""
    return {
        "auto": Entry("block for a drawn chain, tree for a drawn tree, coupled for chosen drafts", {}, choose_rule),
        "token": Entry(
            "accept with min(1, p/q), else the residual; on a tree recursive rejection", {}, _always(TokenRule)
        ),
        "block": Entry("block verification of a chain: never fewer accepted tokens than token", {}, _block),
        "tree": Entry("traversal verification with a row per child; on a chain it is block", {}, _always(TreeRule)),
        "coupled": Entry("shared Gumbel noise: the text of plain decoding with that seed", {}, _always(CoupledRule)),
    }


def choose_rule(drafter: Drafter) -> Rule | CoupledRule:
    """`auto`: the strongest lossless rule for what the drafter can report."""
    if not drafter.draws:
        return CoupledRule()
    return TreeRule() if drafter.branches else BlockRule()


def _always(make: Callable[[], Rule | CoupledRule]) -> Callable[[Drafter], Rule | CoupledRule]:
    return lambda drafter: make()


def _block(drafter: Drafter) -> Rule:
    if drafter.branches:
        raise InputError("the block rule verifies chains and this drafter proposes trees: use the rule tree.")
    return BlockRule()


def _entry(kind: str, table: Mapping[str, Entry], name: str) -> Entry:
    if name not in table:
        raise InputError(f"there is no {kind} {name!r}; the {kind}s are: {', '.join(table)}.")
    return table[name]


def _make(kind: str, table: Mapping[str, Entry], parsed: specs.Spec, *rest: Any) -> Any:
    """What the entry makes of argument and options."""
    entry = _entry(kind, table, parsed.name)
    own = _split(parsed, entry)
    return entry.make(own.argument, specs.convert(own, entry.options), *rest)


def _split(parsed: specs.Spec, entry: Entry) -> specs.Spec:
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


def inner(spec: str) -> str | None:
    """The model's spec inside a drafter's: `model:toy:2,gamma=5,vocab=30` -> `toy:2,vocab=30`; None without one."""
    parsed = specs.parse(spec)
    entry = _entry("drafter", drafters(), parsed.name)
    return _split(parsed, entry).argument if entry.argument == "spec" else None


def place_of_draft(spec: str, place: Place) -> Place:
    """The target's place for a draft model; its dtype stays away from a backend that takes none."""
    entry = models().get(_parsed(spec).name)
    return place if entry is None or "dtype" in entry.options else replace(place, dtype="auto")


def _parsed(spec: str) -> specs.Spec:
    parsed = specs.parse(spec)
    bare = parsed.name not in models() and ("/" in parsed.name or "." in parsed.name)
    return specs.parse(f"hf:{spec}") if bare else parsed


def needs(target: str, drafter: str = "null", place: Place = ON_CPU) -> dict[str, Need]:
    """Memory that target and draft model will take, by role, before a weight is read. A toy takes next to none."""
    draft = inner(drafter)
    specs_of = {"target": (target, place)}
    if draft is not None:
        specs_of["draft"] = (draft, place_of_draft(draft, place))
    return {role: need for role, where in specs_of.items() if (need := _need(*where)) is not None}


def _need(spec: str, place: Place) -> Need | None:
    parsed = _parsed(spec)
    entry = _entry("model", models(), parsed.name)
    own = _split(parsed, entry)
    return entry.need and entry.need(own.argument, specs.convert(own, entry.options), place)


def load_model(spec: str, place: Place = ON_CPU) -> Loaded:
    """`native:PATH`, `hf:PATH` or `toy:SEED`, with options. A bare folder is taken as `hf:`."""
    parsed = _parsed(spec)
    loaded: Loaded = _make("model", models(), parsed, place)
    if "rollback" not in loaded.model.can:
        raise InputError(f"{spec} cannot roll its cache back, which speculative decoding needs.")
    return loaded


def load_drafter(spec: str, target: Loaded, place: Place = ON_CPU, gamma: int | None = None) -> Drafter:
    """`null`, `ngram:max=3`, `model:hf:PATH,gamma=5`, `early-exit:layer=8`, for this target.

    gamma: the draft length where the drafter has that option and the spec gives neither it nor a tree. Without
    either it is `auto`, by cost, where the target's time is known, else a fixed one.
    """
    parsed = specs.parse(spec)
    entry = _entry("drafter", drafters(), parsed.name)
    if "gamma" in entry.options and not {"gamma", "shape", "width", "nodes"} & set(parsed.options):
        wanted = str(gamma) if gamma else AUTO if target.timed else None
        parsed = replace(parsed, options={**parsed.options, **({"gamma": wanted} if wanted else {})})
    if entry.looks and parsed.options.get("gamma") == AUTO:
        parsed = replace(parsed, options={"min": "1", **parsed.options})
    drafter: Drafter = _make("drafter", drafters(), parsed, target, place)
    if parsed.options.get("gamma") == AUTO:
        from draftproof.costs import by_cost

        drafter = by_cost(drafter, entry.looks, target.model, spec)
    if drafter.branches and "tree" not in target.model.can:
        raise InputError(f"{target.model.name} cannot score trees: give {spec} no shape or width.")
    return drafter


def load_rule(name: str, drafter: Drafter) -> Rule | CoupledRule:
    """`auto`, `token`, `block`, `tree` or `coupled`, if it can verify this drafter's proposals."""
    rule: Rule | CoupledRule = _entry("rule", rules(), name).make(drafter)
    return rule


def load_engine(
    target: str,
    drafter: str = "ngram",
    rule: str = "auto",
    place: Place = ON_CPU,
    rooms: Callable[[str], Room] = room_on,
) -> Engine:
    """All three by name. InputError, before a weight is read, for models that do not fit into memory together.

    rooms: the free memory of a device, by its name.
    """
    refuse_beyond(needs(target, drafter, place), rooms=rooms)
    return engine_for(load_model(target, place), drafter, rule, place)


def engine_for(
    target: Loaded, drafter: str, rule: str = "auto", place: Place = ON_CPU, gamma: int | None = None
) -> Engine:
    """Drafter and rule by name, for a target that is loaded; gamma as in `load_drafter`."""
    drafts = load_drafter(drafter, target, place, gamma)
    return Engine(target.model, drafts, load_rule(rule, drafts), target.text)
