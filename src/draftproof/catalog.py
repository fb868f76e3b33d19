"""Names -> factories for models, drafters and rules: plain data. The only place where a method's name is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftproof import specs
from draftproof.contracts import Drafter, Model, Rule
from draftproof.drafters.chained import ChainedDrafter
from draftproof.engine import Engine
from draftproof.files import refusing, shortened
from draftproof.types import InputError
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Loaded:
    """A model and its text (None where it has no tokenizer)."""

    model: Model
    text: Any


@dataclass(frozen=True)
class Place:
    """Where models run unless their spec says otherwise; `progress` is told (what takes long, share done)."""

    device: str = "cpu"
    dtype: str = "auto"
    threads: int | None = None
    progress: Callable[[str, float], None] = lambda what, share: None


@dataclass(frozen=True)
class Entry:
    """One name of the catalogue: what it is, its options with their types, and the factory behind it.

    argument: what stands behind the colon, "" where nothing may. A "spec" takes the options that are not listed.
    """

    summary: str
    options: Mapping[str, Callable[[str], Any]]
    make: Callable[..., Any]
    argument: str = ""


def _hf(argument: str, options: Options, place: Place) -> Loaded:
    from draftproof.models.hf import load_hf
    from draftproof.text import Text

    with refusing(f"{argument} cannot be loaded"):
        model = load_hf(argument, options.get("device", place.device), options.get("dtype", place.dtype))
    return _with_text(model, Text.load(argument), argument)


def _native(argument: str, options: Options, place: Place) -> Loaded:
    from draftproof.models.native import load_native
    from draftproof.text import Text

    if place.device != "cpu":
        raise InputError(f"native: runs on the CPU, not on {place.device}: use hf: there.")
    if place.dtype != "auto":
        raise InputError(f"native: takes no dtype {place.dtype}: name its weights, as in native:FOLDER,weights=f32.")
    model = load_native(argument, **{"threads": place.threads, **options})
    return _with_text(model, Text.load(argument), argument)


def _with_text(model: Model, text: Any, folder: str) -> Loaded:
    """InputError for end tokens that the model does not have."""
    if (end := max(text.eos_ids, default=0)) >= model.vocab_size:
        raise InputError(
            f"the end token {end} of {folder} is not one of the model's {model.vocab_size} tokens: correct"
            " eos_token_id in generation_config.json and config.json, or eos_token in tokenizer_config.json."
        )
    return Loaded(model, text)


def _toy(argument: str, options: Options, place: Place) -> Loaded:
    from draftproof.models.toy import ToyModel
    from draftproof.text import letters

    if argument and not (argument.isdecimal() and len(argument) < 20):
        raise InputError(
            f"a toy model is toy:SEED with a whole number of 19 digits at most, not toy:{shortened(argument)}."
        )
    if place.dtype != "auto":
        raise InputError(f"a toy model takes no dtype {place.dtype}: it computes in float32.")
    size = options.get("vocab", 16)
    near = (options["near"], options.get("weight", 0.7)) if "near" in options else None
    model = ToyModel(int(argument or 0), size, options.get("order", 3), near, options.get("context"))
    return Loaded(model, letters(size))


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
    from draftproof.drafters.early_exit import EarlyExitDrafter

    layer = options.get("layer", max(1, target.model.num_layers // 4))
    return EarlyExitDrafter(target.model, layer, _shape(options))


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
    return {"gamma": int, "shape": str, "children": str}


def models() -> dict[str, Entry]:
    """Backends by name; a target is `name:argument,option=value`."""
    toy = {"vocab": int, "order": int, "near": int, "weight": float, "context": int}
    native = {"weights": str, "activations": str, "threads": int, "isa": str}
    return {
        "native": Entry("a Hugging Face folder, run by our own CPU kernels", native, _native, "FOLDER"),
        "hf": Entry("a Hugging Face folder, run by transformers", {"device": str, "dtype": str}, _hf, "FOLDER"),
        "toy": Entry("a random exact table, for tests and audits; the argument is its seed", toy, _toy, "SEED"),
    }


def drafters() -> dict[str, Entry]:
    """Drafters by name."""
    shape = _shape_options()
    return {
        "null": Entry("proposes nothing: plain decoding", {}, _null),
        "ngram": Entry(
            "continues the longest earlier match of the text's end",
            {"gamma": int, "min": int, "max": int, "width": int},
            _ngram,
        ),
        "model": Entry("a separate draft model: model:hf:PATH", shape, _model, "spec"),
        "early-exit": Entry(
            "the target's first layers with its own norm and head", {**shape, "layer": int}, _early_exit
        ),
        "lowbit": Entry(
            "the target's own weights at 4 bits, on the target's own cache",
            {**shape, "bits": int, "group": int, "vocab": int, "rounding": str},
            _lowbit,
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
    links = specs.links(spec, drafters())
    parsed = specs.parse(links[0])
    entry = _entry("drafter", drafters(), parsed.name)
    return _split(parsed, entry).argument if entry.argument == "spec" and len(links) == 1 else None


def place_of_draft(spec: str, place: Place) -> Place:
    """The target's place for a draft model; its dtype stays away from a backend that takes none."""
    entry = models().get(_parsed(spec).name)
    return place if entry is None or "dtype" in entry.options else replace(place, dtype="auto")


def _parsed(spec: str) -> specs.Spec:
    parsed = specs.parse(spec)
    bare = parsed.name not in models() and ("/" in parsed.name or "." in parsed.name)
    return specs.parse(f"hf:{spec}") if bare else parsed


def load_model(spec: str, place: Place = Place()) -> Loaded:
    """`native:PATH`, `hf:PATH` or `toy:SEED`, with options. A bare folder is taken as `hf:`."""
    parsed = _parsed(spec)
    loaded: Loaded = _make("model", models(), parsed, place)
    if "rollback" not in loaded.model.can:
        raise InputError(f"{spec} cannot roll its cache back, which speculative decoding needs.")
    return loaded


def load_drafter(spec: str, target: Loaded, place: Place = Place(), gamma: int | None = None) -> Drafter:
    """`null`, `ngram:max=3`, `model:hf:PATH,gamma=5`, `early-exit:layer=8`, a chain as `ngram+lowbit`, for this target.

    gamma: the draft length where the drafter has that option and the spec gives neither it nor a shape.
    """
    if len(links := specs.links(spec, drafters())) > 1:
        return ChainedDrafter([load_drafter(link, target, place, gamma) for link in links])
    parsed = specs.parse(spec)
    entry = _entry("drafter", drafters(), parsed.name)
    if gamma and "gamma" in entry.options and not {"gamma", "shape"} & set(parsed.options):
        parsed = replace(parsed, options={**parsed.options, "gamma": str(gamma)})
    drafter: Drafter = _make("drafter", drafters(), parsed, target, place)
    if drafter.branches and "tree" not in target.model.can:
        raise InputError(f"{target.model.name} cannot score trees: give {spec} no shape or width.")
    return drafter


def load_rule(name: str, drafter: Drafter) -> Rule | CoupledRule:
    """`auto`, `token`, `block`, `tree` or `coupled`, if it can verify this drafter's proposals."""
    rule: Rule | CoupledRule = _entry("rule", rules(), name).make(drafter)
    return rule


def load_engine(target: str, drafter: str = "ngram", rule: str = "auto", place: Place = Place()) -> Engine:
    """All three by name."""
    return engine_for(load_model(target, place), drafter, rule, place)


def engine_for(
    target: Loaded, drafter: str, rule: str = "auto", place: Place = Place(), gamma: int | None = None
) -> Engine:
    """Drafter and rule by name, for a target that is loaded; gamma as in `load_drafter`."""
    drafts = load_drafter(drafter, target, place, gamma)
    return Engine(target.model, drafts, load_rule(rule, drafts), target.text)
