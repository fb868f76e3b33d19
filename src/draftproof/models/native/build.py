"""From the tensors of a checkpoint to the structures of the extension."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof import _kernels
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.models.native.config import DecoderSpec, LayerSpec
from draftproof.models.native.grid import Grid, Weight, by_rows
from draftproof.models.native.pack import WeightFormat, pack

PANEL = 16


class Builder:
    """Fills the structures of the extension from a checkpoint."""

    def __init__(self, spec: DecoderSpec, checkpoint: Checkpoint, weights: WeightFormat, activations: str) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._weights = weights
        self._activations = activations
        self._arena = _kernels.Arena()

    def build(self) -> tuple[_kernels.Config, list[_kernels.Layer]]:
        """Everything the extension needs."""
        return self._config(), [self._layer(i, layer) for i, layer in enumerate(self._spec.layers)]

    def _config(self) -> _kernels.Config:
        spec, config = self._spec, _kernels.Config()
        for name in ("max_context", "vocab", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "eps"):
            setattr(config, name, getattr(spec, name))
        config.attention_scale, config.embedding_scale = spec.attention_scale, spec.embedding_scale
        config.activation = getattr(_kernels.Activation, spec.activation)
        config.quantised_activations = self._activations == "int8"
        config.ropes = [self._rope(i) for i in range(len(spec.ropes))]
        config.final_norm = self._norm("model.norm.weight", spec.hidden)
        config.embedding, config.head = self.ends()
        return config

    def ends(self) -> tuple[_kernels.Matrix, _kernels.Matrix]:
        """Embedding and head; one matrix where they are tied."""
        spec = self._spec
        embedding = self.pack(self._matrix("model.embed_tokens.weight", spec.vocab, spec.hidden), head=True)
        if spec.tied:
            return embedding, embedding
        return embedding, self.pack(self._matrix("lm_head.weight", spec.vocab, spec.hidden), head=True)

    def _rope(self, index: int) -> _kernels.Rope:
        rope = _kernels.Rope()
        rope.frequencies = list(self._spec.ropes[index].frequencies)
        rope.scale = self._spec.ropes[index].scale
        return rope

    def _layer(self, index: int, spec: LayerSpec) -> _kernels.Layer:
        s, layer, prefix = self._spec, _kernels.Layer(), f"model.layers.{index}."
        layer.window, layer.rope = spec.window, spec.rope
        width = s.heads * s.head_dim
        sizes = {"q": s.heads * s.head_dim, "k": s.kv_heads * s.head_dim, "v": s.kv_heads * s.head_dim}
        parts = [self._matrix(f"{prefix}self_attn.{n}_proj.weight", size, s.hidden) for n, size in sizes.items()]
        layer.qkv = self.pack(by_rows(torch.cat, parts))
        layer.out = self.pack(self._matrix(prefix + "self_attn.o_proj.weight", s.hidden, width))
        pair = [self._matrix(f"{prefix}mlp.{n}_proj.weight", s.intermediate, s.hidden) for n in ("gate", "up")]
        layer.gate_up = self.pack(by_rows(interleave, pair))
        layer.down = self.pack(self._matrix(prefix + "mlp.down_proj.weight", s.hidden, s.intermediate))
        if s.qkv_bias:
            biases = [self._vector(f"{prefix}self_attn.{n}_proj.bias", size) for n, size in sizes.items()]
            layer.qkv_bias = torch.cat(biases).tolist()
        if s.out_bias:
            layer.out_bias = self._vector(prefix + "self_attn.o_proj.bias", s.hidden).tolist()
        self._norms(layer, prefix)
        return layer

    def _norms(self, layer: _kernels.Layer, prefix: str) -> None:
        s = self._spec
        layer.attention_norm = self._norm(prefix + "input_layernorm.weight", s.hidden)
        mlp = "pre_feedforward_layernorm" if s.sandwich_norms else "post_attention_layernorm"
        layer.mlp_norm = self._norm(f"{prefix}{mlp}.weight", s.hidden)
        if s.sandwich_norms:
            layer.attention_out_norm = self._norm(prefix + "post_attention_layernorm.weight", s.hidden)
            layer.mlp_out_norm = self._norm(prefix + "post_feedforward_layernorm.weight", s.hidden)
        if s.qk_norm:
            layer.query_norm = self._norm(prefix + "self_attn.q_norm.weight", s.head_dim)
            layer.key_norm = self._norm(prefix + "self_attn.k_norm.weight", s.head_dim)

    def _norm(self, name: str, size: int) -> list[float]:
        weight = self._vector(name, size)
        return (weight + 1.0 if self._spec.sandwich_norms else weight).tolist()

    def _vector(self, name: str, size: int) -> Tensor:
        return self._checkpoint.tensor(name, (size,)).float()

    def _matrix(self, name: str, outputs: int, depth: int) -> Weight:
        return self._checkpoint.matrix(name, outputs, depth)

    def pack(self, weight: Weight, head: bool = False) -> _kernels.Matrix:
        """In the format that is asked for, as `_format` says."""
        return pack(weight, self._format(weight, head), self._arena)

    def _format(self, weight: Weight, head: bool) -> WeightFormat:
        """Four bits are too few for an embedding that was not trained for them: with int4 it has eight.

        Beside weights on a grid int4 rounds nothing, so that the model is that of the file.
        """
        if self._weights != "int4" or isinstance(weight, Grid):
            return self._weights
        if self._checkpoint.on_grid:
            return "bf16" if weight.dtype == torch.bfloat16 else "f32"
        return "int8" if head else "int4"


def interleave(halves: list[Tensor]) -> Tensor:
    """Blocks of 16 rows of gate and up in turn, so that the kernels hold both halves of an activation at once."""
    blocks = [half.view(-1, PANEL, half.shape[1]) for half in halves]
    return torch.stack(blocks, dim=1).flatten(0, 2)
