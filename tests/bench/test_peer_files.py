"""GGUF files of the target's own weights: the same values and the same metadata in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from models.gguf_files import gguf_name, small_model, write_gguf
from safetensors.torch import load_file

from draftproof.bench.peers.gguf_files import GgufFiles, check_same_weights, convert
from draftproof.models.gguf_import import import_gguf
from draftproof.types import InputError

HEADER = ("GGUF.", "general.file_type", "general.quantization_version", "general.alignment")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", small_model("qwen2"), "qwen2", "Q8_0")


def values(file: Path) -> dict[str, np.ndarray]:
    return {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(file).tensors}


def bf16(array: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.array(array)).bfloat16().float().numpy()


def metadata(file: Path) -> dict[str, object]:
    fields = GGUFReader(file).fields.values()
    return {field.name: (field.types, field.contents()) for field in fields if not field.name.startswith(HEADER)}


@pytest.mark.parametrize("kind", ["bf16", "f32", "f16", "q8_0"])
def test_a_file_keeps_weights_and_metadata(source: Path, kind: str, tmp_path: Path) -> None:
    made = convert(source, kind, tmp_path / "made.gguf")
    assert metadata(made) == metadata(source)
    stored = GGMLQuantizationType[kind.upper()]
    before, after = values(source), values(made)
    assert list(after) == list(before)
    for name, array in before.items():
        wanted = bf16(array)
        if wanted.ndim > 1:
            wanted = dequantize(quantize(wanted, stored), stored)
        np.testing.assert_array_equal(after[name], wanted, err_msg=name)


def test_the_bf16_file_has_the_weights_of_the_folder_that_import_makes(source: Path, tmp_path: Path) -> None:
    folder = import_gguf(source, tmp_path / "folder")
    made = values(convert(source, "bf16", tmp_path / "made.gguf"))
    for name, weight in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(made[gguf_name(name, "qwen2")], weight.float().numpy(), err_msg=name)


def test_gemmas_norms_keep_the_weights_of_the_folder(tmp_path: Path) -> None:
    entries = {"attention.sliding_window": 8, "attention.sliding_window_pattern": 3}
    model = small_model("gemma3_text", layer_types=["sliding_attention"] * 2 + ["full_attention"], sliding_window=8)
    source = write_gguf(tmp_path / "small.gguf", model, "gemma3", "Q8_0", entries=entries)
    made = values(convert(source, "bf16", tmp_path / "made.gguf"))["output_norm.weight"]
    np.testing.assert_array_equal(made, 1 + bf16(values(source)["output_norm.weight"] - 1))


def test_a_file_of_exact_weights_is_not_rounded(tmp_path: Path) -> None:
    exact = write_gguf(tmp_path / "exact.gguf", small_model("qwen2"), "qwen2", "F32")
    made = values(convert(exact, "f32", tmp_path / "made.gguf"))
    for name, array in values(exact).items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)


def test_files_are_written_once_and_told_apart_from_their_source(source: Path, tmp_path: Path) -> None:
    said: list[str] = []
    files = GgufFiles(source, tmp_path, ("q8_0", "file"), lambda what, share: said.append(what))
    made, own = files.get("q8_0"), files.get("file")
    assert (made.label, made.bits, own.label, own.bits, own.path) == ("Q8_0", 8, "Q8_0", 8, source)
    assert set(said) == {"writing q8_0 weights"}
    before = made.path.stat().st_mtime_ns
    again = GgufFiles(source, tmp_path, ("q8_0",)).get("q8_0")
    assert (again, again.path.stat().st_mtime_ns) == (made, before)
    other = write_gguf(tmp_path / source.name, small_model("qwen2", seed=1), "qwen2")
    assert GgufFiles(other, tmp_path, ("q8_0",)).get("q8_0").path != made.path


def test_a_conversion_that_fails_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, "bf16", tmp_path / "made.gguf", stop)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_gguf_file_or_format_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    for file, kind, words in (
        (tmp_path / "text.gguf", "bf16", "no whole GGUF file"),
        (tmp_path / "nothing.gguf", "bf16", "cannot be read"),
        (source, "q2_k", "bf16, q8_0, f16, f32"),
    ):
        with pytest.raises(InputError, match=words):
            convert(file, kind, tmp_path / "out" / "made.gguf")
    with pytest.raises(InputError, match="or file, not q5"):
        GgufFiles(source, tmp_path, ("q5",))


@pytest.mark.parametrize("grid", [False, True])
def test_another_models_file_is_refused(source: Path, grid: bool, tmp_path: Path) -> None:
    folder = import_gguf(source, tmp_path / "folder", keep_quantized=grid)
    check_same_weights(source, folder)
    other = write_gguf(tmp_path / "other.gguf", small_model("qwen2", seed=1), "qwen2")
    with pytest.raises(InputError, match="does not hold the weights"):
        check_same_weights(other, folder)
