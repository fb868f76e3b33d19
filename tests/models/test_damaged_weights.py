"""Damaged weight files, of folders and of GGUF: one sentence and exit code 2, or no harm; nothing is left behind.

The random part cannot find what a wrong value does that is still a number: a flipped bit in a weight is another model.
Nor does it look at damage of two files that fit each other, or at what a file could do to the libraries' own memory.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from models import native_models
from models.damage import assert_one_sentence, spoiled
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftproof import catalog
from draftproof.cli.__main__ import run
from draftproof.models import native
from draftproof.text import letters
from draftproof.types import InputError

needs_kernels = pytest.mark.skipif(not native.available(), reason="the kernels are not built")
BOTH = ["hf", "native"]
Change = Callable[[dict[str, Tensor]], object]
EMBED, HEAD, UP = "model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A sound folder that holds dense weights, and one on a grid (True)."""
    made = {}
    for grid in (False, True):
        made[grid] = tmp_path_factory.mktemp("grid" if grid else "dense")
        native_models.make("llama", made[grid])
        letters(64, eos_id=7).tokenizer.save_pretrained(made[grid])
        if grid:
            native_models.put_on_grid(made[grid])
    return made


def loads(backend: str, folder: Path, weights: str = "bf16") -> None:
    if backend == "native" and not native.available():
        pytest.skip("the kernels are not built")
    catalog.load_model(f"{backend}:{folder}" + (f",weights={weights}" if backend == "native" else ""))


def filled(name: str, value: float) -> Change:
    return lambda weights: weights[name].view(-1)[-1:].fill_(value)


def without(name: str) -> Change:
    return lambda weights: weights.pop(name)


def put(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda weights: weights.update({name: change(weights[name]).contiguous()})


# Is the folder on a grid, what is changed, by which backends it is refused, a part of the sentence.
CHANGES: dict[str, tuple[bool, Change, list[str], str]] = {
    "NaN in a row nobody reads": (False, filled(EMBED, float("nan")), BOTH, "NaN or infinite"),
    "infinite": (False, filled(UP, float("-inf")), BOTH, "NaN or infinite"),
    "missing": (False, without(UP), BOTH, "up_proj"),
    "fewer rows": (False, put(UP, lambda w: w[:-1]), BOTH, "shape"),
    "turned": (False, put(UP, lambda w: w.T), BOTH, "shape"),
    "one dimension more": (False, put(UP, lambda w: w[None]), BOTH, "shape"),
    "no dimension": (False, put(HEAD, lambda w: w[0, 0].clone()), BOTH, "shape"),
    "whole numbers": (False, put(UP, lambda w: w.long()), ["native"], "holds int64, not float32 or bfloat16"),
    "truth values": (False, put(UP, lambda w: w > 0), ["native"], "holds bool"),
    "no codes": (True, without(UP + ".codes"), BOTH, "up_proj"),
    "no scales": (True, without(UP + ".scales"), BOTH, "up_proj.weight.scales"),
    "no minima": (True, without(UP + ".minima"), BOTH, "shape|holds uint8, not int8|multiple"),
    "twice": (True, lambda w: w.update({UP: torch.zeros(96, 64)}), BOTH, "twice"),
    "codes of eight bits": (True, put(UP + ".codes", lambda w: w.repeat(1, 2)), BOTH, "shape"),
    "codes with a sign": (True, put(UP + ".codes", lambda w: w.to(torch.int8)), BOTH, "holds int8, not uint8"),
    "codes in float": (True, put(EMBED + ".codes", lambda w: w.float()), BOTH, "holds float32, not int8"),
    "one group less": (True, put(UP + ".scales", lambda w: w[:, :-1]), BOTH, "shape"),
    "one row of minima less": (True, put(UP + ".minima", lambda w: w[:-1]), BOTH, "shape"),
    "scales in float32": (True, put(UP + ".scales", lambda w: w.float()), BOTH, "holds float32, not float16"),
    "a scale is NaN": (True, filled(UP + ".scales", float("nan")), BOTH, "NaN or infinite"),
    "a minimum is infinite": (True, filled(UP + ".minima", float("inf")), BOTH, "NaN or infinite"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_wrong_tensors_are_refused(case: str, folders: dict[bool, Path], tmp_path: Path) -> None:
    grid, change, backends, words = CHANGES[case]
    folder = shutil.copytree(folders[grid], tmp_path / "model")
    file = next(folder.glob("*.safetensors"))
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    for backend in backends:
        for kind in ("bf16", "int4") if backend == "native" else ("",):
            with pytest.raises(InputError, match=words) as caught:
                loads(backend, folder, kind)
            assert_one_sentence(caught.value)


@needs_kernels
@pytest.mark.parametrize(("weights", "large"), [("bf16", 3.4e38), ("int4", 1e6)])
def test_weights_beyond_a_format_are_refused(
    weights: str, large: float, folders: dict[bool, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[False], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    filled(UP, large)(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="no room for weights as large"):
        loads("native", folder, weights)
    loads("native", folder, "f32")


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("grid", [False, True])
def test_truncation_anywhere_is_refused(grid: bool, backend: str, folders: dict[bool, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders[grid], tmp_path / "model")
    file = next(folder.glob("*.safetensors"))
    content = file.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(content) // 3, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(InputError, match="truncated or damaged") as caught:
            loads(backend, folder)
        assert_one_sentence(caught.value)


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
def test_a_folder_in_the_place_of_a_file(name: str, backend: str, folders: dict[bool, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders[False], tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    if name.endswith("index.json"):
        loads(backend, folder)
        return
    with pytest.raises(InputError) as caught:
        loads(backend, folder)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("grid", [False, True])
def test_random_damage_to_weights_is_refused_or_does_no_harm(
    grid: bool, backend: str, folders: dict[bool, Path], tmp_path: Path
) -> None:
    """Never another exception than InputError. The seed is fixed; most of the damage is in the header."""
    rng, refused, folder = random.Random(31), 0, shutil.copytree(folders[grid], tmp_path / "model")
    file = next(folder.glob("*.safetensors"))
    content = file.read_bytes()
    for _ in range(40):
        file.write_bytes(spoiled(content, 9000, rng))
        try:
            loads(backend, folder, rng.choice(["bf16", "f32", "int8", "int4"]))
        except InputError as error:
            refused += 1
            assert_one_sentence(error)
    assert 20 <= refused <= 40


@pytest.mark.parametrize("command", ["generate", "check", "import"])
def test_the_exit_code_is_2(
    command: str, gguf: Path, folders: dict[bool, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(folders[True], tmp_path / "model")
    for file in (folder / "grid.safetensors", gguf):
        (folder / file.name).write_bytes(file.read_bytes()[:3000])
    arguments = {
        "generate": ["generate", "ab", "--target", f"hf:{folder}"],
        "check": ["check", f"hf:{folder}"],
        "import": ["import", str(folder / gguf.name)],
    }
    assert run(arguments[command]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and len(said.err.splitlines()) == 1
    assert not (folder / gguf.stem).exists() and np.size(list(folder.glob(".*"))) == 0


def test_an_index_that_is_wrong_is_refused(folders: dict[bool, Path], tmp_path: Path) -> None:
    for grid, stem in ((False, "model"), (True, "grid")):
        folder = shutil.copytree(folders[grid], tmp_path / stem)
        index = folder / f"{stem}.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {HEAD: f"{stem}-00001-of-00002.safetensors"}}))
        for backend in BOTH:
            with pytest.raises(InputError, match=f"lacks the weight file {stem}-00001"):
                loads(backend, folder)
