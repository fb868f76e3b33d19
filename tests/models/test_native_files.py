"""A folder or an option that `native:` cannot use gets one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import native_models
from safetensors.torch import save_file
from torch import Tensor

from draftproof.models import native
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.models.native.grid import fold
from draftproof.types import InputError

if not native.available():
    pytest.skip("the compiled kernels are not built", allow_module_level=True)


def rewrite(folder: Path, change: dict[str, Tensor]) -> None:
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), **change}, file, metadata={"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


DAMAGE: dict[str, Any] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no .safetensors"),
    "truncated": (truncate, "damaged"),
    "empty file": (lambda f: (f / "model.safetensors").write_bytes(b""), "damaged"),
    "wrong shape": (lambda f: rewrite(f, {"model.norm.weight": torch.ones(63)}), "shape"),
    "NaN": (lambda f: rewrite(f, {"model.norm.weight": torch.full((64,), float("nan"))}), "NaN"),
    "infinite": (lambda f: rewrite(f, {"lm_head.weight": torch.full((203, 64), float("inf"))}), "infinite"),
    "missing layer": (lambda f: edit_config(f, num_hidden_layers=4), "no tensor model.layers.3"),
    "foreign family": (lambda f: edit_config(f, model_type="gpt2"), "not gpt2"),
    "odd sizes": (lambda f: edit_config(f, intermediate_size=100), "multiples of 16"),
    "long rope": (lambda f: edit_config(f, rope_parameters={
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8,
        "original_max_position_embeddings": 64}), "longrope"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DAMAGE))
def test_a_damaged_folder_gets_one_sentence(name: str, tmp_path: Path) -> None:
    native_models.make("llama", tmp_path)
    damage, words = DAMAGE[name]
    damage(tmp_path)
    with pytest.raises(InputError, match=words) as caught:
        native.load_native(tmp_path, threads=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"weights": "int3"}, {"activations": "int4"}, {"activations": "int8"}, {"threads": 0}, {"isa": "mmx"}]
)
def test_impossible_options_are_refused(options: dict[str, Any], native_folders: dict[str, Path]) -> None:
    with pytest.raises(InputError):
        native.load_native(native_folders["llama"], **options)


def test_a_weight_is_found_below_a_multimodal_models_prefix(tmp_path: Path) -> None:
    weight, codes = torch.randn(4, 32), torch.randint(0, 16, (4, 32), dtype=torch.uint8)
    half = torch.ones(4, 1).half()
    below = "language_model."
    stored = {"a": weight, "b.codes": fold(codes), "b.scales": half, "b.minima": half.clone()}
    save_file({below + name: tensor for name, tensor in stored.items()}, tmp_path / "grid.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        for prefix in ("", below):
            assert torch.equal(checkpoint.weight(prefix + "a"), weight)
            assert torch.equal(checkpoint.weight(prefix + "b"), codes + 1.0)
        with pytest.raises(InputError, match="no tensor c"):
            checkpoint.weight("c")
