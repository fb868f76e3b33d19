"""A trained head as a folder: EAGLE-3's layout, which vLLM reads, and speculators'. `eagle_files` reads both back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.drafters.eagle_files import PARTS
from draftproof.drafters.eagle_head import EagleHead
from draftproof.int8 import quantise_int8
from draftproof.types import InputError

FORMATS = ("draftproof", "int8", "vllm", "speculators")
_PREFIX = {"speculators": "layers.0."}
_OWN = ("draftproof", "int8")


@dataclass(frozen=True)
class Origin:
    """Where a head comes from. tokenizer: fingerprint of the target's; verifier: the target's folder."""

    tokenizer: str
    verifier: str
    training: Mapping[str, Any]


def write_head(head: EagleHead, folder: Path, origin: Origin, form: str = "draftproof") -> None:
    """config.json and model.safetensors.

    draftproof: EAGLE-3's layout in float32 with a section of our own. int8: the same with every matrix as int8 and a
    scale a row, `NAME.weight_scale` [outputs, 1], a quarter of the size. vllm: the layout in bfloat16.
    speculators: their nesting, in bfloat16.
    InputError for a format that cannot hold this head.
    """
    from safetensors.torch import save_file

    if form not in FORMATS:
        raise InputError(f"there is no format {form!r} of heads; there are: {', '.join(FORMATS)}.")
    if head.config.layout != "eagle3" or head.ids is None:
        raise InputError("heads are written in EAGLE-3's layout with a draft vocabulary alone.")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = torch.float32 if form in _OWN else torch.bfloat16
    weights = tensors(head, _PREFIX.get(form, "midlayer."), dtype)
    save_file(_coded(weights) if form == "int8" else weights, folder / "model.safetensors", {"format": "pt"})
    settings = _speculators(head, origin) if form == "speculators" else _plain(head)
    settings["torch_dtype"] = str(dtype).removeprefix("torch.")
    if form in _OWN:
        settings["draftproof"] = {"tokenizer": origin.tokenizer, **origin.training}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def tensors(head: EagleHead, prefix: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every weight under the name that the files give it, with the maps d2t [draft_vocab] and t2d [vocab]."""
    made: dict[str, Tensor] = {}
    for name, value in head.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module not in PARTS:
            continue
        sizes = _sizes(head, module)
        for part, piece in zip(PARTS[module], value.detach().cpu().split(sizes or len(value)), strict=True):
            made[f"{part.replace('layer.', prefix, 1)}.{kind}"] = piece.to(dtype).contiguous()
    assert head.ids is not None
    ids = head.ids.cpu()
    marked = torch.zeros(head.config.vocab, dtype=torch.bool)
    marked[ids] = True
    return {**made, "d2t": ids - torch.arange(len(ids)), "t2d": marked}


def _coded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as codes with their scales; all else as it is."""
    made: dict[str, Tensor] = {}
    for name, value in weights.items():
        if value.dim() < 2:
            made[name] = value
        else:
            made[name], scales = quantise_int8(value)
            made[f"{name}_scale"] = scales[:, None].contiguous()
    return made


def _sizes(head: EagleHead, module: str) -> list[int]:
    """Rows of each part of a module that the files keep apart."""
    c = head.config
    if module == "qkv":
        return [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
    return [c.intermediate, c.intermediate] if module == "gate_up" else []


def _layer(head: EagleHead) -> dict[str, Any]:
    c = head.config
    return {
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.eps,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.max_context,
        "rope_theta": c.rope.get("rope_theta", 10000.0),
        "rope_parameters": dict(c.rope),
        "attention_bias": c.qkv_bias,
        "mlp_bias": c.mlp_bias,
        "tie_word_embeddings": False,
    }


def _plain(head: EagleHead) -> dict[str, Any]:
    c = head.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_layer(head),
        "draft_vocab_size": c.draft_vocab,
        "target_hidden_size": c.target_hidden,
        "norm_before_residual": c.norm_before_residual,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(c.layers), "use_aux_hidden_state": True},
    }


def _speculators(head: EagleHead, origin: Origin) -> dict[str, Any]:
    c = head.config
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
            "verifier": {"name_or_path": origin.verifier, "architectures": []},
        },
        "transformer_layer_config": {"model_type": "llama", **_layer(head)},
        "draft_vocab_size": c.draft_vocab,
        "target_hidden_size": c.target_hidden,
        "norm_before_residual": c.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(c.layers),
    }
