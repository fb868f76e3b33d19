"""The native backend computes what transformers computes, keeps its caches, and refuses what contradicts them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from models import native_models
from models.native_models import chain_segment
from transformers import AutoModelForCausalLM

from draftproof.models import native
from draftproof.types import Segment

if not native.available():
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

from draftproof import _kernels
from draftproof.models.native.pack import quantise_int4

QUANTISED = [("int8", "f32"), ("int4", "f32"), ("int8", "int8"), ("int4", "int8")]


@pytest.mark.parametrize("family", list(native_models.FAMILIES))
def test_logits_and_states_are_those_of_transformers(
    family: str, native_folders: dict[str, Path], tmp_path: Path
) -> None:
    reference = native_models.make(family, tmp_path)
    ids = torch.randint(0, 203, (1, 70), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        expected = reference(ids, output_hidden_states=True)
    for isa in _kernels.isas():
        model = native.load_native(native_folders[family], weights="f32", threads=2, isa=isa)
        output = model.forward([chain_segment(model.new_cache(), ids[0], 70)], layers=(0, 2))[0]
        scale = expected.logits.abs().max()
        assert (output.logits - expected.logits[0]).abs().max() <= 2e-5 * scale
        assert output.hidden is not None
        for column, layer in enumerate((0, 2)):
            assert (output.hidden[:, column] - expected.hidden_states[layer][0]).abs().max() <= 2e-4


def test_bf16_weights_are_exact_for_a_bf16_checkpoint(tmp_path: Path) -> None:
    native_models.make("smollm2", tmp_path, dtype=torch.bfloat16)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    ids = torch.randint(0, 203, (1, 40), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = reference(ids).logits[0]
    model = native.load_native(tmp_path, weights="bf16")
    logits = model.forward([chain_segment(model.new_cache(), ids[0], 40)])[0].logits
    assert (logits - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("weights,activations", QUANTISED)
def test_quantised_targets_stay_near(weights: Any, activations: Any, native_folders: dict[str, Path]) -> None:
    exact = native.load_native(native_folders["llama"], weights="f32")
    model = native.load_native(native_folders["llama"], weights=weights, activations=activations)
    ids = torch.randint(0, 203, (60,), generator=torch.Generator().manual_seed(8))
    a, b = (m.forward([chain_segment(m.new_cache(), ids, 60)])[0].logits for m in (exact, model))
    error = ((a - b).norm() / a.norm()).item()
    assert 1e-5 < error < (0.08 if weights == "int8" else 0.6)


def test_a_checkpoint_on_a_grid_is_held_on_it(native_folders: dict[str, Path], tmp_path: Path) -> None:
    """With int4 the same bits as the dequantised checkpoint has on its own; with f32 its plain values."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(native_folders["smollm2"], tmp_path, dirs_exist_ok=True)
    plain, folded = load_file(tmp_path / "model.safetensors"), {}
    for name in [n for n in plain if n.endswith("_proj.weight") or "embed_tokens" in n]:
        grid = quantise_int4(plain[name])
        plain[name] = grid.dense()
        folded[name + ".codes"] = grid.codes[:, 0::2] | grid.codes[:, 1::2] << 4
        folded[name + ".scales"], folded[name + ".minima"] = grid.scales, grid.minima
    rest = {name: tensor for name, tensor in plain.items() if name + ".codes" not in folded}
    logits = {}
    for kind, tensors in (("plain", plain), ("grid", {**rest, **folded})):
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        for weights in ("f32", "int4"):
            model = native.load_native(tmp_path, weights=weights)
            logits[kind, weights] = model.forward([chain_segment(model.new_cache(), list(range(30)), 30)])[0].logits
    assert torch.equal(logits["grid", "f32"], logits["plain", "f32"])
    error = (logits["grid", "int4"] - logits["plain", "f32"]).abs().max()
    assert error <= 2e-5 * logits["plain", "f32"].abs().max()


def test_a_sliding_window_bounds_memory_and_says_how_far_back_it_goes(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["mistral"], threads=1)
    cache: Any = model.new_cache()
    ids = torch.randint(0, 203, (400,), generator=torch.Generator().manual_seed(10))
    sizes = []
    for start in range(0, 400, 10):
        model.forward([chain_segment(cache, ids[start : start + 10])])
        sizes.append(cache.bytes)
        assert model.reusable(cache, start) == start
    assert max(sizes[20:]) <= 4 * sizes[0]
    assert model.reusable(cache, 100) == 0
    with pytest.raises(ValueError, match="window"):
        model.rollback(cache, 100)
    model.rollback(cache, 0)
    assert cache.length == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_early_exit_and_resume_give_the_bits_of_a_full_call(family: str, native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders[family], threads=2)
    ids = torch.randint(0, 203, (40,), generator=torch.Generator().manual_seed(11))
    straight = model.forward([chain_segment(model.new_cache(), ids, 40)], layers=(1,))[0]
    cache: Any = model.new_cache()
    model.forward([chain_segment(cache, ids[:30])])
    shallow = []
    for end in range(31, 36):
        step = Segment(cache, ids[end - 1 : end], tuple(range(-1, end - 31)), 1)
        shallow.append(model.forward([step], exit_layer=1)[0].logits)
        assert (cache.length, cache.shallow) == (30, end - 30)
    again = model.new_cache()
    at_once = model.forward([chain_segment(again, ids[:35], 5)], exit_layer=1)[0].logits
    assert torch.equal(torch.cat(shallow), at_once)
    unread = torch.cat([torch.zeros(5, dtype=torch.int64), ids[35:]])  # what is taken up is not computed again
    full = model.forward([chain_segment(cache, unread, 10, resume=5)], layers=(2,))[0]
    assert torch.equal(full.logits, straight.logits[30:])
    assert (cache.length, cache.shallow) == (40, 0)
    model.rollback(cache, 30)
    full = model.forward([chain_segment(cache, ids[30:], 10)], layers=(1,))[0]
    assert full.hidden is not None and straight.hidden is not None
    assert torch.equal(full.hidden, straight.hidden[30:])


def test_rollback_drops_shallow_entries(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["llama"], threads=1)
    cache: Any = model.new_cache()
    model.forward([chain_segment(cache, [1, 2, 3])])
    model.forward([chain_segment(cache, [4, 5])], exit_layer=2)
    model.rollback(cache, 3)
    assert (cache.length, cache.shallow) == (3, 0)
    with pytest.raises(ValueError, match="shallow"):
        model.forward([chain_segment(cache, [4], resume=1)])


def test_contradicting_segments_are_refused_before_a_cache_changes(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["llama"], threads=1)
    cache: Any = model.new_cache()
    model.forward([chain_segment(cache, [1, 2, 3])])
    other = native.load_native(native_folders["qwen3"], threads=1).new_cache()
    bad = [
        [chain_segment(other, [1])],
        [Segment(cache, torch.tensor([203]), (-1,), 1)],
        [Segment(cache, torch.tensor([1]), (0,), 1)],
        [Segment(cache, torch.tensor([1]), (-1, 0, 1, 2, 3), 1)],
        [chain_segment(cache, [1]), chain_segment(cache, [2])],
        [chain_segment(cache, torch.zeros(510, dtype=torch.int64))],
    ]
    for segments in bad:
        with pytest.raises(ValueError):
            model.forward(segments)
        assert cache.length == 3
    with pytest.raises(ValueError, match="kept path"):
        model.rollback(cache, 1, [2])


def test_memory_is_reported(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["llama"], weights="bf16", threads=1)
    matrices = 2 * (203 + 5) * 64 + 3 * (128 * 64 + 64 * 64 + 3 * 96 * 64)
    assert model.memory() == {"weights": 2 * matrices, "kv_per_token": 2 * 4 * 3 * 2 * 16, "kv_window": 0}
    sliding = native.load_native(native_folders["mistral"], threads=1).memory()
    assert sliding["kv_per_token"] == 0 and sliding["kv_window"] == 3 * (9 + 128) * 2 * 4 * 2 * 32
    assert model.can == {"rollback", "tree", "hidden", "early_exit", "invariant", "lowbit"}
