"""What every backend asks of a Hugging Face folder before it reads weights: a sound config.json and whole files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from draftproof.files import read_object, refusing, shortened
from draftproof.types import InputError

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 1000
_MOST = 2**31 - 1
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")


def load_config(folder: Path) -> Any:
    """The transformers configuration of a folder. InputError for one that no language model can be built from."""
    from transformers import AutoConfig

    file = folder / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} has no config.json: give a folder that holds a Hugging Face model.")
    settings = read_object(file)
    inner = settings.get("text_config") or {}
    if not isinstance(inner, dict):
        raise InputError(f"{file} cannot be used: text_config must be a JSON object.")
    for part in (settings, inner):
        _check_counts(part, file)
    with refusing(f"{file} cannot be used"):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _check_counts(settings: Mapping[str, Any], file: Path) -> None:
    """Before transformers divides by them or counts up to them."""
    for name in (*_LAYERS, *_SIZES):
        most = _MOST_LAYERS if name in _LAYERS else _MOST
        if type(size := settings.get(name)) is int and not 1 <= size <= most:
            raise InputError(f"{file} cannot be used: {name} must lie between 1 and {most}, not {size}.")


def check_sizes(config: Any, folder: Path, *others: str) -> None:
    """InputError where a size of the language model is no positive whole number or `layer_types` misses a layer.

    others: sizes that are needed too. Some architectures give a list, one size a layer, which is left to them.
    """
    problem = f"{folder / 'config.json'} cannot be used"
    with refusing(problem):
        text = config.get_text_config(decoder=True)
        sizes = {name: getattr(text, name, None) for name in (*_SIZES, *others)}
        sizes |= {name: size for name in _OPTIONAL if (size := getattr(text, name, None)) is not None}
        for name, size in sizes.items():
            if not isinstance(size, (list, tuple)) and (type(size) is not int or not 1 <= size <= _MOST):
                raise InputError(f"{problem}: {name} must be a positive whole number, not {shortened(repr(size))}.")
        kinds, layers = getattr(text, "layer_types", None), text.num_hidden_layers
        if kinds is not None and len(kinds) != layers:
            raise InputError(f"{problem}: layer_types names {len(kinds)} layers, but num_hidden_layers is {layers}.")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; what has such a name and is no file is left out."""
    return sorted(path for path in folder.glob("*.safetensors") if path.is_file())


def check_index(folder: Path, present: Iterable[Path]) -> None:
    """InputError where the index of the weights names a file that is not there, or is damaged itself."""
    for index in (folder / "model.safetensors.index.json", folder / "grid.safetensors.index.json"):
        if index.is_file():
            _check_index(index, present)


def _check_index(index: Path, present: Iterable[Path]) -> None:
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{index} is damaged: its weight_map must name a file for every weight; download it again.")
    missing = sorted(set(names.values()) - {file.name for file in present})
    if missing:
        raise InputError(f"{index.parent} lacks the weight file {missing[0]}: download it again.")
