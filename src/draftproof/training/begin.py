"""A head before its first lesson: sizes from the target's configuration, weights that already know its output head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.contracts import Shared
from draftproof.drafters.eagle_files import PARTS, default_layers, read_head
from draftproof.drafters.eagle_head import EagleHead, HeadConfig
from draftproof.files import refusing
from draftproof.models.folder import load_config, weight_files
from draftproof.types import InputError

_SPREAD = 0.02
_FLAT = 0.3  # of the target's final norm; of 1 and 0.3 the better on SmolLM2-135M


def head_config(folder: Path, vocab: int, draft_vocab: int, layers: Sequence[int], num_layers: int) -> HeadConfig:
    """One layer as wide as the target's. layers: () for low, middle and high. InputError for what cannot be read."""
    config = load_config(folder).get_text_config(decoder=True)
    layers = tuple(layers) or default_layers(num_layers)
    if not all(0 <= layer <= num_layers for layer in layers):
        raise InputError(f"--layers must lie between 0 and {num_layers}, the target's layers, not {list(layers)}.")
    heads = int(config.num_attention_heads)
    return HeadConfig(
        layout="eagle3",
        hidden=int(config.hidden_size),
        intermediate=int(config.intermediate_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        vocab=vocab,
        draft_vocab=min(draft_vocab, vocab),
        target_hidden=int(config.hidden_size),
        layers=layers,
        rope=_rope(config),
        max_context=int(getattr(config, "max_position_embeddings", None) or 2048),
    )


def _rope(config: Any) -> dict[str, Any]:
    """The target's rotary base; one table even where its kinds of layers have their own."""
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [one for one in given.values() if isinstance(one, dict)]
    chosen = given.get("full_attention", kinds[0]) if kinds else given
    return {"rope_type": "default", "rope_theta": float(chosen.get("rope_theta", 10000.0))}


def new_head(config: HeadConfig, ids: Tensor, shared: Shared, seed: int) -> EagleHead:
    """fc hands the state of the last layer it reads on, the output head is the target's; the rest is small.

    So its first rows are those of that state, flattened so that it is not sure of what is not yet learned.
    """
    generator = torch.Generator().manual_seed(seed)
    head = EagleHead(config, ids)
    with torch.no_grad():
        for name, layer in head.named_children():
            if isinstance(layer, nn.Linear):
                # What writes into the residual begins ten times smaller.
                spread = _SPREAD / 10 if name in ("fc", "out", "down") else _SPREAD
                layer.weight.normal_(0, spread, generator=generator)
        if isinstance(head.fc, nn.Linear):
            head.fc.weight[:, -config.target_hidden :] += torch.eye(config.hidden, config.target_hidden)
        if isinstance(head.lm_head, nn.Linear):
            head.lm_head.weight.copy_(shared.head_rows(ids))
        if head.norm is not None:
            head.norm.weight.copy_(_FLAT * final_norm_weight(shared))
    return head


def final_norm_weight(shared: Shared) -> Tensor:
    """[H] on the target's device: a norm over ones gives its own weight."""
    row = shared.head_rows(torch.zeros(1, dtype=torch.int64))
    return shared.final_norm(torch.ones_like(row))[0]


@torch.no_grad()
def take_layer(head: EagleHead, folder: Path, layer: int) -> bool:
    """Begin with the weights of a layer of the target, as far as it reads states; those for embeddings stay small.

    False, and nothing changed, where the folder's files have no layer of the usual names and sizes.
    """
    found = _layer_tensors(folder, layer)
    c, targets = head.config, dict(head.named_parameters())
    made: dict[str, Tensor] = {}
    for module in ("qkv", "out", "gate_up", "down", "mlp_norm"):
        pieces = [found.get(f"{part.removeprefix('layer.')}.weight") for part in PARTS[module]]
        whole = [piece for piece in pieces if piece is not None]
        if len(whole) < len(pieces):
            return False
        made[f"{module}.weight"] = torch.cat(whole).float()
    made["state_norm.weight"] = found.get("input_layernorm.weight", torch.empty(0)).float()
    read = {name: weight[:, c.hidden :] if name == "qkv.weight" else weight for name, weight in targets.items()}
    if any(read[name].shape != value.shape for name, value in made.items()):
        return False
    for name, value in made.items():
        read[name].copy_(value)
    return True


def earlier_head(start: Path, config: HeadConfig, num_layers: int) -> EagleHead:
    """A head that was trained before, to begin with. InputError for one of another shape beside its vocabulary."""
    earlier = read_head(start, num_layers).head
    if replace(earlier.config, draft_vocab=config.draft_vocab) != config:
        raise InputError(
            f"the head in {start} has another shape than the one to train: give its --layers, or leave --start out."
        )
    return earlier


@torch.no_grad()
def take_head(head: EagleHead, earlier: EagleHead) -> None:
    """Begin with its weights; output rows of tokens that it did not draft stay as they are."""
    own, old = head.state_dict(), earlier.state_dict()
    for name in own.keys() - {"ids", "lm_head.weight"}:
        own[name].copy_(old[name])
    known = torch.arange(head.config.vocab) if earlier.ids is None else earlier.ids
    place = torch.full((head.config.vocab,), -1)
    place[known] = torch.arange(len(known))
    wanted = place if head.ids is None else place[head.ids]
    own["lm_head.weight"][wanted >= 0] = old["lm_head.weight"][wanted[wanted >= 0]]


def _layer_tensors(folder: Path, layer: int) -> dict[str, Tensor]:
    """The tensors of one decoder layer by their names within it."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    prefix = f"model.layers.{layer}."
    for file in weight_files(folder):
        with refusing(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = opened.get_tensor(name)
    return found
