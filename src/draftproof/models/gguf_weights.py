"""The weights of a GGUF file as transformers has them: what the conversion to GGUF changes is undone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.models.gguf_config import Metadata
from draftproof.models.native.grid import GROUP, Grid, fold

# Bytes of a block of 32 weights in the file. Behind scale and minimum in float16 stand the codes.
_BLOCKS = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
_EXACT = {"F16": torch.float16, "BF16": torch.bfloat16}


def on_grid(tensor: Any) -> bool:
    """Is it a matrix on a grid that a folder can keep?"""
    return len(tensor.shape) == 2 and tensor.tensor_type.name in _BLOCKS


def parts(meta: Metadata, name: str, tensor: Any, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """What a folder holds of the weight `name`: the dense weight, or with dtype None all that the file says of it.

    That is its grid (`native/grid.py`), or else its values in the smallest type that holds them exactly.
    InputError for a type of tensor that is not understood, and for weights that are not finite.
    """
    if dtype is None and on_grid(tensor):
        grid = _grid(meta, tensor)
        if grid.minima is None:
            return {name + ".codes": grid.codes, name + ".scales": grid.scales}
        return {name + ".codes": fold(grid.codes), name + ".scales": grid.scales, name + ".minima": grid.minima}
    return {name: torch.from_numpy(_values(meta, tensor)).to(dtype or _exact(meta, tensor))}


def size(meta: Metadata, tensor: Any, dtype: torch.dtype | None) -> int:
    """Bytes of the same."""
    count = int(tensor.n_elements)
    if dtype is None and on_grid(tensor):
        return count // GROUP * (34 if tensor.tensor_type.name == "Q8_0" else 20)
    return count * (dtype or _exact(meta, tensor)).itemsize


def _exact(meta: Metadata, tensor: Any) -> torch.dtype:
    return torch.float32 if _shifted(meta, tensor) else _EXACT.get(tensor.tensor_type.name, torch.float32)


def _shifted(meta: Metadata, tensor: Any) -> bool:
    """Gemma's norms multiply by 1 + weight; the file stores the sum."""
    return meta.architecture == "gemma3" and tensor.name.endswith("norm.weight")


def _values(meta: Metadata, tensor: Any) -> NDArray[np.float32]:
    from gguf.quants import dequantize

    try:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError as error:
        raise meta.refuse(f"its tensor {tensor.name} is stored as {tensor.tensor_type.name}, not supported") from error
    _check_finite(meta, tensor, values)
    if _shifted(meta, tensor):
        return values - np.float32(1)
    return _rotated(meta, tensor, values)


def _grid(meta: Metadata, tensor: Any) -> Grid:
    """Rows in transformers' order, in the file's own codes, scales and minima."""
    kind = tensor.tensor_type.name
    blocks = np.ascontiguousarray(tensor.data).reshape(len(tensor.data), -1, _BLOCKS[kind])
    scales = blocks[:, :, :2].copy().view(np.float16)[:, :, 0]
    if kind == "Q8_0":
        codes, minima = blocks[:, :, 2:].copy().view(np.int8), None
    else:
        codes = np.concatenate([blocks[:, :, -16:] & 15, blocks[:, :, -16:] >> 4], axis=2)
        minima = (
            blocks[:, :, 2:4].copy().view(np.float16)[:, :, 0] if kind == "Q4_1" else _centred(meta, tensor, scales)
        )
    values: list[NDArray[Any]] = [scales] if minima is None else [scales, minima]
    for one in values:
        _check_finite(meta, tensor, one)
    return Grid(*(torch.from_numpy(_rotated(meta, tensor, one)) for one in (codes.reshape(len(codes), -1), *values)))


def _centred(meta: Metadata, tensor: Any, scales: NDArray[np.float16]) -> NDArray[np.float16]:
    """Q4_0 counts from 8: minimum = -8 * scale, a power of two and so exact up to the largest float16."""
    if (np.abs(scales.astype(np.float32)) * 8 > np.finfo(np.float16).max).any():
        raise meta.refuse(
            f"the grid of its tensor {tensor.name} reaches beyond float16; import it without --keep-quantized"
        )
    return scales * np.float16(-8)


def _check_finite(meta: Metadata, tensor: Any, values: NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise meta.refuse(f"its tensor {tensor.name} holds NaN or infinite weights, so the file is damaged")


def _rotated(meta: Metadata, tensor: Any, values: NDArray[Any]) -> NDArray[Any]:
    """[rows, ...] with the pairs of a Llama head that rotate together moved from neighbours to halves."""
    match = re.search(r"\.attn_([qk])\.", tensor.name)
    if meta.architecture != "llama" or match is None:
        return np.ascontiguousarray(values)
    heads = meta.integer("attention.head_count")
    if match[1] == "k":
        heads = meta.integer("attention.head_count_kv", heads)
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
