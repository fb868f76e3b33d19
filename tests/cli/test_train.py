"""`draftproof train` on a folder: the whole way to a drafter, a run that is gone on with, and input that is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from cli.calls import ESCAPE, Call
from models.hf_models import build
from safetensors.torch import load_file

from draftproof.text import letters

SMALL = ("--rounds", "2", "--round-tokens", "40", "--held-out", "2", "--max-tokens", "8", "--threads", "1")
EAGLE = (*SMALL, "--draft-vocab", "30", "--layers", "1,2,3", "--steps", "2", "--gamma", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with letters for tokens, and prompts."""
    made = tmp_path_factory.mktemp("train")
    build("llama", vocab_size=64).save_pretrained(made / "target")
    letters(64, eos_id=7).tokenizer.save_pretrained(made / "target")
    (made / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": "ABCDE"[: 2 + i % 4]}) for i in range(6)))
    return made


def arguments(folder: Path, out: Path, *more: str) -> tuple[str, ...]:
    return ("train", f"hf:{folder / 'target'}", str(out), "--prompts", str(folder / "prompts.jsonl"), *more)


def generated(call: Call, folder: Path, drafter: str) -> object:
    spec = f"hf:{folder / 'target'}"
    called = call("generate", "ABC", "--target", spec, "--drafter", drafter, "--max-tokens", "12", "--json")
    assert called.code == 0, called.err
    return called.json["text"]


def test_a_head_is_trained_resumed_and_loaded(call: Call, folder: Path, tmp_path: Path) -> None:
    called = call(*arguments(folder, tmp_path / "head", *EAGLE, "--json"))
    assert called.code == 0, called.err
    assert called.json["rounds"] == 2 and called.json["evaluations"] and called.json["written"] >= 80
    assert call(*arguments(folder, tmp_path / "head", *EAGLE)).code == 2
    again = call(*arguments(folder, tmp_path / "head", *EAGLE, "--rounds", "3", "--resume", "--json"))
    assert again.json["rounds"] == 3
    assert generated(call, folder, f"eagle:{tmp_path / 'head'},gamma=2") == generated(call, folder, "null")


def test_a_head_begins_with_an_earlier_one(call: Call, folder: Path, tmp_path: Path) -> None:
    assert call(*arguments(folder, tmp_path / "one", *EAGLE)).code == 0
    more = ("--draft-vocab", "40", "--start", str(tmp_path / "one"), "--rate", "0")
    assert call(*arguments(folder, tmp_path / "two", *EAGLE, *more)).code == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one.keys() - {"lm_head.weight", "d2t", "t2d"}:
        assert torch.equal(one[name], two[name])
    rows = [dict(zip(ids_of(made).tolist(), made["lm_head.weight"], strict=True)) for made in (one, two)]
    common = rows[0].keys() & rows[1].keys()
    assert len(common) >= 15 and all(torch.equal(rows[0][token], rows[1][token]) for token in common)
    refused = call(*arguments(folder, tmp_path / "three", *EAGLE, "--layers", "1,2", "--start", str(tmp_path / "one")))
    assert refused.code == 2 and "another shape" in refused.err


def ids_of(made: dict[str, torch.Tensor]) -> torch.Tensor:
    return made["d2t"] + torch.arange(len(made["d2t"]))


def test_an_adapter_is_trained_and_loaded(call: Call, folder: Path, tmp_path: Path) -> None:
    called = call(*arguments(folder, tmp_path, *SMALL, "--kind", "early-exit", "--layer", "2", "--rank", "4"))
    assert called.code == 0, called.err
    assert f"early-exit:layer=2,adapter={tmp_path}" in called.out
    assert generated(call, folder, f"early-exit:layer=2,adapter={tmp_path},gamma=2") == generated(call, folder, "null")


def test_states_are_stored_once(call: Call, folder: Path, tmp_path: Path) -> None:
    stored = (*EAGLE, "--store", str(tmp_path / "states"), "--store-tokens", "100", "--json")
    assert call(*arguments(folder, tmp_path / "one", *stored)).code == 0
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "states").iterdir()}
    assert files and call(*arguments(folder, tmp_path / "two", *stored, "--loss", "length")).code == 0
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "states").iterdir()}
    called = call(*arguments(folder, tmp_path / "three", *EAGLE, "--store", str(tmp_path), "--store-tokens", "9" * 15))
    assert called.code == 2 and "store fewer tokens" in called.err


def test_given_texts_are_read(call: Call, folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "ABCDEABCDEABCDE"}) + "\n" + json.dumps({"token_ids": [3, 4, 5, 6, 3, 4]}))
    called = call(*arguments(folder, tmp_path / "head", *EAGLE, "--texts", str(texts), "--json"))
    assert called.code == 0, called.err


def test_a_sample_is_shown(call: Call, folder: Path, tmp_path: Path) -> None:
    called = call(*arguments(folder, tmp_path / "head", *SMALL, "--show-sample"))
    assert called.code == 0 and "tokens are learned from" in ESCAPE.sub("", called.out)
    assert not (tmp_path / "head").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--budget", "soon"), "30m or 6h"),
        (("--kind", "medusa"), "eagle, early-exit"),
        (("--loss", "mse"), "distance, length"),
        (("--layers", "1,2,99"), "between 0 and 4"),
        (("--layers", "a,b"), "numbers with commas"),
        (("--resume",), "train without --resume"),
        (("--kind", "early-exit", "--layer", "9"), "between 1 and 3"),
        (("--format", "gguf"), "draftproof, int8, vllm, speculators"),
    ],
)
def test_bad_input_is_one_sentence(call: Call, folder: Path, tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    called = call(*arguments(folder, tmp_path / "out", *more))
    assert called.code == 2 and said in " ".join(called.err.split())


def test_another_writer_is_refused(call: Call, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    build("llama", vocab_size=64, num_hidden_layers=2).save_pretrained(other)
    for file in (folder / "target").glob("tokenizer*"):
        shutil.copy(file, other)
    called = call(*arguments(folder, tmp_path / "out", "--writer", f"hf:{other}"))
    assert called.code == 2 and "the writer must be the same model" in called.err
