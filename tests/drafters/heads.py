"""Random heads in the layouts of the projects that train them, written as folders, and the same sums in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64}
EPS = 1e-5


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Weights large enough that every one of them matters; norms around one."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.3 * noise if len(shape) == 1 and "norm" in name else 1.5 * noise / shape[-1] ** 0.5
    return made


def layer(prefix: str, hidden: int, entered: int, **sizes: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder layer whose attention reads `entered` numbers."""
    s = {**SIZES, **sizes}
    width, kv = s["num_attention_heads"] * s["head_dim"], s["num_key_value_heads"] * s["head_dim"]
    return {
        f"{prefix}self_attn.q_proj.weight": (width, entered),
        f"{prefix}self_attn.k_proj.weight": (kv, entered),
        f"{prefix}self_attn.v_proj.weight": (kv, entered),
        f"{prefix}self_attn.o_proj.weight": (hidden, width),
        f"{prefix}mlp.gate_proj.weight": (s["intermediate_size"], hidden),
        f"{prefix}mlp.up_proj.weight": (s["intermediate_size"], hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, s["intermediate_size"]),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }


def eagle1(vocab: int, hidden: int, prefix: str = "layers.0.", fc: str = "fc") -> dict[str, tuple[int, ...]]:
    """EAGLE-1 as its authors write it; speculators call the same layer `transformer.` and the input `fusion_fc`."""
    return {f"{fc}.weight": (hidden, 2 * hidden), **layer(prefix, hidden, hidden)}


def eagle3(
    vocab: int, hidden: int, draft: int, prefix: str = "midlayer.", target: int | None = None, states: int = 3
) -> dict[str, tuple[int, ...]]:
    """EAGLE-3 without maps and embedding."""
    return {
        "fc.weight": (hidden, states * (target or hidden)),
        **layer(prefix, hidden, 2 * hidden),
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden),
    }


def maps(vocab: int, draft: int, seed: int = 5) -> tuple[Tensors, Tensor]:
    """(d2t and t2d, the target's ids): a random part of the vocabulary."""
    ids = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:draft].sort().values
    marked = torch.zeros(vocab, dtype=torch.bool)
    marked[ids] = True
    return {"d2t": ids - torch.arange(draft), "t2d": marked}, ids


def config(vocab: int, hidden: int, **changes: Any) -> dict[str, Any]:
    """A plain config.json of a head."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "vocab_size": vocab,
        "rms_norm_eps": EPS,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        **SIZES,
        **changes,
    }


def speculators(kind: str, vocab: int, hidden: int, **changes: Any) -> dict[str, Any]:
    """The same in speculators' format: the layer's sizes one level further down."""
    inner = config(vocab, hidden)
    inner["rope_parameters"] = {"rope_type": "default", "rope_theta": inner.pop("rope_theta")}
    return {
        "architectures": ["Eagle3Speculator" if kind == "eagle3" else "EagleSpeculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "target"}},
        "transformer_layer_config": inner,
        **changes,
    }


def write(folder: Path, tensors: Tensors, settings: dict[str, Any]) -> Path:
    """A folder of config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def turned(x: Tensor, theta: float = 10000.0) -> Tensor:
    """x [n, heads, d], row i at position i; complex numbers instead of halves."""
    n, _, d = x.shape
    angles = torch.arange(n)[:, None] / theta ** (torch.arange(0, d, 2) / d)
    numbers = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([numbers.real, numbers.imag], -1)


def decode(t: Tensors, prefix: str, entered: Tensor, residual: Tensor) -> Tensor:
    """[n, H]: a decoder layer over a whole text, entry by entry and head by head."""
    heads, kv, d = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], SIZES["head_dim"]
    q, k, v = (entered @ t[f"{prefix}self_attn.{one}_proj.weight"].T for one in "qkv")
    q, k, v = turned(q.view(-1, heads, d)), turned(k.view(-1, kv, d)), v.view(-1, kv, d)
    rows = []
    for i in range(len(entered)):
        mixed = []
        for head in range(heads):
            group = head // (heads // kv)
            weights = (k[: i + 1, group] @ q[i, head] / d**0.5).softmax(0)
            mixed.append(weights @ v[: i + 1, group])
        rows.append(torch.cat(mixed))
    state = residual + torch.stack(rows) @ t[f"{prefix}self_attn.o_proj.weight"].T
    x = norm(state, t[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (x @ t[f"{prefix}mlp.{one}_proj.weight"].T for one in ("gate", "up"))
    return state + (gate * gate.sigmoid() * up) @ t[f"{prefix}mlp.down_proj.weight"].T
