"""transformers' own `generate`: plain, prompt look-up, early exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftproof.bench.methods import Answer
from draftproof.bench.peers.base import PeerMethod, Recorder, Setting, Work, thread_settings, with_plain

LOOKUP = (10, 5)
"""Draft lengths of prompt look-up: that of its documents, and ours."""


class _Weights:
    """The model in each precision asked for, loaded once for all modes."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._models: dict[str, Any] = {}

    def model(self, dtype: str) -> Any:
        """In eval mode, with SDPA attention."""
        from transformers import AutoModelForCausalLM

        if dtype not in self._models:
            kind = getattr(torch, dtype)
            made = AutoModelForCausalLM.from_pretrained(self._work.folder, dtype=kind, attn_implementation="sdpa")
            self._models[dtype] = made.eval()
        return self._models[dtype]


class TransformersMethod:
    """One mode of `generate`. Every call begins with an empty cache: `generate` makes its own."""

    bits, counts = 16, False

    def __init__(self, mode: str, weights: _Weights, work: Work, options: Mapping[str, Any]) -> None:
        """mode: name of the mode; options: what `generate` is given for it."""
        self.name, self._mode = f"transformers {mode}", mode
        self._weights: _Weights | None = weights
        self._work, self._options = work, options
        self.plain: PeerMethod | None = None
        self._model: Any = None
        self._threads = work.threads[-1]

    def settings(self) -> Sequence[Setting]:
        """Both precisions, each with each thread count."""
        return thread_settings(self._work.threads, dtype=("bfloat16", "float32"))

    def use(self, setting: Setting) -> None:
        """The precision is part of the name."""
        if self._weights is None:
            raise ValueError("the method is closed")
        self._model, self._threads = self._weights.model(str(setting["dtype"])), int(setting["threads"])
        self.name = f"transformers {setting['dtype']} {self._mode}"

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """Greedy."""
        if self._model is None:
            self.use(self.settings()[0])
        torch.set_num_threads(self._threads)
        recorder = Recorder(self._work.ends, max_tokens)
        ids = torch.tensor([list(prompt)])
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=list(self._work.ends) or None,
            pad_token_id=self._work.ends[0] if self._work.ends else 0,
            streamer=_Streamer(recorder),
            **self._options,
        )
        return recorder.answer()

    def close(self) -> None:
        """The weights go with the last mode that uses them."""
        self._model = self._weights = None


class _Streamer:
    """Hears of new tokens, step by step; the first call is the prompt."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._prompt = recorder, True

    def put(self, value: Any) -> None:
        """Called by `generate`."""
        if not self._prompt:
            self._recorder.add(value.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        """Called by `generate`."""


def methods(work: Work) -> list[PeerMethod]:
    """All modes."""
    weights = _Weights(work)
    modes: dict[str, dict[str, Any]] = {"plain": {}}
    modes |= {f"lookup {n}": {"prompt_lookup_num_tokens": n} for n in work.lookup or LOOKUP}
    modes[f"early exit {work.exit}"] = {"assistant_early_exit": work.exit}
    return with_plain([TransformersMethod(mode, weights, work, options) for mode, options in modes.items()])
