"""How much memory a native model will take, from config.json and the headers of the weight files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftproof.files import folder_at
from draftproof.memory import Need
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.models.native.config import DecoderSpec, read_config
from draftproof.models.native.grid import GROUP

_PANEL = 16
_BITS = {"f32": 32, "bf16": 16, "int8": 8, "int4": 4}
_BEHIND_WINDOW = 128
"""Entries a cache keeps behind a window for rollbacks, a page of 64 more than `kWindowSlack` in cache.h."""


def need(path: str | Path, weights: str) -> Need:
    """For the folder and the weight format of `load_native`. InputError for a folder that cannot be read."""
    folder = folder_at(path)
    spec = read_config(folder)
    with Checkpoint(folder) as checkpoint:
        sizes = [_bytes(checkpoint, weights, *matrix) for matrix in _matrices(spec)]
    largest = max(spec.vocab * spec.hidden, 2 * spec.intermediate * spec.hidden)
    each, window = kv(spec)
    return Need(sum(sizes), loading=8 * largest, kv_per_token=each, kv_window=window, max_context=spec.max_context)


def kv(spec: DecoderSpec) -> tuple[int, int]:
    """`kv_per_token` and `kv_window` of `memory.Need`."""
    entry = 2 * 4 * spec.kv_heads * spec.head_dim
    windows = [layer.window for layer in spec.layers if layer.window]
    return (len(spec.layers) - len(windows)) * entry, sum(window + _BEHIND_WINDOW for window in windows) * entry


def _matrices(spec: DecoderSpec) -> Iterator[tuple[str, int, int, bool]]:
    """(name, outputs, depth, is it embedding or head) of all that the kernels hold in panels."""
    yield "model.embed_tokens.weight", spec.vocab, spec.hidden, True
    if not spec.tied:
        yield "lm_head.weight", spec.vocab, spec.hidden, True
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    for i in range(len(spec.layers)):
        for leaf, outputs in (("q", queries), ("k", keys), ("v", keys)):
            yield f"model.layers.{i}.self_attn.{leaf}_proj.weight", outputs, spec.hidden, False
        yield f"model.layers.{i}.self_attn.o_proj.weight", spec.hidden, queries, False
        for leaf in ("gate", "up"):
            yield f"model.layers.{i}.mlp.{leaf}_proj.weight", spec.intermediate, spec.hidden, False
        yield f"model.layers.{i}.mlp.down_proj.weight", spec.hidden, spec.intermediate, False


def _bytes(checkpoint: Checkpoint, weights: str, name: str, outputs: int, depth: int, head: bool) -> int:
    """Whole panels of one matrix, as `load._Builder` packs it."""
    rows = -(-outputs // _PANEL) * _PANEL
    kept = checkpoint.grid_bits(name) if weights in ("int8", "int4") else None
    if kept == 8:
        return rows * (depth + depth // GROUP * 2)
    if weights == "int4" and kept is None:
        if checkpoint.on_grid:
            weights = "bf16" if checkpoint.stored(name) == "BF16" else "f32"
        elif head:
            weights = "int8"
    scales = {"int8": 4, "int4": depth // GROUP * 4}.get(weights, 0)
    return rows * (depth * _BITS.get(weights, 32) // 8 + scales)
