"""Names -> factories for models, drafters and rules: plain data. The only place where a method's name is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from draftproof.costs import Part, by_cost
from draftproof.drafters.chained import ChainedDrafter
from draftproof.engine import Engine
from draftproof.entries import Entry, find, make, split
from draftproof.memory import Need, Room, refuse_beyond, room_on
from draftproof.types import InputError
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

AUTO = "auto"


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


def _lowbit(argument: str, options: Options, target: Loaded, place: Place) -> Drafter:
    from draftproof.calibration import load_lowbit

    settings = {key: value for key, value in options.items() if key not in _shape_options()}
    return load_lowbit(target.model, target.text, settings, _shape(options), place.progress)


def _shape(options: Options) -> Any:
    from draftproof.drafters.children import DEFAULT_GAMMA, Shape

    widths = options.get("shape", "")
    scheme = "mixed" if "x" in widths else "drawn"
    return Shape.of(options.get("gamma", DEFAULT_GAMMA), widths, options.get("children", scheme))


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
            {"device": str, "dtype": str},
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
            wants="early_exit",
        ),
        "eagle": Entry(
            "a trained head on the target's states: EAGLE-1, EAGLE-3, speculators",
            {**shape, "nodes": int, "width": int},
            _eagle,
            "FOLDER",
        ),
        "lowbit": Entry(
            "the target's own weights at 4 bits, on the target's own cache",
            {**shape, "bits": int, "group": int, "vocab": int, "rounding": str},
            _lowbit,
            guess=0.85,
            wants="lowbit",
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


def inner(spec: str) -> str | None:
    """The model's spec inside a drafter's: `model:toy:2,gamma=5,vocab=30` -> `toy:2,vocab=30`; None without one."""
    links = specs.links(spec, drafters())
    parsed = specs.parse(links[0])
    entry = find("drafter", drafters(), parsed.name)
    return split(parsed, entry).argument if entry.argument == "spec" and len(links) == 1 else None


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
    entry = find("model", models(), parsed.name)
    own = split(parsed, entry)
    return entry.need and entry.need(own.argument, specs.convert(own, entry.options), place)


def load_model(spec: str, place: Place = ON_CPU) -> Loaded:
    """`native:PATH`, `hf:PATH` or `toy:SEED`, with options. A bare folder is taken as `hf:`."""
    parsed = _parsed(spec)
    loaded: Loaded = make("model", models(), parsed, place)
    if "rollback" not in loaded.model.can:
        raise InputError(f"{spec} cannot roll its cache back, which speculative decoding needs.")
    return loaded


def load_drafter(spec: str, target: Loaded, place: Place = ON_CPU, gamma: int | None = None) -> Drafter:
    """`null`, `ngram:max=3`, `model:hf:PATH,gamma=5`, `early-exit:layer=8`, a chain as `ngram+lowbit`, for this target.

    gamma: the draft length where the drafter has that option and the spec gives neither it nor a tree. Without
    either it is `auto`, by cost, where the target's time is known, else a fixed one.
    """
    links = [_sized(specs.parse(link), target, gamma) for link in specs.links(spec, drafters())]
    parts = [_part(link, target, place) for link in links]
    auto = {link.options.get("gamma") == AUTO for link in links}
    if auto == {True}:
        drafter: Drafter = by_cost(parts, target.model)
    elif auto == {False}:
        drafter = parts[0].drafter if len(parts) == 1 else ChainedDrafter([part.drafter for part in parts])
    else:
        raise InputError(f"{spec}: give every drafter of the chain a gamma, or none of them.")
    if drafter.branches and "tree" not in target.model.can:
        raise InputError(f"{target.model.name} cannot score trees: give {spec} no shape or width.")
    return drafter


def _sized(parsed: specs.Spec, target: Loaded, gamma: int | None) -> specs.Spec:
    """With its draft length written out. By cost even a short match is worth a look, since the odds judge it."""
    options = parsed.options
    entry = find("drafter", drafters(), parsed.name)
    if "gamma" in entry.options and not {"gamma", "shape", "width", "nodes"} & set(options):
        wanted = str(gamma) if gamma else AUTO if target.timed else None
        options = {**options, **({"gamma": wanted} if wanted else {})}
    if entry.looks and options.get("gamma") == AUTO:
        options = {"min": "1", **options}
    return replace(parsed, options=options)


def _part(link: specs.Spec, target: Loaded, place: Place) -> Part:
    entry = find("drafter", drafters(), link.name)
    return Part(make("drafter", drafters(), link, target, place), entry.looks, str(link), entry.guess)


def load_rule(name: str, drafter: Drafter) -> Rule | CoupledRule:
    """`auto`, `token`, `block`, `tree` or `coupled`, if it can verify this drafter's proposals."""
    rule: Rule | CoupledRule = find("rule", rules(), name).make(drafter)
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
