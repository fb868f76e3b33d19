"""R18.1: what models need is known before they are read, and what does not fit is refused with the numbers."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.calls import Call
from models import native_models
from models.hf_models import build

from draftproof import catalog
from draftproof.catalog import Place
from draftproof.cli import setup
from draftproof.cli.options import ModelOptions
from draftproof.memory import Need, Room, give_back, listed, machine_room, refuse_beyond, room_on
from draftproof.models import native
from draftproof.models.hf import HfModel
from draftproof.models.hf_need import need as hf_need
from draftproof.prompts import Prompt
from draftproof.text import letters
from draftproof.types import InputError

needs_kernels = pytest.mark.skipif(not native.available(), reason="the kernels are not built")
MB = 10**6
TARGET = Need(300 * MB, loading=50 * MB, kv_per_token=50_000, max_context=8192)
DRAFT = Need(100 * MB, loading=20 * MB, kv_per_token=10_000, kv_window=5 * MB)


def rooms(free: int) -> Any:
    return lambda device: Room(free)


def test_weights_of_all_and_the_larger_of_kv_and_reading_must_fit() -> None:
    both = {"target": TARGET, "draft": DRAFT}
    refuse_beyond(both, 2048, 1, rooms(400 * MB + 2048 * 60_000 + 5 * MB))
    with pytest.raises(
        InputError, match=r"target 300 MB of weights and 102 MB of KV, draft 100 MB of weights and 25"
    ) as e:
        refuse_beyond(both, 2048, 1, rooms(400 * MB + 2048 * 60_000 + 5 * MB - 1))
    assert "that takes 528 MB, and 528 MB of this machine are free" in str(e.value) and "\n" not in str(e.value)
    refuse_beyond(both, 10, 1, rooms(450 * MB))
    with pytest.raises(InputError, match="takes 450 MB"):
        refuse_beyond(both, 10, 1, rooms(450 * MB - 1))
    refuse_beyond({}, rooms=rooms(0))


def test_requests_multiply_and_the_context_bounds() -> None:
    assert TARGET.kv(10_000) == TARGET.kv(8192) == 8192 * 50_000
    assert DRAFT.kv(100, requests=3) == 3 * (100 * 10_000 + 5 * MB)
    assert listed({"target": TARGET}, 100, 3) == "target 300 MB of weights and 15 MB of KV for 3 texts of 100 tokens"


def test_each_device_is_judged_by_what_it_holds() -> None:
    gpu = Need(300 * MB, kv_per_token=50_000, device="cuda:0")
    free = {"cpu": 350 * MB, "cuda:0": 310 * MB}
    refuse_beyond({"target": gpu, "draft": Need(40 * MB)}, 100, rooms=lambda device: Room(free[device]))
    with pytest.raises(InputError, match="of cuda:0 are free"):
        refuse_beyond({"target": gpu}, 1000, rooms=lambda device: Room(free[device], f"of {device}"))
    with pytest.raises(InputError, match="of this machine"):
        refuse_beyond({"target": gpu, "draft": Need(60 * MB)}, 100, rooms=lambda device: Room(free[device]))
    refuse_beyond({"target": gpu}, 100, rooms=rooms(5 * MB), loaded=True)
    with pytest.raises(InputError, match="target 50 MB of KV for 1,000 tokens"):
        refuse_beyond({"target": gpu}, 1000, rooms=rooms(5 * MB), loaded=True)


def place(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\n"}
GROUP2 = "sys/fs/cgroup/outer/inner/"
GROUP1 = "sys/fs/cgroup/memory/"


def test_the_least_room_counts(tmp_path: Path) -> None:
    def free(name: str, files: dict[str, str]) -> Room:
        return machine_room(place(tmp_path / name, files))

    assert free("machine", MEMINFO) == Room(1_024_000)
    two = {**MEMINFO, "proc/self/cgroup": "0::/outer/inner\n", GROUP2 + "memory.max": "max\n"}
    assert free("no limit", two) == Room(1_024_000)
    limit = {GROUP2 + "memory.max": "600000\n", GROUP2 + "memory.current": "500000\n"}
    assert free("version 2", {**two, **limit}) == Room(100_000, "of this container's limit")
    cached = {GROUP2 + "memory.stat": "anon 5\ninactive_file 300000\n"}
    assert free("cache", {**two, **limit, **cached}).free == 400_000
    outer = {"sys/fs/cgroup/outer/memory.max": "700\n", "sys/fs/cgroup/outer/memory.current": "800\n"}
    assert free("outer group", {**two, **limit, **outer}).free == 0
    one = {**MEMINFO, "proc/self/cgroup": "4:cpu,memory:/not/here\n1:cpu:/\n0::/\n"}
    limit = {GROUP1 + "memory.limit_in_bytes": "600000\n", GROUP1 + "memory.usage_in_bytes": "200000\n"}
    assert free("version 1", {**one, **limit}).free == 400_000
    assert free("unlimited", {**one, **limit, GROUP1 + "memory.limit_in_bytes": f"{2**63 - 4096}\n"}).free == 1_024_000
    assert free("nothing to read", {"proc/meminfo": ""}).free > 0


def test_this_machine_has_room() -> None:
    assert room_on("cpu").free > 10 * MB


@needs_kernels
@pytest.mark.parametrize("weights", ["bf16", "f32", "int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "smollm2", "mistral", "qwen2-window", "gemma3"])
@pytest.mark.parametrize("grid", [False, True])
def test_native_needs_what_it_then_reports(grid: bool, family: str, weights: Any, tmp_path: Path) -> None:
    native_models.make(family, tmp_path, dtype=torch.bfloat16)
    if grid:
        native_models.put_on_grid(tmp_path)
    found = catalog.needs(f"native:{tmp_path},weights={weights}")["target"]
    model = native.load_native(tmp_path, weights=weights, threads=1)
    assert found.report() == model.memory() and found.max_context == model.max_context


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_transformers_needs_what_it_then_reports(family: str, dtype: str, tmp_path: Path) -> None:
    build(family).to(torch.bfloat16).save_pretrained(tmp_path)
    found = hf_need(tmp_path, "cpu", dtype)
    model = HfModel.wrap(build(family).to(torch.bfloat16 if dtype == "auto" else torch.float32))
    told = model.memory()
    # Buffers, such as the frequencies of the rotary embedding, are in no file.
    assert 0.95 * told["weights"] <= found.weights <= told["weights"]
    assert (found.kv_per_token, found.kv_window) == (told["kv_per_token"], told["kv_window"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    native_models.make("llama", made)
    letters(64, eos_id=7).tokenizer.save_pretrained(made)
    return made


@pytest.mark.parametrize("backend", ["hf", pytest.param("native", marks=needs_kernels)])
def test_an_engine_that_does_not_fit_is_refused_before_it_is_read(backend: str, folder: Path, tmp_path: Path) -> None:
    spec = f"{backend}:{folder}"
    together = catalog.needs(spec, f"model:{spec}")
    assert set(together) == {"target", "draft"}
    alone = together["target"].weights + max(together["target"].kv(2048), together["target"].loading)
    catalog.load_engine(spec, "null", rooms=rooms(alone))
    with pytest.raises(InputError, match=r"target .* of weights and .* of KV, draft .* of weights"):
        catalog.load_engine(spec, f"model:{spec}", rooms=rooms(alone))
    with pytest.raises(InputError, match="are free"):
        setup.load(ModelOptions(target=spec, drafter="null"), rooms=rooms(alone - 1))
    assert catalog.needs("toy:3") == {}


@needs_kernels
def test_the_command_line_lists_and_refuses(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(capsys, monkeypatch)
    options = ("--target", f"native:{folder}", "--drafter", f"model:native:{folder}", "--max-tokens", "3")
    done = call("generate", "ab", *options, "--json")
    assert done.code == 0 and "memory: target 238 kB of weights and 393 kB of KV, draft" in done.err
    assert set(done.json["memory"]) == {"target", "draft"} and done.json["memory"]["target"]["weights"] > 100_000
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 2**30}))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    for arguments in (("generate", "ab", "--target", f"native:{tmp_path}"), ("check", f"native:{tmp_path}")):
        refused = call(*arguments)
        assert refused.code == 2 and refused.out == "" and "that takes" in refused.err and "TB" in refused.err


def test_texts_are_as_long_as_the_prompts_say() -> None:
    short, long = Prompt(("ab",), where="here"), Prompt(("x" * 9000, "y" * 1000), where="here")
    assert setup.Texts.of([short], 256) == setup.Texts(2048, 1)
    assert setup.Texts.of([short], 4000) == setup.Texts(4129, 1)
    assert setup.Texts.of([short, long, short], 100, 2) == setup.Texts(128 + (100 + 1 + 5200) // 2, 2)


def test_a_prompt_that_grew_too_long_is_refused_by_its_cache(folder: Path) -> None:
    loaded = setup.load(ModelOptions(target=f"hf:{folder}", drafter="null"))
    loaded.check_room(100, 100, rooms(10 * MB))
    with pytest.raises(InputError, match="KV for 200 tokens"):
        loaded.check_room(100, 100, rooms(1000))


@pytest.mark.gpu
def test_a_gpu_says_what_it_has() -> None:
    assert Place(device="cuda").device == "cuda" and room_on("cuda").free > 100 * MB


def resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries return what is free by themselves")
def test_what_lies_free_between_pieces_that_stay_is_given_back() -> None:
    """200 MB in pieces of 8 KB, of which every hundredth stays."""
    pieces = [torch.ones(2048) for _ in range(25_000)]
    stay = pieces[::100]
    del pieces
    before = resident()
    assert give_back()
    assert before - resident() > 100 * MB and all(bool(piece.all()) for piece in stay)
