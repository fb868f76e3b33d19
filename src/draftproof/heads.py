"""Trained heads for a target: read, compared with it, put on its device."""

from __future__ import annotations

import warnings

from draftproof.backends import Loaded
from draftproof.contracts import SharesWeights
from draftproof.drafters.best_first import BestFirst
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle import EagleDrafter
from draftproof.drafters.eagle_files import HeadFile, read_head
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.exit_adapter import ExitAdapter, read_adapter
from draftproof.types import InputError
from draftproof.vocab import fingerprint


def load_eagle(folder: str, target: Loaded, shape: Shape | BestFirst) -> EagleDrafter:
    """The head in a folder as a drafter for this target. InputError for one that was made for another.

    Tensors of the folder that the head has no place for are listed in a warning.
    """
    model = target.model
    if "hidden" not in model.can or not isinstance(model, SharesWeights):
        raise InputError(f"{model.name} gives no hidden states, which a head drafts from: use native: or hf:.")
    read = read_head(folder, model.num_layers)
    _refuse_stale(folder, read, target)
    if read.unused:
        warnings.warn(f"not used of {folder}: {', '.join(read.unused)}", stacklevel=2)
    return EagleDrafter(read.head.to(model.device), model.shared(), shape)


def _refuse_stale(folder: str, read: HeadFile, target: Loaded) -> None:
    """R13.7: maps belong to one tokenizer and one size of vocabulary."""
    vocab, size = read.head.config.vocab, target.model.vocab_size
    if vocab != size:
        raise InputError(
            f"the head in {folder} was made for {vocab} tokens and the target has {size}: train one for it."
        )
    if read.tokenizer and target.text is not None and read.tokenizer != fingerprint(target.text):
        raise InputError(f"the head in {folder} was made for another tokenizer than the target's: train one for it.")


def load_early_exit(layer: int | None, folder: str | None, target: Loaded, shape: Shape) -> EarlyExitDrafter:
    """Without a layer that of the adapter in the folder, or a quarter of all.

    InputError for an adapter of another layer, vocabulary or tokenizer.
    """
    adapter = None if folder is None else _read_adapter(folder, layer, target)
    own = max(1, target.model.num_layers // 4) if adapter is None else adapter.config.layer
    return EarlyExitDrafter(target.model, own if layer is None else layer, shape, adapter)


def _read_adapter(folder: str, layer: int | None, target: Loaded) -> ExitAdapter:
    adapter = read_adapter(folder)
    config = adapter.config
    if layer not in (None, config.layer):
        raise InputError(f"the adapter in {folder} was trained behind layer {config.layer}, not {layer}: say so.")
    size = target.model.vocab_size
    if config.vocab != size or (config.tokenizer and target.text and config.tokenizer != fingerprint(target.text)):
        raise InputError(
            f"the adapter in {folder} was made for another vocabulary than the target's: train one for it."
        )
    return adapter
