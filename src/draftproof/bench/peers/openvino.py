"""OpenVINO GenAI: plain, and its prompt look-up, on the target's weights out of a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.bench.methods import Answer
from draftproof.bench.peers.base import PeerMethod, Recorder, Setting, Work, need, needed, thread_settings, with_plain
from draftproof.types import InputError

LOOKUP = (5,)
"""Draft length of prompt look-up in its documents."""
_NGRAM = 3
MODULE, PACKAGE = "openvino_genai", "openvino-genai"
# It reads no BF16 tensors; F16 holds the same weights but for the smallest.
_READ_AS = {"bf16": "f16"}
_ON_OWN = ("SDPA", "PA")


class OpenVinoMethod:
    """One GGUF file on the CPU plug-in, with or without look-up."""

    counts = False

    def __init__(self, name: str, file: Path, bits: int, lookup: int | None, work: Work) -> None:
        """lookup: draft tokens a step; None decodes plainly."""
        self.name, self.bits = name, bits
        self.plain: PeerMethod | None = None
        self._genai, self._openvino = need(MODULE, PACKAGE), need("openvino", PACKAGE)
        self._file, self._lookup, self._work = file, lookup, work
        self._pipeline: Any = None
        self._setting: Setting | None = None

    def settings(self) -> Sequence[Setting]:
        """Thread counts and, where there is a choice, attention kernels: look-up runs on paged attention alone."""
        return thread_settings(self._work.threads, attention=_ON_OWN if self._lookup is None else ("PA",))

    def use(self, setting: Setting) -> None:
        """Compiles the model anew."""
        if self._pipeline is not None and setting == self._setting:
            return
        self.close()
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": int(setting["threads"])}
        if setting["attention"] == "PA":
            scheduler = self._genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens = max(self._work.context, 256)
            options |= {"scheduler_config": scheduler, "prompt_lookup": self._lookup is not None}
        else:
            options["ATTENTION_BACKEND"] = setting["attention"]
        try:
            self._pipeline = self._genai.LLMPipeline(str(self._file), "CPU", **options)
        except RuntimeError as error:
            raise InputError(f"OpenVINO cannot load {self._file}: {' '.join(str(error).split())[-200:]}.") from error
        self._setting = setting

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """Greedy."""
        if self._pipeline is None:
            self.use(self.settings()[0])
        config = self._config(max_tokens)
        recorder = Recorder(self._work.ends, max_tokens)
        ids = np.array([list(prompt)], dtype=np.int64)
        tensors = (self._openvino.Tensor(ids), self._openvino.Tensor(np.ones_like(ids)))
        result = self._pipeline.generate(self._genai.TokenizedInputs(*tensors), config)
        recorder.add(result.tokens[0])
        return recorder.whole(result.perf_metrics.get_ttft().mean / 1000)

    def close(self) -> None:
        """Free weights and cache."""
        self._pipeline = None

    def _config(self, max_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = max_tokens, False, False
        config.stop_token_ids = set(self._work.ends)
        if self._lookup is not None:
            config.num_assistant_tokens, config.max_ngram_size = self._lookup, _NGRAM
        return config


def methods(work: Work) -> list[PeerMethod]:
    """Plain and every look-up length on every file. InputError without a GGUF file or the package."""
    need(MODULE, PACKAGE)
    gguf, made = needed(work), list[PeerMethod]()
    for file in (gguf.get(_READ_AS.get(kind, kind)) for kind in gguf.kinds):
        modes = {"plain": None, **{f"lookup {n}": n for n in work.lookup or LOOKUP}}
        names = {f"openvino {file.label} {mode}": lookup for mode, lookup in modes.items()}
        made += with_plain([OpenVinoMethod(name, file.path, file.bits, n, work) for name, n in names.items()])
    return made
