"""The model backends behind the catalogue's names: each loads a model with its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.contracts import Model
from draftproof.files import refusing, shortened
from draftproof.memory import Need
from draftproof.types import InputError

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Loaded:
    """A model and its text (None where it has no tokenizer).

    timed: its seconds mean something, so that draft lengths follow them unless a spec says otherwise.
    """

    model: Model
    text: Any
    timed: bool = False


@dataclass(frozen=True)
class Place:
    """Where models run unless their spec says otherwise; `progress` is told (what takes long, share done)."""

    device: str = "cpu"
    dtype: str = "auto"
    threads: int | None = None
    progress: Callable[[str, float], None] = lambda what, share: None


ON_CPU = Place()


def load_hf_folder(argument: str, options: Options, place: Place) -> Loaded:
    """A Hugging Face folder, run by transformers."""
    from draftproof.models.hf import load_hf
    from draftproof.text import Text

    with refusing(f"{argument} cannot be loaded"):
        model = load_hf(argument, options.get("device", place.device), options.get("dtype", place.dtype))
    return _with_text(model, Text.load(argument), argument)


def need_of_hf_folder(argument: str, options: Options, place: Place) -> Need:
    """What the same will take."""
    from draftproof.models.hf_need import need

    with refusing(f"{argument} cannot be loaded"):
        return need(argument, options.get("device", place.device), options.get("dtype", place.dtype))


def load_native_folder(argument: str, options: Options, place: Place) -> Loaded:
    """A Hugging Face folder, run by our own kernels."""
    from draftproof.models.native import load_native
    from draftproof.text import Text

    if place.device != "cpu":
        raise InputError(f"native: runs on the CPU, not on {place.device}: use hf: there.")
    if place.dtype != "auto":
        raise InputError(f"native: takes no dtype {place.dtype}: name its weights, as in native:FOLDER,weights=f32.")
    model = load_native(argument, **{"threads": place.threads, **options})
    return _with_text(model, Text.load(argument), argument)


def need_of_native_folder(argument: str, options: Options, place: Place) -> Need:
    """What the same will take."""
    from draftproof.models.native.need import need

    with refusing(f"{argument} cannot be loaded"):
        return need(argument, options.get("weights", "bf16"))


def _with_text(model: Model, text: Any, folder: str) -> Loaded:
    """InputError for end tokens that the model does not have."""
    if (end := max(text.eos_ids, default=0)) >= model.vocab_size:
        raise InputError(
            f"the end token {end} of {folder} is not one of the model's {model.vocab_size} tokens: correct"
            " eos_token_id in generation_config.json and config.json, or eos_token in tokenizer_config.json."
        )
    return Loaded(model, text, timed=True)


def load_toy(argument: str, options: Options, place: Place) -> Loaded:
    """An exact random table; the argument is its seed."""
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
