"""A trained head in one compiled call: the decoder's own code with one layer that begins from states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof import _kernels
from draftproof.contracts import HeadParts
from draftproof.models.native.build import PANEL, interleave
from draftproof.models.native.grid import GROUP
from draftproof.models.native.pack import WeightFormat, pack
from draftproof.types import Segment

_ANY_LENGTH = 2**30


class NativeHead:
    """`contracts.HeadForward` on the threads of the target."""

    def __init__(
        self, parts: HeadParts, embedding: _kernels.Matrix, weights: WeightFormat, isa: str, threads: int
    ) -> None:
        """embedding: the target's, for a head without its own. weights: the format of the head's matrices."""
        self._arena, self._weights, self._parts = _kernels.Arena(), weights, parts
        self._width = len(parts.tensors["mlp_norm.weight"])
        config = self._config(embedding)
        self._outputs = config.head.outputs
        self._compiled = _kernels.Model(config, [self._layer()], isa, threads)

    def new_cache(self) -> _kernels.Cache:
        """An empty cache."""
        return self._compiled.new_cache()

    def rollback(self, cache: _kernels.Cache, length: int) -> None:
        """Keep entries [0, length)."""
        cache.rollback(length, [])

    def forward(self, segments: Sequence[Segment], states: Sequence[Tensor], own: bool) -> list[tuple[Tensor, Tensor]]:
        """See `contracts.HeadForward`."""
        made, calls = [], []
        for segment, given in zip(segments, states, strict=True):
            count = len(segment.tokens)
            logits, hidden = torch.empty(segment.rows, self._outputs), torch.empty(count, 1, self._width)
            tokens = segment.tokens.to(torch.int64).contiguous().numpy()
            read = given.float().flatten(1).contiguous().numpy()
            calls.append(
                (segment.cache, tokens, segment.parents, segment.rows, 0, logits.numpy(), hidden.numpy(), read, own)
            )
            made.append((logits, hidden[count - segment.rows :, 0]))
        self._compiled.forward(calls, [1], -1)
        return made

    def _config(self, embedding: _kernels.Matrix) -> _kernels.Config:
        parts, tensors, config = self._parts, self._parts.tensors, _kernels.Config()
        for name in ("heads", "kv_heads", "head_dim", "intermediate", "eps", "normed_residual"):
            setattr(config, name, getattr(parts, name))
        own = tensors.get("embedding.weight")
        config.embedding = embedding if own is None else pack(own, "bf16" if own.dtype == torch.bfloat16 else "f32")
        config.vocab, config.hidden, config.max_context = config.embedding.outputs, self._width, _ANY_LENGTH
        config.attention_scale = float(parts.head_dim**-0.5)
        rope = _kernels.Rope()
        rope.frequencies, rope.scale = parts.frequencies.tolist(), parts.rope_scale
        config.ropes = [rope]
        config.head, config.fuse = self._pack(tensors["lm_head.weight"]), self._pack(tensors["fc.weight"])
        config.final_norm, config.embedding_norm = self._vector("norm.weight"), self._vector("embedding_norm.weight")
        config.fuse_norm = self._vector("input_norm.weight")
        return config

    def _layer(self) -> _kernels.Layer:
        tensors, layer = self._parts.tensors, _kernels.Layer()
        layer.qkv, layer.out = self._pack(tensors["qkv.weight"]), self._pack(tensors["out.weight"])
        layer.gate_up = self._pack(interleave(list(tensors["gate_up.weight"].chunk(2))))
        layer.down = self._pack(tensors["down.weight"])
        layer.qkv_bias, layer.out_bias = self._vector("qkv.bias"), self._vector("out.bias")
        layer.attention_norm, layer.mlp_norm = self._vector("state_norm.weight"), self._vector("mlp_norm.weight")
        layer.query_norm, layer.key_norm = self._vector("query_norm.weight"), self._vector("key_norm.weight")
        return layer

    def _pack(self, weight: Tensor) -> _kernels.Matrix:
        return pack(weight.float(), self._weights, self._arena)

    def _vector(self, name: str) -> list[float]:
        """Empty where the head has none of this name."""
        found = self._parts.tensors.get(name)
        return [] if found is None else [float(one) for one in found]


def takes(parts: HeadParts) -> bool:
    """Are the head's sizes those of the kernels?"""
    matrices = [weight for weight in parts.tensors.values() if weight.dim() == 2]
    return not any(weight.shape[1] % GROUP for weight in matrices) and parts.head_dim % PANEL == 0


def make_head(
    parts: HeadParts, embedding: _kernels.Matrix, weights: WeightFormat, isa: str, threads: int
) -> NativeHead | None:
    """None where the kernels do not take its sizes."""
    return NativeHead(parts, embedding, weights, isa, threads) if takes(parts) else None
