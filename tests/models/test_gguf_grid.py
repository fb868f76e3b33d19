"""`import --keep-quantized`: the folder is the file's model exactly, and `native:` with int4 is that model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from models.gguf_files import VOCABULARY, small_model, weights_of, write_gguf
from models.native_models import chain_segment
from models.test_gguf_import import GEMMA_ENTRIES, SLIDING, THETA
from torch import Tensor
from transformers import AutoModelForCausalLM

import draftproof.models.gguf_import as gguf_import_module
from draftproof.models import native
from draftproof.models.gguf_import import import_gguf
from draftproof.models.hf import load_hf
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.types import InputError

needs_kernels = pytest.mark.skipif(not native.available(), reason="the kernels are not built")
IDS = torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(4))
BASE = {"rope.freq_base": 5000.0}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False, **THETA}
Storage = str | Mapping[str, str]
# Kind, architecture, changes of the model, entries of the file, types of its matrices.
FILES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], Storage]] = {
    "llama Q4_0": ("llama", "llama", UNTIED, BASE, "Q4_0"),
    "llama Q4_1": ("llama", "llama", {**UNTIED, "tie_word_embeddings": True}, BASE, "Q4_1"),
    "llama Q8_0": ("llama", "llama", UNTIED, BASE, "Q8_0"),
    "bias": ("llama", "llama", {**UNTIED, "attention_bias": True}, BASE, "Q4_1"),
    "tied Q8_0 head": ("llama", "llama", {**THETA, "tie_word_embeddings": True}, BASE,
                       {"": "Q4_1", "token_embd.weight": "Q8_0"}),
    "F16 embedding, F32 head": ("qwen2", "qwen2", {"tie_word_embeddings": False}, {},
                                {"": "Q4_0", "token_embd.weight": "F16", "output.weight": "F32"}),
    "BF16 head": ("qwen3", "qwen3", {"head_dim": 32, **UNTIED}, BASE, {"": "Q4_0", "output.weight": "BF16"}),
    "mixed layer": ("llama", "llama", UNTIED, BASE,
                    {"": "Q4_0", "blk.0.attn_v.weight": "Q8_0", "blk.1.attn_k.weight": "BF16",
                     "blk.1.ffn_up.weight": "Q5_1", "blk.2.ffn_gate.weight": "F16", "blk.2.ffn_up.weight": "F16"}),
    "Q6_K head": ("llama", "llama", {**UNTIED, "hidden_size": 256, "intermediate_size": 256}, BASE,
                  {"": "Q4_0", "output.weight": "Q6_K"}),
    "gemma3": ("gemma3_text", "gemma3", {"head_dim": 32, **SLIDING}, GEMMA_ENTRIES,
               {"": "Q4_0", "token_embd.weight": "Q8_0"}),
}  # fmt: skip


class File:
    """A GGUF file, the folder made of it, and the same model in transformers with weights dequantised by gguf."""

    def __init__(self, name: str, place: Path) -> None:
        kind, architecture, changes, entries, storage = FILES[name]
        self.model = small_model(kind, **changes)
        path = write_gguf(place / "small.gguf", self.model, architecture, storage, entries)
        self.weights = weights_of(path, self.model, architecture)
        self.model.load_state_dict(self.weights, strict=False)
        self.folder = import_gguf(path, keep_quantized=True)

    def logits(self) -> Tensor:
        self.model.set_attn_implementation("eager")
        with torch.no_grad():
            return self.model(IDS[None]).logits[0].float()


def rows(model: Any) -> Tensor:
    output: Tensor = model.forward([chain_segment(model.new_cache(), IDS, len(IDS))])[0].logits
    return output


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> File:
    return File(request.param, tmp_path)


def test_every_weight_has_the_bits_of_the_file(file: File) -> None:
    with Checkpoint(file.folder) as checkpoint:
        assert checkpoint.on_grid
        held = dict(checkpoint.dense())
    assert set(held) == set(file.weights)
    for name, weight in file.weights.items():
        # Zero may have either sign: a grid says 8 * scale - 8 * scale.
        assert torch.equal(held[name].float(), weight), name


@needs_kernels
def test_native_int4_is_the_model_of_the_file(file: File) -> None:
    expected = file.logits()
    scale = float(expected.abs().max())
    for weights in ("int4", "f32"):
        found = rows(native.load_native(file.folder, weights=weights, threads=1))
        assert (found - expected).abs().max() <= 2e-5 * scale, weights
    assert (rows(load_hf(str(file.folder))) - expected).abs().max() <= 2e-5 * scale


@needs_kernels
@pytest.mark.parametrize(
    "options", [{}, {"weights": "int8"}, *({"weights": w, "activations": "int8"} for w in ("int8", "int4"))]
)
def test_the_other_formats_stay_near(options: dict[str, Any], tmp_path: Path) -> None:
    file = File("mixed layer", tmp_path)
    expected, found = file.logits(), rows(native.load_native(file.folder, threads=1, **options))
    error = float((found - expected).norm() / expected.norm())
    assert 1e-5 < error < 0.1


@needs_kernels
def test_eight_bits_are_kept_by_int8_too(tmp_path: Path) -> None:
    file = File("llama Q8_0", tmp_path)
    expected = rows(native.load_native(file.folder, weights="int4", threads=1))
    assert torch.equal(rows(native.load_native(file.folder, weights="int8", threads=1)), expected)


def test_transformers_gets_the_dtype_asked_for_and_does_not_misread_the_folder(tmp_path: Path) -> None:
    folder = File("llama Q4_1", tmp_path).folder
    assert load_hf(str(folder)).dtype == "float32" and load_hf(str(folder), dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_grid_is_as_small_as_the_file(tmp_path: Path) -> None:
    model = small_model("llama", **UNTIED)
    sizes = {}
    for kind in ("Q4_0", "Q4_1", "Q8_0"):
        path = write_gguf(tmp_path / f"{kind}.gguf", model, "llama", kind, BASE)
        folder = import_gguf(path, keep_quantized=True)
        sizes[kind] = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
        matrices = sum(w.numel() for w in model.state_dict().values() if w.dim() == 2)
        vectors = sum(w.numel() for w in model.state_dict().values() if w.dim() == 1)
        assert sizes[kind] <= matrices * (34 if kind == "Q8_0" else 20) // 32 + 4 * vectors + 12_000
    assert sizes["Q4_0"] == sizes["Q4_1"] < sizes["Q8_0"]


def test_shards_of_a_grid_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = File("mixed layer", tmp_path)
    monkeypatch.setattr(gguf_import_module, "_SHARD_BYTES", 30_000)
    folder = import_gguf(tmp_path / "small.gguf", tmp_path / "cut", keep_quantized=True)
    shards = sorted(folder.glob("grid-*.safetensors"))
    index = json.loads((folder / "grid.safetensors.index.json").read_text())
    assert len(shards) > 2 and set(index["weight_map"].values()) == {shard.name for shard in shards}
    assert torch.equal(rows(load_hf(str(folder))), rows(load_hf(str(whole.folder))))
    shards[1].unlink()
    with pytest.raises(InputError, match=shards[1].name):
        load_hf(str(folder))


def test_a_file_without_grids_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", small_model("qwen2"), "qwen2", "F16")
    with pytest.raises(InputError, match="none of its matrices"):
        import_gguf(path, keep_quantized=True)
    assert [item.name for item in tmp_path.iterdir()] == ["small.gguf"]


@pytest.mark.parametrize(("scale", "words"), [(9000.0, "beyond float16"), (np.nan, "NaN or infinite")])
def test_scales_that_no_folder_can_hold_are_refused(scale: float, words: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", small_model("qwen2"), "qwen2", "Q4_0")
    content = bytearray(path.read_bytes())
    tensor = next(t for t in GGUFReader(path).tensors if t.tensor_type == GGMLQuantizationType.Q4_0)
    content[tensor.data_offset : tensor.data_offset + 2] = np.array([scale], np.float16).tobytes()
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        import_gguf(path, keep_quantized=True)
    assert [item.name for item in tmp_path.iterdir()] == ["small.gguf"]


def test_small_scales_stay_exact() -> None:
    """-8 * scale in float16 for every finite scale that has room: a power of two, subnormal ones included."""
    scales = np.arange(2**16, dtype=np.uint16).view(np.float16)
    scales = scales[np.abs(scales) <= 65504 / 8]
    assert len(scales) > 50_000
    assert np.array_equal((scales * np.float16(-8)).astype(np.float64), scales.astype(np.float64) * -8)
