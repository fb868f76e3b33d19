"""Damaged GGUF files: one sentence, or no harm; nothing is left behind."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from models.damage import assert_one_sentence, spoiled, tiny
from models.gguf_files import write_gguf

from draftproof.models.gguf_import import import_gguf
from draftproof.types import InputError


def assert_refused(path: Path, **options: bool) -> str:
    before = sorted(path.parent.iterdir())
    with pytest.raises(InputError) as caught:
        import_gguf(path, path.parent / "made", **options)
    assert_one_sentence(caught.value)
    assert sorted(path.parent.iterdir()) == before
    return str(caught.value)


def numbers(content: bytes) -> dict[str, tuple[int, str]]:
    """Where the file keeps its counts: offset and format."""
    name = content.index(b"token_embd.weight")
    table = name + len(b"token_embd.weight")
    tokens = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    return {
        "version": (4, "<I"),
        "tensors": (8, "<Q"),
        "entries": (16, "<Q"),
        "tokens": (tokens, "<Q"),
        "name": (name - 8, "<Q"),
        "dimensions": (table, "<I"),
        "width": (table + 4, "<Q"),
        "rows": (table + 12, "<Q"),
        "type": (table + 20, "<I"),
        "offset": (table + 24, "<Q"),
    }


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_absurd_counts_are_refused(gguf: Path, tmp_path: Path) -> None:
    content, path = gguf.read_bytes(), tmp_path / "small.gguf"
    for at, form in numbers(content).values():
        right = struct.unpack_from(form, content, at)[0]
        for number in (0, 1, 5, 2**31, 2**40, 2**62, 2**63, 2**64 - 1):
            if number < 2 ** (8 * struct.calcsize(form)) and number not in (
                right,
                0 if form == "<Q" and at > 5000 else -1,
            ):
                changed = bytearray(content)
                struct.pack_into(form, changed, at, number)
                path.write_bytes(bytes(changed))
                assert_refused(path, keep_quantized=True)


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1, "x", 1.5])
@pytest.mark.parametrize(
    "key",
    ["context_length", "embedding_length", "feed_forward_length", "block_count", "attention.head_count",
     "attention.head_count_kv", "attention.key_length", "rope.dimension_count"],
)  # fmt: skip
def test_absurd_sizes_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    assert_refused(write_gguf(tmp_path / "small.gguf", tiny(), "llama", entries={key: value}))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "x"])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"])
def test_absurd_numbers_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", tiny(), "llama", entries={"rope.scaling.type": "linear", key: value})
    assert key in assert_refused(path)


def test_a_count_beyond_the_file_takes_no_time(tmp_path: Path) -> None:
    """An array of single bytes: the gguf package would read on behind the file's end, element by element."""
    path, key = tmp_path / "small.gguf", b"some.bytes"
    for count in (5000, 2**40, 2**62):
        entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 0, count) + b"\0" * 4000
        path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + entry)
        assert "damaged or truncated" in assert_refused(path)


def test_the_other_byte_order_is_refused(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + gguf.read_bytes()[24:])
    assert "byte order" in assert_refused(path)


def test_a_weight_that_is_no_number_is_refused(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    assert "output_norm.weight holds NaN" in assert_refused(write_gguf(tmp_path / "small.gguf", model, "llama"))


def test_random_damage_to_a_gguf_is_refused_or_does_no_harm(gguf: Path, tmp_path: Path) -> None:
    """Never another exception than InputError, and no folder without success. The seed is fixed."""
    rng, refused, content, path = random.Random(32), 0, gguf.read_bytes(), tmp_path / "small.gguf"
    for number in range(80):
        path.write_bytes(spoiled(content, content.index(b"token_embd.weight") + 900, rng))
        try:
            shutil.rmtree(import_gguf(path, tmp_path / "made", keep_quantized=number % 2 == 0))
        except InputError as error:
            refused += 1
            assert_one_sentence(error)
        assert [item.name for item in tmp_path.iterdir()] == ["small.gguf"]
    assert 40 <= refused < 80


def test_a_full_disk_is_one_sentence(gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resource = pytest.importorskip("resource")
    path = shutil.copy(gguf, tmp_path / "small.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        assert_refused(Path(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
