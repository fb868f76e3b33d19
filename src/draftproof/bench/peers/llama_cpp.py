"""llama.cpp through llama-cpp-python: plain, and its prompt look-up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftproof.bench.methods import Answer
from draftproof.bench.peers.base import PeerMethod, Recorder, Setting, Work, need, needed, thread_settings, with_plain
from draftproof.types import InputError

LOOKUP = (10, 5, 2)
"""Draft lengths of prompt look-up: its default, ours, and what its documents advise for CPUs."""
MODULE, PACKAGE = "llama_cpp", "llama-cpp-python"


class LlamaCppMethod:
    """One GGUF file, with or without look-up."""

    counts = True

    def __init__(self, name: str, file: Path, bits: int, lookup: int | None, work: Work) -> None:
        """lookup: draft tokens a step; None decodes plainly."""
        self.name, self.bits = name, bits
        self.plain: PeerMethod | None = None
        self._library, self._file, self._lookup, self._work = need(MODULE, PACKAGE), file, lookup, work
        self._llama: Any = None
        self._flash: bool | None = None
        self._fed: list[int] = []

    def settings(self) -> Sequence[Setting]:
        """Thread counts, with and without its fused attention."""
        return thread_settings(self._work.threads, flash_attn=(False, True))

    def use(self, setting: Setting) -> None:
        """Loads the file anew where the attention changes."""
        flash, threads = bool(setting["flash_attn"]), int(setting["threads"])
        if self._llama is None or flash != self._flash:
            self.close()
            self._llama, self._flash = self._load(flash), flash
        self._library.llama_set_n_threads(self._llama.ctx, threads, threads)

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """Greedy. Without `reset` it would go on from what the prompt shares with the one before."""
        if self._llama is None:
            self.use(self.settings()[0])
        self._llama.reset()
        self._fed.clear()
        recorder = Recorder(self._work.ends, max_tokens)
        for token in self._llama.generate(list(prompt), temp=0.0):
            recorder.add((token,), call=len(self._fed) - 1)
            if recorder.done:
                break
        # The first call reads the prompt; every later one is fed the last token and the draft.
        return recorder.answer([0, *(count - 1 for count in self._fed[1:])])

    def _load(self, flash: bool) -> Any:
        """Look-up needs the logits of all rows, and its scores as many rows as the context has."""
        speculative = need(f"{MODULE}.llama_speculative", PACKAGE)
        look = speculative.LlamaPromptLookupDecoding
        draft = None if self._lookup is None else look(num_pred_tokens=self._lookup)
        context = self._work.context + (self._lookup or 0) + 1
        try:
            llama = self._library.Llama(
                str(self._file),
                n_ctx=context,
                logits_all=draft is not None,
                flash_attn=flash,
                draft_model=draft,
                verbose=False,
            )
        except (ValueError, RuntimeError) as error:
            raise InputError(f"llama.cpp cannot load {self._file}: {error}.") from error
        evaluate = llama.eval

        def counted(tokens: Sequence[int]) -> None:
            self._fed.append(len(tokens))
            evaluate(tokens)

        llama.eval = counted
        return llama

    def close(self) -> None:
        """Free weights and cache."""
        if self._llama is not None:
            self._llama.close()
        self._llama = None


def methods(work: Work) -> list[PeerMethod]:
    """Plain and every look-up length on every file. InputError without a GGUF file or the package."""
    need(MODULE, PACKAGE)
    made: list[PeerMethod] = []
    gguf = needed(work)
    for file in map(gguf.get, gguf.kinds):
        modes = {"plain": None, **{f"lookup {n}": n for n in work.lookup or LOOKUP}}
        names = {f"llama.cpp {file.label} {mode}": lookup for mode, lookup in modes.items()}
        made += with_plain([LlamaCppMethod(name, file.path, file.bits, n, work) for name, n in names.items()])
    return made
