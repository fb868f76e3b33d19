"""The other projects themselves, on a small random model: they write what we write, from an empty cache each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from models.gguf_files import small_model, write_gguf

from draftproof.bench.peers import peers
from draftproof.bench.peers.base import PeerMethod, Work
from draftproof.bench.peers.gguf_files import GgufFiles
from draftproof.bench.peers.ours import OurMethod, Targets
from draftproof.models.gguf_import import import_gguf

pytestmark = pytest.mark.peer
PROMPTS = ([5, 9, 11, 5, 9], [40, 41, 42, 43, 40, 41], [5, 9, 11, 5, 9, 7])
LENGTH = 24
# Float32 with another order of sums: where two tokens are nearer than this either may follow.
NEAR = 0.02


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_model("llama", hidden_size=128, intermediate_size=256, num_attention_heads=4)
    return write_gguf(tmp_path_factory.mktemp("real") / "small.gguf", model, "llama")


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    return import_gguf(source, source.parent / "folder")


def work(source: Path, folder: Path, kinds: Sequence[str], ends: tuple[int, ...] = ()) -> Work:
    return Work(folder, GgufFiles(source, source.parent, kinds), ends, 64, (1,), (3,), 1)


def agree(method: PeerMethod, ours: OurMethod, near: float) -> None:
    """The same tokens for every prompt, twice, up to the first choice that was nearly a tie."""
    first = [method.answer(prompt, LENGTH).tokens for prompt in PROMPTS]
    assert [method.answer(prompt, LENGTH).tokens for prompt in PROMPTS] == first, method.name
    for prompt, theirs in zip(PROMPTS, first, strict=True):
        wanted = ours.answer(prompt, LENGTH).tokens
        assert len(theirs) == len(wanted) == LENGTH
        apart = next((i for i, (a, b) in enumerate(zip(wanted, theirs, strict=True)) if a != b), None)
        if apart is not None:
            margin = ours.margin([*prompt, *wanted[:apart]], wanted[apart], theirs[apart])
            assert 0 <= margin < near, f"{method.name} differs at {apart} by {margin} logits"


def test_llama_cpp_writes_what_we_write(source: Path, folder: Path) -> None:
    pytest.importorskip("llama_cpp")
    ours = OurMethod(f"hf:{folder}", "null", Targets(), (1,))
    for method in peers()["llama.cpp"].methods(work(source, folder, ("f32",))):
        for setting in method.settings():
            method.use(setting)
            # Its cache is float16.
            agree(method, ours, NEAR * (1 if not setting["flash_attn"] else 5))
        answer = method.answer(PROMPTS[0], LENGTH)
        assert sum(len(step.tokens) for step in answer.steps) == LENGTH
        if method.name.endswith("plain"):
            assert len(answer.steps) == LENGTH
        else:
            assert max(step.num_draft_tokens for step in answer.steps) == 3
        method.close()


@pytest.mark.parametrize("name", ["llama.cpp", "openvino"])
def test_an_end_token_ends_their_answers(name: str, source: Path, folder: Path) -> None:
    pytest.importorskip(peers()[name].module)
    (free, *_) = peers()[name].methods(work(source, folder, ("q8_0",)))
    free.use(free.settings()[0])
    tokens = free.answer(PROMPTS[0], LENGTH).tokens
    end = tokens[5]
    free.close()
    for method in peers()[name].methods(work(source, folder, ("q8_0",), (end,))):
        method.use(method.settings()[0])
        answer = method.answer(PROMPTS[0], LENGTH).tokens
        assert answer[-1] == end and end not in answer[:-1], method.name
        method.close()


def test_openvino_writes_the_same_each_time(source: Path, folder: Path) -> None:
    pytest.importorskip("openvino_genai")
    for method in peers()["openvino"].methods(work(source, folder, ("q8_0",))):
        for setting in method.settings():
            method.use(setting)
            first = [method.answer(prompt, LENGTH) for prompt in PROMPTS]
            again = [method.answer(prompt, LENGTH) for prompt in PROMPTS]
            assert [one.tokens for one in first] == [one.tokens for one in again], method.name
            assert all(len(one.tokens) == LENGTH and one.first_seconds for one in first)
        method.close()
