"""How much memory a transformers model will take, from config.json and the headers of the weight files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from draftproof.files import folder_at, refusing
from draftproof.memory import Need
from draftproof.models.folder import weight_files
from draftproof.models.hf_cache import Kind
from draftproof.models.hf_check import context_limit
from draftproof.models.hf_layout import Sight
from draftproof.models.hf_load import check_device, usable_config

_STORED = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


def need(path: str | Path, device: str, dtype: str) -> Need:
    """For the arguments of `load_hf`. InputError for a folder that cannot be read.

    An estimate: architectures differ in what they keep. Weights of other forms than safetensors count as they lie on
    the disk, twice while they are read.
    """
    folder = folder_at(path)
    check_device(device)
    config = usable_config(folder, str(path))
    with refusing(f"{folder / 'config.json'} cannot be used"):
        text = config.get_text_config(decoder=True)
        kept = dtype if dtype != "auto" else str(getattr(config, "dtype", None)).removeprefix("torch.")
        item = getattr(torch, kept).itemsize if kept in ("float32", "bfloat16", "float16") else None
        each, window = _kv(text, getattr(torch, kept) if item else torch.float32)
        limit = context_limit(config)
    tensors = list(_tensors(folder, bool(getattr(text, "tie_word_embeddings", False))))
    if not tensors:
        weights = sum(file.stat().st_size for file in folder.glob("*.bin"))
        return Need(weights, weights, each, window, limit, device)
    weights = sum(count * (item or stored) for count, stored in tensors)
    return Need(weights, 4 * max(count for count, _ in tensors), each, window, limit, device)


def _tensors(folder: Path, tied: bool) -> Iterator[tuple[int, int]]:
    """(weights, bytes of each as stored) of every tensor; of one on a grid its codes."""
    from safetensors import safe_open

    for file in weight_files(folder):
        with refusing(f"{file} is truncated or damaged, so download it again"), safe_open(file, "pt") as opened:
            names = list(opened.keys())
            for name in names:
                if name.endswith((".scales", ".minima")) or (tied and name.startswith("lm_head.")):
                    continue
                part = opened.get_slice(name)
                count, stored = math.prod(part.get_shape()), _STORED.get(part.get_dtype(), 4)
                four = name.endswith(".codes") and name.removesuffix(".codes") + ".minima" in names
                yield count * (2 if four else 1), stored


def _kv(text: Any, dtype: torch.dtype) -> tuple[int, int]:
    """`kv_per_token` and `kv_window` of `memory.Need`."""
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    window, kinds = getattr(text, "sliding_window", None), getattr(text, "layer_types", None)
    if kinds is None:
        sliding = window and getattr(text, "use_sliding_window", True)
        kinds = ["sliding_attention" if sliding else "full_attention"] * text.num_hidden_layers
    windows = sum(kind == "sliding_attention" for kind in kinds) if window else 0
    kind = Kind(Sight(window, 1, False), heads, head_dim, head_dim, dtype)
    return (len(kinds) - windows) * kind.entry_bytes, windows * kind.entry_bytes * (kind.most or 0)
