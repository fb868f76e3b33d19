"""A small map from the state behind an early layer to one that the target's final norm and head read (as Kangaroo,
2404.18911, section 3.1, but of low rank): x + up(silu(down(norm(x)))). R the rank, H the target's width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.drafters.eagle_head import Norm
from draftproof.files import folder_at, read_object, refusing
from draftproof.types import InputError

_KIND = "early-exit"


@dataclass(frozen=True)
class AdapterConfig:
    """layer: behind so many layers. width H, rank R. tokenizer: fingerprint of the target's, "" for none."""

    layer: int
    width: int
    rank: int
    vocab: int
    eps: float
    tokenizer: str = ""


class ExitAdapter(nn.Module):
    """At first it hands the state on as it is."""

    def __init__(self, config: AdapterConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = Norm(config.width, config.eps)
        self.down = nn.Linear(config.width, config.rank, bias=False)
        self.up = nn.Linear(config.rank, config.width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, states: Tensor) -> Tensor:
        """[n, H] to [n, H]."""
        moved: Tensor = states + self.up(torch.nn.functional.silu(self.down(self.norm(states))))
        return moved


def write_adapter(adapter: ExitAdapter, folder: Path, training: Mapping[str, Any]) -> None:
    """config.json and model.safetensors, float32."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in adapter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = {"draftproof": {"kind": _KIND, **asdict(adapter.config), **training}}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read_adapter(path: str | Path) -> ExitAdapter:
    """What `write_adapter` wrote. InputError for anything else."""
    from safetensors.torch import load_file

    folder = folder_at(path)
    settings = read_object(folder / "config.json").get("draftproof")
    if not isinstance(settings, dict) or settings.get("kind") != _KIND:
        raise InputError(f"{folder} holds no early-exit adapter: make one with draftproof train --kind early-exit.")
    with refusing(f"{folder} cannot be read"):
        config = AdapterConfig(**{name: settings[name] for name in AdapterConfig.__dataclass_fields__})
        adapter = ExitAdapter(config)
        adapter.load_state_dict(load_file(folder / "model.safetensors"))
    return adapter.requires_grad_(False).eval()
