"""Other projects as methods: what each is asked for, and where its answers end. Needs none of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from draftproof.bench.methods import Answer
from draftproof.bench.peers import llama_cpp, openvino, peers, vllm
from draftproof.bench.peers.base import Recorder, Setting, Work, tune
from draftproof.bench.peers.gguf_files import GgufFiles
from draftproof.stats import Stats
from draftproof.types import InputError

END = 9


def work(folder: Path, **changes: Any) -> Work:
    file = folder / "made.gguf"
    file.touch()
    files = SimpleNamespace(kinds=("file",), get=lambda kind: SimpleNamespace(path=file, label="Q4_1", bits=5))
    given: dict[str, Any] = {"gguf": files, "ends": (END,), "context": 64, "threads": (2, 1), "lookup": (), "exit": 1}
    return Work(**{"folder": folder, **given, **changes})


def test_an_answer_ends_at_an_end_token_or_at_its_length() -> None:
    recorder = Recorder((END,), 8)
    recorder.add((1,))
    recorder.add((2, 3, END, 4))
    assert recorder.done
    recorder.add((5,))
    answer = recorder.answer([0, 5])
    assert answer.tokens == (1, 2, 3, END)
    assert answer.first_seconds is not None and 0 <= answer.first_seconds <= answer.seconds
    assert [(step.tokens, step.num_draft_tokens, step.prefill) for step in answer.steps] == [
        ((1,), 0, True),
        ((2, 3, END), 5, False),
    ]
    short = Recorder((), 2)
    short.add((1, 2, 3))
    assert short.answer().tokens == (1, 2)


def test_steps_count_the_tokens_of_a_target_call() -> None:
    recorder = Recorder((), 9)
    for call, tokens in enumerate([(1,), (2, 3, 4), (5,)]):
        for token in tokens:
            recorder.add((token,), call=call)
    stats = Stats.of(recorder.answer([0, 4, 4]).steps)
    assert (stats.prefills, stats.steps, stats.draft_tokens, stats.accepted_tokens) == (1, 2, 8, 2)
    assert stats.mean_acceptance_length == 2


class Timed:
    """A method whose speed depends on its setting."""

    name, bits, counts, plain = "timed", 16, True, None

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.seconds, self.now, self.answers = seconds, 0, 0

    def settings(self) -> Sequence[Setting]:
        return [{"threads": count} for count in self.seconds]

    def use(self, setting: Setting) -> None:
        self.now = int(setting["threads"])

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        self.answers += 1
        return Answer((1,) * max_tokens, self.seconds[self.now])

    def close(self) -> None: ...


def test_the_fastest_setting_is_kept() -> None:
    method = Timed({4: 2.0, 1: 0.5, 2: 1.0})
    tuned = tune(method, [[1], [2]], 10)
    assert (method.now, tuned.setting) == (1, {"threads": 1})
    assert [(setting["threads"], speed) for setting, speed in tuned.tried] == [(4, 5.0), (1, 20.0), (2, 10.0)]
    method = Timed({4: 2.0, 1: 0.5})
    assert tune(method, [[1]], 0).tried == [] and (method.now, method.answers) == (4, 0)


@pytest.mark.parametrize("name", ["llama.cpp", "openvino", "vllm"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peer = peers()[name]
    monkeypatch.setitem(sys.modules, peer.module, None)
    with pytest.raises(InputError, match=f"pip install {peer.package}"):
        peer.methods(work(tmp_path))


@pytest.mark.parametrize("adapter", [llama_cpp, openvino])
def test_readers_of_gguf_say_what_they_need(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, adapter.MODULE, ModuleType(adapter.MODULE))
    with pytest.raises(InputError, match="--gguf"):
        adapter.methods(work(tmp_path, gguf=None))


class Llama:
    """Continues n, n + 1, ... as llama-cpp-python does: from what it holds, unless it is reset."""

    made: ClassVar[list[Llama]] = []

    def __init__(self, path: str, draft_model: Any = None, **options: Any) -> None:
        self.path, self.draft, self.options, self.ctx = path, draft_model, options, object()
        self.held: list[int] = []
        self.closed = False
        self.made.append(self)

    def reset(self) -> None:
        self.held = []

    def eval(self, tokens: Sequence[int]) -> None:
        self.held += tokens

    def generate(self, tokens: list[int], temp: float) -> Iterator[int]:
        assert temp == 0 and not self.held, "it would go on from an earlier prompt"
        self.eval(tokens)
        last, draft = tokens[-1], self.draft.num_pred_tokens if self.draft else 0
        yield (last := last + 1)
        while True:
            self.eval([last] + [0] * draft)
            for _ in range(2 if draft else 1):
                yield (last := last + 1)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    Llama.made.clear()
    module, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    threads: list[tuple[int, int]] = []
    module.Llama, module.threads = Llama, threads  # type: ignore[attr-defined]
    module.llama_set_n_threads = lambda ctx, n, batch: threads.append((n, batch))  # type: ignore[attr-defined]
    look = lambda num_pred_tokens: SimpleNamespace(num_pred_tokens=num_pred_tokens)  # noqa: E731
    speculative.LlamaPromptLookupDecoding = look  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    return module


def test_llama_cpp_plain_and_every_look_up_length_on_every_file(llama: Any, tmp_path: Path) -> None:
    made = llama_cpp.methods(work(tmp_path))
    lengths = [None, *llama_cpp.LOOKUP]
    assert [one.name for one in made] == [f"llama.cpp Q4_1 {f'lookup {n}' if n else 'plain'}" for n in lengths]
    assert [one.name for one in llama_cpp.methods(work(tmp_path, lookup=(7,)))][1:] == ["llama.cpp Q4_1 lookup 7"]


def test_llama_cpp_begins_every_answer_with_an_empty_cache(llama: Any, tmp_path: Path) -> None:
    method, look = llama_cpp.methods(work(tmp_path, lookup=(3,)))
    for prompt in ([3, 4], [3, 4], [3, 4, 5]):
        assert method.answer(prompt, 50).tokens == tuple(range(prompt[-1] + 1, END + 1))
    assert method.answer([3, 4], 2).tokens == (5, 6)
    answer = look.answer([1, 2], 6)
    assert answer.tokens == (3, 4, 5, 6, 7, 8)
    assert [(len(step.tokens), step.num_draft_tokens) for step in answer.steps] == [(1, 0), (2, 3), (2, 3), (1, 3)]
    plain, drafting = Llama.made
    assert plain.options["logits_all"] is False and plain.draft is None
    assert drafting.options["logits_all"] is True and drafting.options["n_ctx"] >= 64 + 3


def test_llama_cpp_loads_anew_only_for_another_attention(llama: Any, tmp_path: Path) -> None:
    method = llama_cpp.methods(work(tmp_path))[0]
    for setting in method.settings():
        method.use(setting)
    assert [one.options["flash_attn"] for one in Llama.made] == [False, True]
    assert llama.threads == [(2, 2), (1, 1), (2, 2), (1, 1)]
    assert [one.closed for one in Llama.made] == [True, False]
    method.close()
    assert Llama.made[-1].closed


def test_openvino_keeps_no_prefix_and_reads_f16_for_bf16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[tuple[str, dict[str, Any]]] = []

    class Pipeline:
        def __init__(self, path: str, device: str, **options: Any) -> None:
            loaded.append((path, options))

        def generate(self, inputs: Any, config: Any) -> Any:
            assert config.stop_token_ids == {END} and not config.do_sample
            ids = inputs[0][0]
            metrics = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=4.0))
            tokens = [int(ids[-1]) + 1 + i for i in range(config.max_new_tokens)]
            return SimpleNamespace(tokens=[tokens], perf_metrics=metrics)

    genai = SimpleNamespace(
        LLMPipeline=Pipeline,
        SchedulerConfig=lambda: SimpleNamespace(enable_prefix_caching=True),
        GenerationConfig=SimpleNamespace,
        TokenizedInputs=lambda ids, mask: (ids, mask),
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=np.asarray))
    kinds: list[str] = []

    def get(kind: str) -> Any:
        kinds.append(kind)
        return SimpleNamespace(path=tmp_path / kind, label=kind.upper(), bits=16)

    plain, look = openvino.methods(work(tmp_path, gguf=SimpleNamespace(kinds=("bf16",), get=get)))
    answers = [method.answer([3, 4], 8) for method in (plain, look)]
    assert kinds == ["f16"] and [one.tokens for one in answers] == [(5, 6, 7, 8, END)] * 2
    assert answers[0].first_seconds == 0.004 and answers[0].steps == ()
    for setting in plain.settings():
        plain.use(setting)
    for _, options in loaded:
        scheduler = options.get("scheduler_config")
        assert options.get("ATTENTION_BACKEND") == "SDPA" or not scheduler.enable_prefix_caching
    assert [options.get("prompt_lookup") for _, options in loaded][:2] == [None, True]


def test_vllm_binds_its_threads_and_leaves_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    seen: list[tuple[str, dict[str, Any]]] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            seen.append((os.environ["VLLM_CPU_OMP_THREADS_BIND"], options))
            self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))

        def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> Any:
            tokens = [prompts[0]["prompt_token_ids"][-1] + 1 + i for i in range(params.max_tokens)]
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=SimpleNamespace))
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    plain, look = vllm.methods(work(tmp_path, threads=(1,)))
    assert [method.answer([6], 8).tokens for method in (plain, look)] == [(7, 8, END)] * 2
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
    assert all(len(bound.split(",")) == 1 and not options["enable_prefix_caching"] for bound, options in seen)
    assert "speculative_config" not in seen[0][1] and seen[1][1]["speculative_config"]["method"] == "ngram"
    look.close()


def test_gguf_files_are_made_on_demand(tmp_path: Path) -> None:
    files = GgufFiles(tmp_path / "absent.gguf", tmp_path, ("bf16",))
    with pytest.raises(InputError, match="cannot be read"):
        files.get("bf16")
