"""Small GGUF files, written from random transformers models the way the format's converters do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof.text import _alphabet

LEAVES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2"), ("Ġ", "Ġ")]
VOCABULARY = 288
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_model(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A random model with grouped queries, whose norms and biases are random too."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(settings | changes)))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.eval()


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    storage: str | Mapping[str, str] = "F32",
    entries: dict[str, Any] | None = None,
    skip: str | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """A file of that architecture with the model's weights and a small tokenizer.

    storage  of the matrices, or the type of each by its name, under "" that of the others
    entries  further integers and floats of the architecture; skip: a tensor to leave out; tensors: more of them
    """
    kinds = {"": storage} if isinstance(storage, str) else storage
    writer = GGUFWriter(path, architecture)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head = getattr(config, "head_dim", None)
    if head and head * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head)
        writer.add_value_length(head)
    for key, value in (entries or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        writer.kv_data[0].pop(f"{architecture}.{key}", None)
        add(f"{architecture}.{key}", value)
    (_sentencepiece if architecture == "gemma3" else _byte_level)(writer, architecture)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if (ours := gguf_name(name, architecture)) != skip:
            _add(writer, ours, _stored(ours, weight.float().numpy(), config, architecture), kinds.get(ours, kinds[""]))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights_of(path: Path, model: Any, architecture: str) -> dict[str, Tensor]:
    """The file's weights, dequantised by the gguf package, by their names in transformers."""
    stored = {t.name: np.array(dequantize(t.data, t.tensor_type), np.float32) for t in GGUFReader(path).tensors}
    weights = {}
    for name in model.state_dict():
        if (ours := gguf_name(name, architecture)) in stored:
            weights[name] = torch.from_numpy(_original(ours, stored[ours], model.config, architecture))
    return weights


def gguf_name(name: str, architecture: str) -> str:
    """The GGUF name of a transformers weight."""
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top or name == "lm_head.weight":
        return top.get(name, "output.weight")
    _, _, layer, *leaf, suffix = name.split(".")
    leaves = LEAVES | (GEMMA if architecture == "gemma3" else {})
    return f"blk.{layer}.{leaves['.'.join(leaf)]}.{suffix}"


def llama3_factors(theta: float, head: int, factor: float, original: int) -> np.ndarray:
    """What a converter stores for Llama 3.1's rotary scaling (case by case, as in its published description)."""
    factors = []
    for i in range(head // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head)
        if wavelength < original / 4:
            factors.append(1.0)
        elif wavelength > original:
            factors.append(factor)
        else:
            smooth = (original / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def _stored(name: str, values: np.ndarray, config: Any, architecture: str) -> np.ndarray:
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    return values


def _original(name: str, values: np.ndarray, config: Any, architecture: str) -> np.ndarray:
    """The other way round."""
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        pairs = values.reshape(heads, -1, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return values - np.float32(1) if architecture == "gemma3" and name.endswith("norm.weight") else values


def _add(writer: GGUFWriter, name: str, values: np.ndarray, storage: str) -> None:
    kind = GGMLQuantizationType[storage]
    if storage == "Q6_K":
        writer.add_tensor(name, _random_q6(values.shape), raw_dtype=kind)
    elif values.ndim == 1 or storage == "F32":
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _random_q6(shape: tuple[int, ...]) -> np.ndarray:
    """The gguf package can read this type, but not write it: random blocks of 256 with small scales."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // 256, 210), dtype=np.uint8)
    blocks[:, :, -2:] = np.array([0.0005], np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _byte_level(writer: GGUFWriter, architecture: str) -> None:
    tokens = [*CONTROL, *_alphabet(), *("".join(pair) for pair in MERGES)]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCABULARY)]
    control = {*range(len(CONTROL)), *range(len(CONTROL) + 256 + len(MERGES), VOCABULARY)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if architecture == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in control else 1 for i in range(VOCABULARY)])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    _specials(writer, 1, 2)
    writer.add_add_bos_token(architecture == "llama")
    writer.add_chat_template(TEMPLATE)


def _sentencepiece(writer: GGUFWriter, architecture: str) -> None:
    tokens = ["<pad>", "<bos>", "<eos>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "t", "h", "e", "th", "the", "▁the", "  ", "a", "b", "é"]
    tokens += [f"<unused{i}>" for i in range(len(tokens), VOCABULARY)]
    kinds = [3] * 4 + [6] * 256 + [1] * 11 + [3] * (VOCABULARY - 271)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCABULARY)])
    writer.add_token_types(kinds)
    _specials(writer, 1, 2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _specials(writer: GGUFWriter, start: int, end: int) -> None:
    writer.add_bos_token_id(start)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(0)
