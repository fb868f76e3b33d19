"""Heads that others trained, read from their folders: EAGLE-1, EAGLE-3, and speculators' format of either.

Every tensor of the files is used or listed; one that is missing is named, and nothing is ever filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.drafters.eagle_head import EagleHead, HeadConfig, rope
from draftproof.files import folder_at, read_object, refusing
from draftproof.types import InputError

_PREFIXES = (("midlayer.", "layer."), ("layers.0.", "layer."), ("transformer.", "layer."), ("fusion_fc.", "fc."))
PARTS: Mapping[str, tuple[str, ...]] = {
    "fc": ("fc",),
    "qkv": ("layer.self_attn.q_proj", "layer.self_attn.k_proj", "layer.self_attn.v_proj"),
    "out": ("layer.self_attn.o_proj",),
    "gate_up": ("layer.mlp.gate_proj", "layer.mlp.up_proj"),
    "down": ("layer.mlp.down_proj",),
    "lm_head": ("lm_head",),
    "embedding": ("embed_tokens",),
    "mlp_norm": ("layer.post_attention_layernorm",),
    "embedding_norm": ("layer.input_layernorm",),
    "state_norm": ("layer.hidden_norm",),
    "input_norm": ("input_norm",),
    "norm": ("norm",),
    "query_norm": ("layer.self_attn.q_norm",),
    "key_norm": ("layer.self_attn.k_norm",),
}
"""A module of `EagleHead` and the tensors of the files it is made of, one above the other."""
_FURTHER = re.compile(r"(model\.)?layers\.[1-9]")
_EAGLE3 = ("layer.hidden_norm.weight", "norm.weight", "d2t")
_REFUSED = ("layernorms", "add_para_norm", "norm_output", "fc_norm", "parallel_drafting", "quantization_config")


@dataclass(frozen=True, eq=False)
class HeadFile:
    """A head as read. unused: tensors of the files that the head has no place for.

    tokenizer: fingerprint of the tokenizer it was trained for, "" where the folder does not say.
    """

    head: EagleHead
    unused: tuple[str, ...]
    tokenizer: str = ""


def read_head(path: str | Path, num_layers: int) -> HeadFile:
    """The head in a folder of config.json and weights, for a target of so many layers. InputError otherwise."""
    folder = folder_at(path)
    settings = read_object(folder / "config.json")
    with refusing(f"{folder} cannot be read"):
        tensors = _Tensors(folder)
        config = _config(folder, settings, tensors, num_layers)
        ids = _ids(folder, tensors, config)
        with torch.device("meta"):
            head = EagleHead(config)
        state = {name: tensors.part(name, tuple(empty.shape)) for name, empty in head.state_dict().items()}
        head.load_state_dict(state, assign=True)
        head.frequencies, head.rope_scale = rope(config)
        head.ids = ids
    own = settings.get("draftproof")
    return HeadFile(head, tensors.rest(), str(own.get("tokenizer", "")) if isinstance(own, dict) else "")


class _Tensors:
    """The tensors of a folder under common names; each that is asked for counts as used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {_common_name(name): (name, read) for name, read in _listed(folder).items()}
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """Codes of int8 times their scales. InputError, with the name, for one that is missing."""
        if name not in self._files:
            raise InputError(f"{self._folder} has no tensor {self._spelled(name)}: it is incomplete.")
        self._used.add(name)
        found = self._files[name][1]()
        return found if found.dtype != torch.int8 else found.float() * self.get(f"{name}_scale").float().view(-1, 1)

    def part(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """What `EagleHead` calls so, float32; an embedding stays as stored."""
        module, _, kind = name.rpartition(".")
        pieces = [self.get(f"{one}.{kind}") for one in PARTS[module]]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if tuple(whole.shape) != shape:
            raise InputError(
                f"{' and '.join(PARTS[module])} of {self._folder} have shape {list(whole.shape)}, but its config.json"
                f" asks for {list(shape)}: the two do not belong together."
            )
        if not whole.is_floating_point() or not torch.isfinite(whole).all():
            raise InputError(f"{PARTS[module][0]}.{kind} of {self._folder} holds something other than finite numbers.")
        return whole if module == "embedding" else whole.float()

    def _spelled(self, name: str) -> str:
        """As the tensors that are there are spelled."""
        for theirs, ours in _PREFIXES:
            if name.startswith(ours) and any(theirs in original for original, _ in self._files.values()):
                return theirs + name[len(ours) :]
        return name

    def rest(self) -> tuple[str, ...]:
        """Names, as in the files, of what nobody asked for."""
        return tuple(sorted(self._files[name][0] for name in self._files.keys() - self._used))


def _common_name(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, ours in _PREFIXES:
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


def _listed(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor by its name in the files, read when called."""
    from safetensors import safe_open

    found: dict[str, Callable[[], Tensor]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        opened: Any = safe_open(file, framework="pt")
        found |= {name: partial(opened.get_tensor, name) for name in opened.keys()}  # noqa: SIM118
    if not found:
        for file in sorted(folder.glob("pytorch_model*.bin")):
            held = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            found |= {name: partial(held.__getitem__, name) for name in held}
    if not found:
        raise InputError(f"{folder} has no weights: a head is a config.json with .safetensors files.")
    return found


def _config(folder: Path, settings: dict[str, Any], tensors: _Tensors, num_layers: int) -> HeadConfig:
    kind = settings.get("speculators_model_type")
    inner = settings.get("transformer_layer_config") if kind else settings
    if kind not in (None, "eagle", "eagle3") or not isinstance(inner, dict):
        raise InputError(f"{folder} holds a {kind} drafter: eagle reads eagle and eagle3.")
    _refuse(folder, {**inner, **settings}, tensors)
    eagle3 = kind == "eagle3" or (kind is None and any(name in tensors for name in _EAGLE3))
    hidden, heads = int(inner["hidden_size"]), int(inner["num_attention_heads"])
    vocab = int(inner["vocab_size"])
    target_hidden = int(settings.get("target_hidden_size") or inner.get("target_hidden_size") or hidden)
    return HeadConfig(
        layout="eagle3" if eagle3 else "eagle1",
        hidden=hidden,
        intermediate=int(inner["intermediate_size"]),
        heads=heads,
        kv_heads=int(inner.get("num_key_value_heads") or heads),
        head_dim=int(inner.get("head_dim") or hidden // heads),
        eps=float(inner.get("rms_norm_eps", 1e-6)),
        vocab=vocab,
        draft_vocab=int(settings.get("draft_vocab_size") or inner.get("draft_vocab_size") or vocab),
        target_hidden=target_hidden,
        layers=_layers(folder, settings, num_layers) if eagle3 else (num_layers,),
        rope=_rope(inner),
        max_context=int(inner.get("max_position_embeddings") or 2048),
        norm_before_residual=bool(settings.get("norm_before_residual", False)),
        input_norm=eagle3 and "input_norm.weight" in tensors,
        out_norm=eagle3,
        fc_bias="fc.bias" in tensors,
        qkv_bias="layer.self_attn.q_proj.bias" in tensors,
        out_bias="layer.self_attn.o_proj.bias" in tensors,
        mlp_bias="layer.mlp.gate_proj.bias" in tensors,
        qk_norm="layer.self_attn.q_norm.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
    )


def _refuse(folder: Path, settings: Mapping[str, Any], tensors: _Tensors) -> None:
    """What is not computed here, by name."""
    eagle = settings.get("eagle_config") or {}
    if isinstance(eagle, dict) and not eagle.get("use_aux_hidden_state", True):
        raise InputError(f"{folder} was trained with use_aux_hidden_state=false, which is not computed here.")
    if named := next((name for name in _REFUSED if settings.get(name)), None):
        raise InputError(f"{folder} was made with {named}, which is not computed here.")
    if settings.get("norm_before_fc") and "input_norm.weight" not in tensors:
        raise InputError(f"{folder} has no tensor input_norm.weight, but its config.json says norm_before_fc.")
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1 or any(_FURTHER.match(name) for name in tensors.rest()):
        raise InputError(f"{folder} holds a head of several layers: only one is computed here.")
    act, scale = settings.get("hidden_act", "silu"), settings.get("logit_scale", 1.0)
    if act != "silu" or scale != 1.0:
        raise InputError(f"{folder} wants hidden_act={act}, logit_scale={scale}: only silu and 1 are computed here.")


def _layers(folder: Path, settings: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Behind which layers of the target fc's inputs lie; those of EAGLE-3 where nothing else is said."""
    eagle = settings.get("eagle_config")
    named = settings.get("eagle_aux_hidden_state_layer_ids")
    if not named and isinstance(eagle, dict):
        named = eagle.get("eagle_aux_hidden_state_layer_ids")
    if not named:
        return default_layers(num_layers)
    layers = tuple(int(layer) for layer in named)
    if not all(0 <= layer <= num_layers for layer in layers):
        raise InputError(f"{folder} reads the layers {list(layers)} of its target, and this one has {num_layers}.")
    return layers


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high, as EAGLE-3 takes them."""
    return min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)


def _rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters in transformers' present spelling."""
    parameters = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    made = {"rope_theta": settings.get("rope_theta", 10000.0), **parameters}
    made["rope_type"] = made.pop("type", None) or made.get("rope_type", "default")
    return made


def _ids(folder: Path, tensors: _Tensors, config: HeadConfig) -> Tensor | None:
    """The target's token of every logit: draft id + d2t. InputError for maps that contradict each other."""
    if "d2t" not in tensors:
        if config.draft_vocab != config.vocab:
            tensors.get("d2t")
        return None
    offsets = tensors.get("d2t").to(torch.int64)
    if tuple(offsets.shape) != (config.draft_vocab,):
        raise InputError(
            f"d2t of {folder} maps {offsets.numel()} tokens, but its config.json says {config.draft_vocab}."
        )
    ids = torch.arange(config.draft_vocab) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab or len(set(ids.tolist())) != len(ids):
        raise InputError(f"d2t of {folder} does not map into {config.vocab} tokens one by one: it is damaged or stale.")
    if "t2d" in tensors:
        marked = tensors.get("t2d").bool()
        if marked.shape != (config.vocab,) or not torch.equal(marked.nonzero()[:, 0], ids.sort().values):
            raise InputError(f"d2t and t2d of {folder} name different tokens: one of them is stale.")
    return ids
