"""What a Hugging Face `config.json` says about a decoder, in the terms of the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof.files import refusing
from draftproof.models.folder import check_sizes, load_config
from draftproof.types import InputError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
_ROPES = ("default", "linear", "llama3", "yarn", "dynamic")


@dataclass(frozen=True)
class RopeSpec:
    """Frequencies [head_dim / 2] of the rotary embedding and the factor on its cosines and sines."""

    frequencies: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class LayerSpec:
    """Window 0 sees every earlier token; `rope` is an index into `DecoderSpec.ropes`."""

    window: int
    rope: int


@dataclass(frozen=True)
class DecoderSpec:
    """Sizes and switches of one checkpoint."""

    family: str
    vocab: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str
    attention_scale: float
    embedding_scale: float
    max_context: int
    tied: bool
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool
    sandwich_norms: bool
    """Norms behind attention and MLP too, and every norm weight stored as w - 1 (Gemma-3)."""
    ropes: tuple[RopeSpec, ...]
    layers: tuple[LayerSpec, ...]


def read_config(folder: Path) -> DecoderSpec:
    """The decoder described by `folder/config.json`; InputError if the kernels cannot compute it."""
    config = load_config(folder)
    with refusing(f"{folder / 'config.json'} cannot be used"):
        _refuse_unsupported(config)
        check_sizes(config, folder, "intermediate_size")
        spec = decoder_spec(config)
        _check_numbers(spec, folder / "config.json")
    return spec


def _check_numbers(spec: DecoderSpec, file: Path) -> None:
    """What the kernels compute with must be numbers."""
    scales = [spec.eps, spec.attention_scale, *(x for rope in spec.ropes for x in (rope.scale, *rope.frequencies))]
    if not all(math.isfinite(number) for number in scales):
        raise InputError(f"{file} cannot be used: its scales or rotary frequencies are not finite.")
    if not all(type(layer.window) is int and 0 <= layer.window < 2**31 for layer in spec.layers):
        raise InputError(f"{file} cannot be used: sliding_window must be a whole number above 0.")


def decoder_spec(config: Any) -> DecoderSpec:
    """The same for a transformers configuration object."""
    _refuse_unsupported(config)
    gemma = config.model_type == "gemma3_text"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bias = config.model_type == "qwen2" or bool(getattr(config, "attention_bias", False))
    kinds = _layer_kinds(config)
    ropes = {kind: _rope(config, kind, head_dim) for kind in sorted(set(kinds))}
    return DecoderSpec(
        family=config.model_type,
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        eps=config.rms_norm_eps,
        activation="gelu_tanh" if gemma else "silu",
        attention_scale=(config.query_pre_attn_scalar if gemma else head_dim) ** -0.5,
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        max_context=config.max_position_embeddings,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=bias,
        out_bias=bias and config.model_type != "qwen2",
        qk_norm=config.model_type in ("qwen3", "gemma3_text"),
        sandwich_norms=gemma,
        ropes=tuple(ropes.values()),
        layers=tuple(
            LayerSpec(config.sliding_window if kind == "sliding_attention" else 0, list(ropes).index(kind))
            for kind in kinds
        ),
    )


def _refuse_unsupported(config: Any) -> None:
    if config.model_type not in FAMILIES:
        raise InputError(f"native: computes {', '.join(FAMILIES)}, not {config.model_type}; use hf: for this model.")
    act = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")
    expected = "gelu_pytorch_tanh" if config.model_type == "gemma3_text" else "silu"
    if act != expected:
        raise InputError(f"native: computes {config.model_type} with {expected}, not {act}; use hf: for this model.")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "mlp_bias", "use_bidirectional_attention"):
        if getattr(config, name, None):
            raise InputError(f"native: does not compute {name}; use hf: for this model.")


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        sliding = config.model_type == "mistral" and getattr(config, "sliding_window", None)
        kinds = ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise InputError(f"native: does not compute layers of type {', '.join(sorted(unknown))}; use hf: instead.")
    return list(kinds)


def _rope(config: Any, kind: str, head_dim: int) -> RopeSpec:
    """`dynamic` equals `default` up to the trained length, where `max_context` stops it."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    by_kind = kind in parameters
    if by_kind:
        parameters = parameters[kind]
    name = parameters.get("rope_type", "default")
    if name not in _ROPES or parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(f"native: does not compute rotary embeddings of type {name}; use hf: for this model.")
    if name in ("default", "dynamic"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies, scale = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[name](
            config, torch.device("cpu"), layer_type=kind if by_kind else None
        )
    return RopeSpec(tuple(frequencies.tolist()), float(scale))
