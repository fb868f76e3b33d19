"""What a GGUF file says about its model, as a transformers configuration. Key names: the GGUF specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.types import InputError

_MOST = 2**31 - 1
_MOST_LAYERS = 1000


class Metadata:
    """The key-value part of a GGUF file; keys of the architecture are asked for without its name."""

    def __init__(self, reader: Any, name: str) -> None:
        self._fields = reader.fields
        self.name = name
        self.architecture = str(self.get("general.architecture", ""))
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a full key."""
        field = self._fields.get(key)
        try:
            return default if field is None else field.contents()
        except UnicodeDecodeError as error:
            raise self.refuse(f"its entry {key} is not valid text, so the file is damaged") from error

    def own(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture."""
        return self.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """The same, where the model cannot be built without it."""
        value = self.own(key)
        if value is None:
            raise InputError(f"{self.name} lacks the entry {self.architecture}.{key}; it is not a complete GGUF model.")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, the same for all layers."""
        value = self.need(key) if default is None else self.own(key, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.refuse(f"its layers differ in {key}")
            value = value[0]
        most = _MOST_LAYERS if key == "block_count" else _MOST
        if not isinstance(value, int) or not 1 <= value <= most:
            raise self.refuse(f"its entry {key} must be a whole number between 1 and {most}, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number of at least 0 with the shortest decimal of the same float32: 1e-05, not 9.999999747378752e-06."""
        value = self.need(key) if default is None else self.own(key, default)
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise self.refuse(f"its entry {key} must be a finite number of at least 0, not {value!r}")
        return float(str(np.float32(value)))

    def refuse(self, reason: str) -> InputError:
        """The error for a model that the import cannot represent."""
        return InputError(f"{self.name} cannot be imported: {reason}.")


def model_config(meta: Metadata) -> dict[str, Any]:
    """Keyword arguments of `transformers.AutoConfig.for_model`. InputError for what is not supported."""
    build = _architectures().get(meta.architecture)
    if build is None:
        names = ", ".join(_architectures())
        raise meta.refuse(f"its architecture is {meta.architecture or 'not named'}, and only {names} are supported")
    if (parts := int(meta.get("split.count", 1))) > 1:
        raise meta.refuse(f"it is one of {parts} parts of a split model; merge them into one file first")
    if int(meta.own("expert_count", 0)):
        raise meta.refuse("it is a mixture of experts, which is not supported")
    return build(meta)


def _architectures() -> Mapping[str, Callable[[Metadata], dict[str, Any]]]:
    return {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3}


def _common(meta: Metadata) -> dict[str, Any]:
    """What every decoder of these families states."""
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    key_length = int(meta.own("attention.key_length", hidden // heads))
    if int(meta.own("attention.value_length", key_length)) != key_length:
        raise meta.refuse("its keys and values differ in length")
    if (rotated := int(meta.own("rope.dimension_count", key_length))) != key_length:
        raise meta.refuse(f"only {rotated} of {key_length} dimensions of a head are rotated")
    embedding = meta.tensors.get("token_embd.weight")
    if embedding is None:
        raise meta.refuse("the tensor token_embd.weight is missing")
    return {
        "vocab_size": int(embedding.shape[1]),
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": key_length,
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in meta.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def _llama(meta: Metadata) -> dict[str, Any]:
    """Llama, and everything stored as such: Mistral 7B, SmolLM, TinyLlama ..."""
    if any("rope_factors" in name for name in meta.tensors):
        raise meta.refuse("it uses long-context rotation factors, which are not supported")
    config = _common(meta) | {
        "model_type": "llama",
        "rope_parameters": _rope(meta),
        "attention_bias": "blk.0.attn_q.bias" in meta.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in meta.tensors,
    }
    if meta.own("attention.sliding_window"):
        if config.pop("attention_bias") or config.pop("mlp_bias"):
            raise meta.refuse("it has both a sliding window and biases")
        config |= {"model_type": "mistral", "sliding_window": meta.integer("attention.sliding_window")}
    return config


def _qwen2(meta: Metadata) -> dict[str, Any]:
    config = _common(meta) | {"model_type": "qwen2", "rope_parameters": _rope(meta), "use_sliding_window": False}
    if config.pop("head_dim") * config["num_attention_heads"] != config["hidden_size"]:
        raise meta.refuse("its heads do not fill its width, which Qwen2 cannot have")
    return config


def _qwen3(meta: Metadata) -> dict[str, Any]:
    return _common(meta) | {"model_type": "qwen3", "rope_parameters": _rope(meta), "use_sliding_window": False}


def _gemma3(meta: Metadata) -> dict[str, Any]:
    """Text part of Gemma 3: five sliding layers, then a full one that alone has the scaled rotation."""
    config = _common(meta)
    layers, pattern = config["num_hidden_layers"], meta.own("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        sliding = [bool(one) for one in pattern]
    else:
        sliding = [bool((i + 1) % int(pattern)) for i in range(layers)]
    # The file does not state the attention scale; only the 27B model (62 layers) departs from the head's length.
    whole = layers == 62
    local = meta.number("rope.freq_base_swa", 10_000.0)
    return config | {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention" if one else "full_attention" for one in sliding],
        "sliding_window": meta.integer("attention.sliding_window"),
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if whole
        else config["head_dim"],
        "final_logit_softcapping": meta.own("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": _rope(meta, 1_000_000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _rope(meta: Metadata, base: float = 10_000.0) -> dict[str, Any]:
    """Rotary embedding parameters, scaling included."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base", base)}
    if not rope["rope_theta"]:
        raise meta.refuse("its entry rope.freq_base is 0, from which no rotation follows")
    kind = meta.own("rope.scaling.type", "none")
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 1.0))
    if "rope_freqs.weight" in meta.tensors:
        return rope | _llama3_scaling(meta, rope["rope_theta"])
    if kind == "none" and factor in (0.0, 1.0):
        return rope
    if not factor:
        raise meta.refuse("its entry rope.scaling.factor is 0, from which no rotation follows")
    if kind in ("none", "linear"):
        return rope | {"rope_type": "linear", "factor": factor}
    if kind != "yarn" or meta.own("rope.scaling.yarn_log_multiplier"):
        raise meta.refuse(f"its rotary scaling {kind} is not supported")
    rope |= {"rope_type": "yarn", "factor": factor}
    original = meta.own("rope.scaling.original_context_length")
    if original is not None:
        rope["original_max_position_embeddings"] = int(original)
    if meta.own("rope.scaling.attn_factor") is not None:
        attention = meta.number("rope.scaling.attn_factor")
        # The file's number multiplies the default magnitude (YaRN, equation 22); transformers takes the product.
        rope["attention_factor"] = attention * (1.0 + 0.1 * math.log(factor))
    for ours, key in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if meta.own(f"rope.scaling.{key}") is not None:
            rope[ours] = meta.number(f"rope.scaling.{key}")
    return rope


def _llama3_scaling(meta: Metadata, theta: float) -> dict[str, Any]:
    """Llama 3.1's scaling, found again from the factors that the file stores for every frequency."""
    stored = np.asarray(meta.tensors["rope_freqs.weight"].data, dtype=np.float64).reshape(-1)
    scaling = {"factor": round(float(stored.max()), 4), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if np.all(stored == 1.0):
        return {}
    for original in (8192, 4096, 16384, 32768):
        if np.allclose(stored, _llama3_factors(theta, len(stored), scaling["factor"], original), rtol=1e-4):
            return scaling | {"rope_type": "llama3", "original_max_position_embeddings": original}
    raise meta.refuse("its rotary frequency factors (rope_freqs.weight) are not Llama 3.1's scaling")


def _llama3_factors(theta: float, half: int, factor: float, original: int) -> NDArray[np.float64]:
    """[half] what each frequency is divided by, with low and high frequency factors 1 and 4."""
    frequencies = theta ** (-np.arange(half) / half)
    turns = original * frequencies / (2 * math.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / factor + smooth))
