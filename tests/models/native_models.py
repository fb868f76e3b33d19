"""Small random checkpoints of every supported family, written as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from draftproof.types import Segment

_SIZES: dict[str, Any] = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3-rope": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "yarn-rope": ("qwen3", {"rope_parameters": _YARN, "head_dim": 32}),
    "smollm2": ("llama", {"num_attention_heads": 6, "hidden_size": 96, "tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": 9, "head_dim": 32}),
    "mistral-wide": ("mistral", {"sliding_window": 100}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "gemma3": ("gemma3_text", {
        "sliding_window": 8, "head_dim": 32, "query_pre_attn_scalar": 48, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    }),
}  # fmt: skip


def make(family: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Write a random checkpoint to `folder` and return it as a transformers model.

    Weights are large enough that attention is peaked and every norm and bias matters.
    """
    kind, changes = FAMILIES[family]
    config = CONFIG_MAPPING[kind](**{**_SIZES, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.randn_like(parameter) * scale)
            if name.endswith("norm.weight") and kind != "gemma3_text":
                parameter.add_(1.0)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model


def chain_segment(cache: Any, tokens: Tensor | list[int], rows: int = 1, resume: int = 0) -> Segment:
    ids = torch.as_tensor(tokens)
    return Segment(cache, ids, tuple(range(-1, len(ids) - 1)), rows, resume)


def put_on_grid(folder: Path) -> None:
    """Rewrite a checkpoint as `import --keep-quantized` would: layers in four bits, the embedding in eight."""
    from safetensors.torch import load_file, save_file

    from draftproof.models.native.grid import fold
    from draftproof.models.native.pack import quantise_int4

    kept: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            grid = quantise_int4(weight)
            assert grid.minima is not None
            kept |= {f"{name}.codes": fold(grid.codes), f"{name}.scales": grid.scales, f"{name}.minima": grid.minima}
        elif "embed_tokens" in name:
            groups = weight.view(len(weight), -1, 32)
            scales = (groups.abs().amax(dim=2) / 127).half()
            codes = (groups / scales.float()[:, :, None]).round().clamp(-127, 127).to(torch.int8)
            kept |= {f"{name}.codes": codes.view_as(weight), f"{name}.scales": scales}
        else:
            kept[name] = weight
    (folder / "model.safetensors").unlink()
    save_file(kept, folder / "grid.safetensors", metadata={"format": "pt"})
