"""`draftproof bench peers` from end to end, with transformers on a small random model; and what its report derives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.calls import Call
from models.gguf_files import small_model, write_gguf

from draftproof.bench.compare import Item, Measured, Record, Trial
from draftproof.bench.peers import results
from draftproof.bench.peers.base import Tuned, Work
from draftproof.bench.peers.ours import OurMethod, Targets
from draftproof.bench.peers.transformers_ import methods
from draftproof.bench.report import report
from draftproof.cli.bench_peers_tables import show_peers
from draftproof.models.gguf_import import import_gguf

PROMPTS = ([5, 9, 11, 5, 9], [40, 41, 42, 43, 40, 41])


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "200")
    return Call(capsys, monkeypatch)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("peers") / "small.gguf", small_model("qwen2"), "qwen2")


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    return import_gguf(source, source.parent / "folder")


def work(folder: Path) -> Work:
    return Work(folder, None, (2,), 64, (1,), (4,), 1)


def test_transformers_modes_write_what_we_write(folder: Path) -> None:
    ours = OurMethod(f"hf:{folder}", "null", Targets(), (1,))
    wanted = [ours.answer(prompt, 24).tokens for prompt in PROMPTS]
    made = methods(work(folder))
    for method in made:
        # Twice each, in turn: nothing of one prompt may be left for the next.
        method.use({"threads": 1, "dtype": "float32"})
        for _ in range(2):
            assert [method.answer(prompt, 24).tokens for prompt in PROMPTS] == wanted, method.name
    assert [one.name for one in made] == [f"transformers float32 {m}" for m in ("plain", "lookup 4", "early exit 1")]
    answer = made[1].answer(PROMPTS[0], 24)
    assert answer.steps[0].prefill and sum(len(step.tokens) for step in answer.steps) == len(answer.tokens)
    assert answer.first_seconds is not None and 0 < answer.first_seconds < answer.seconds


def test_end_tokens_end_transformers_answers(folder: Path) -> None:
    ours = OurMethod(f"hf:{folder}", "null", Targets(), (1,))
    tokens = ours.answer(PROMPTS[0], 24).tokens
    end = tokens[9]
    for method in methods(Work(folder, None, (end,), 64, (1,), (4,), 1)):
        method.use({"threads": 1, "dtype": "float32"})
        assert method.answer(PROMPTS[0], 24).tokens == tokens[: tokens.index(end) + 1], method.name


def test_the_command_reports_every_method(
    folder: Path, source: Path, call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"id": "a", "category": "one", "prompt": "the 12 the 12"}\n{"id": "b", "category": "two", "prompt": "e"}\n'
    )
    options = ["--target", f"hf:{folder}", "--gguf", str(source), "--prompts", str(prompts), "--max-tokens", "8"]
    options += ["--repeats", "2", "--calibration", "3", "--lookup", "3", "--exit-layer", "2", "--threads", "1"]
    done = call("bench", "peers", *options, "--peer", "transformers", "--json")
    assert done.code == 0, done.err
    found = done.json
    names = [one["name"] for one in found["methods"]]
    assert names[:2] == ["draftproof float32 null", "draftproof float32 ngram"] and len(names) == 5
    assert names[3].endswith("lookup 3") and names[4].endswith("early exit 2")
    assert found["kind"] == "peers" and found["baseline"] == names[0] and not found["absent"]
    for one in found["methods"]:
        assert {"geomean_speedup", "tokens_per_s", "same_tokens", "same_tokens_share", "setting"} <= set(one)
        assert {"speedup", "low", "high", "mean_acceptance_length"} <= set(one["categories"]["one"])
        assert one["reference"] == names[0]
    theirs = found["methods"][3]
    assert [one["dtype"] for one in theirs["tried"]] == ["bfloat16", "float32"] and theirs["timing"] is None
    assert {one["name"] for one in found["ahead"]} == set(names[:2])
    assert set(found["ahead"][0]["categories"]) == {"one", "two"}
    show_peers(found, markdown=True)
    assert "| draftproof float32 ngram | transformers |" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_sentence(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    target = ("--target", f"hf:{folder}", "--max-tokens", "4", "--threads", "1")
    for options, words in (
        (("--peer", "llama.cpp"), "pip install llama-cpp-python"),
        (("--peer", "exllama"), "transformers, llama.cpp, openvino, vllm"),
        (("--peer", "transformers", "--exit-layer", "3"), "below the target's 3 layers"),
        (("--peer", "transformers", "--gguf", "nothing.gguf"), "nothing.gguf cannot be read"),
    ):
        done = call("bench", "peers", *target, *options)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done.err
    done = call("bench", "peers", "--target", "toy:3,vocab=40", "--peer", "transformers", "--max-tokens", "4")
    assert done.code == 2 and "folder" in done.err


class Fixed(OurMethod):
    """Named numbers in the place of a model."""

    def __init__(self, name: str, bits: int, drafter: str) -> None:
        self.name, self.bits, self.drafter, self.plain = name, bits, drafter, None

    def margin(self, context: Sequence[int], ours: int, theirs: int) -> float:
        return float(len(context))


class Peer:
    def __init__(self, name: str, bits: int, plain: Any = None) -> None:
        self.name, self.bits, self.counts, self.plain = name, bits, False, plain


def test_tokens_are_compared_within_a_size_and_speed_with_the_best_mode() -> None:
    ours = [Fixed("ours", 16, "null"), Fixed("ours8", 8, "null")]
    slow = Peer("slow", 16)
    theirs = [slow, Peer("fast", 16, slow), Peer("small", 9)]
    said = {"ours": (1, 2, 3), "ours8": (1, 2, 4), "slow": (1, 2, 3), "fast": (1, 5, 3), "small": (1, 2, 4)}
    seconds = {"ours": 1.0, "ours8": 0.5, "slow": 4.0, "fast": 2.0, "small": 1.0}
    item = Item("a", "one", (7, 7))
    trials = (Trial(item, {name: Record(said[name], seconds[name], 0.1) for name in said}),) * 2
    methods: dict[str, Any] = {"draftproof": ours, "other": theirs}
    measured, tuned = Measured(trials), {name: Tuned({"threads": 1}) for name in said}
    made = results.complete(report(measured, list(said)), measured, methods, tuned)
    entries = {one["name"]: one for one in made["methods"]}
    assert {name: one["reference"] for name, one in entries.items()} == {
        "ours": "ours", "ours8": "ours8", "slow": "ours", "fast": "ours", "small": "ours8",
    }  # fmt: skip
    assert {name: one["same_tokens_share"] for name, one in entries.items() if not one["same_tokens"]} == {"fast": 0}
    assert entries["fast"]["first_differences"] == {"a": {"position": 1, "margin": 3.0}}
    assert made["answers"][0]["methods"]["fast"]["first_difference"] == 1
    assert made["answers"][0]["methods"]["ours8"]["first_difference"] is None
    own = {name: one["same_as_own_plain_share"] for name, one in entries.items()}
    assert own == {"ours": None, "ours8": None, "slow": None, "fast": 0, "small": None}
    ahead = {one["name"]: one for one in made["ahead"]}
    assert ahead["ours"]["categories"]["one"]["best"] == "fast" and ahead["ours"]["geomean"] == pytest.approx(2)
    assert ahead["ours8"]["categories"]["one"]["best"] == "small" and ahead["ours8"]["everywhere"]
