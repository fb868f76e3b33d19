"""Read a Hugging Face folder with transformers, refusing early what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from draftproof.files import folder_at, read_object, refusing
from draftproof.models.folder import check_index, check_sizes, load_config, weight_files
from draftproof.models.hf_check import refuse_class, refuse_config
from draftproof.types import InputError

DTYPES = ("auto", "float32", "bfloat16", "float16")


def read_folder(path: str, device: str, dtype: str) -> Any:
    """The model of a folder, on its device, in evaluation mode. Raises `InputError`."""
    place = check_device(device)
    if dtype not in DTYPES:
        raise InputError(f'dtype must be one of {", ".join(DTYPES)}, not "{dtype}".')
    folder = folder_at(path)
    config = usable_config(folder, path)
    if (generation := folder / "generation_config.json").exists():
        read_object(generation)
    on_grid = _check_weights(folder)
    return _read_model(folder, config, dtype, on_grid).to(place).eval()


def usable_config(folder: Path, name: str) -> Any:
    """The transformers configuration of a folder, if a model of its kind can be run."""
    config = load_config(folder)
    with refusing(f"{folder / 'config.json'} cannot be used"):
        refuse_config(config, name)
        refuse_class(_architecture(config, folder), name)
        check_sizes(config, folder)
    return config


def check_device(device: str) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        place = torch.device(device)
    except (RuntimeError, ValueError) as error:
        raise InputError(f'"{device}" is no device: use cpu, cuda, cuda:N or mps.') from error
    if place.type not in ("cpu", "cuda", "mps"):
        raise InputError(f'device "{device}" is not supported: use cpu, cuda, cuda:N or mps.')
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {device} is not available: this machine has {torch.cuda.device_count()} CUDA devices."
        )
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps is not available on this machine: use cpu.")
    return place


def _check_weights(folder: Path) -> bool:
    """Every weight file named is there and whole; are weights on a grid?"""
    from safetensors import safe_open

    files = weight_files(folder)
    check_index(folder, files)
    if not files and not list(folder.glob("pytorch_model*.bin")):
        raise InputError(f"{folder} has no weights: it needs a model.safetensors file.")
    names: list[str] = []
    for file in files:
        with refusing(f"{file} is truncated or damaged, so download it again"), safe_open(file, "pt") as opened:
            names += opened.keys()
    return any(name.endswith(".codes") for name in names)


def _read_model(folder: Path, config: Any, dtype: str, on_grid: bool) -> Any:
    """With weights on a grid transformers is given their float32 values, in which they are exact."""
    from transformers import AutoModelForCausalLM

    from draftproof.models.native.checkpoint import Checkpoint

    with refusing(f"{folder} cannot be loaded"), _matching(folder), _quiet():
        state = None
        if on_grid:
            with Checkpoint(folder) as checkpoint:
                state = dict(checkpoint.dense())
        kind = _architecture(config, folder) if on_grid else AutoModelForCausalLM
        model, report = kind.from_pretrained(
            None if on_grid else folder,
            config=config,
            state_dict=state,
            dtype="auto" if dtype == "auto" else getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    for problem, names in (("lacks", report["missing_keys"]), ("has another shape for", report["mismatched_keys"])):
        if names:
            first = sorted(str(name) for name in names)[0]
            raise InputError(
                f"{folder} {problem} the weight {first} ({len(names)} in all): the files do not belong together."
            )
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise InputError(f"{name} of {folder} holds NaN or infinite weights; download the checkpoint again.")
    return model


@contextmanager
def _matching(folder: Path) -> Iterator[None]:
    """transformers names an option of its own where shapes differ, which is no help here."""
    try:
        yield
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise InputError(
            f"{folder} has weights of other shapes than its config.json asks for: the files do not belong together."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no report of transformers: what is wrong is said in one sentence of ours."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _architecture(config: Any, folder: Path) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InputError(f"{folder} holds a {config.model_type} model, which is no causal language model.")
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, (tuple, list)) else found
