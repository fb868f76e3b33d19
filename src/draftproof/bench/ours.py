"""Our own engine as a method of the benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from draftproof.bench.methods import Answer
from draftproof.engine import Engine
from draftproof.types import SamplingParams


class EngineMethod:
    """One target with one drafter. Only the loop is timed: no text is made."""

    def __init__(self, name: str, engine: Engine, params: SamplingParams) -> None:
        """params: what every answer asks for; length and seed come with the call.

        PyTorch's thread count of now holds for every answer, whatever other methods do in between.
        """
        self.name, self.engine, self._params = name, engine, params
        self._torch_threads = torch.get_num_threads()

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        """InputError where no token can follow."""
        params = replace(self._params, max_tokens=max_tokens, seed=seed)
        torch.set_num_threads(self._torch_threads)
        steps, first = [], None
        began = time.perf_counter()
        for step in self.engine.generate(prompt, params):
            if first is None and step.tokens:
                first = time.perf_counter() - began
            steps.append(step)
        seconds = time.perf_counter() - began
        return Answer(tuple(token for step in steps for token in step.tokens), seconds, first, tuple(steps))

    def close(self) -> None:
        """The engine's caches end with each answer."""
