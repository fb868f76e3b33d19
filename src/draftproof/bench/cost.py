"""What a target call costs by the number of its tokens, and how near that is to reading the weights once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch

from draftproof.contracts import Model
from draftproof.session import Session, prefill
from draftproof.types import InputError, chain

_READ_BYTES = 1 << 28
_READS = 3
_TRIALS = 5


@dataclass(frozen=True, eq=False)
class Contender:
    """A model under a name. threads: it computes with; torch_threads: PyTorch's while it runs."""

    name: str
    model: Model
    threads: int
    torch_threads: int

    @property
    def weights(self) -> int | None:
        """Bytes of its weights, where it tells."""
        memory: Callable[[], dict[str, int]] | None = getattr(self.model, "memory", None)
        return None if memory is None else memory().get("weights")


@dataclass(frozen=True)
class Plan:
    """Tokens of a call (1 always among them), context lengths before it, and how often each is timed."""

    tokens: tuple[int, ...] = tuple(range(1, 17))
    contexts: tuple[int, ...] = (100, 1000)
    repeats: int = 9

    def __post_init__(self) -> None:
        if not self.contexts or min(*self.tokens, *self.contexts, self.repeats, 1) < 1:
            raise InputError("tokens, context lengths and repeats must be whole numbers of at least 1.")
        object.__setattr__(self, "tokens", tuple(sorted({1, *self.tokens})))

    @property
    def size(self) -> int:
        """Timed calls of one model."""
        return len(self.tokens) * len(self.contexts) * self.repeats


class Probe:
    """Times target calls behind one context. The cache is as long before each of them."""

    def __init__(self, model: Model, context: int, most: int) -> None:
        """context: tokens before a call's first one; most: tokens of the longest call.

        InputError where the model's own context is too short.
        """
        limit = model.max_context
        if limit is not None and context + most > limit:
            raise InputError(
                f"{model.name} has a context of {limit} tokens: a call over {most} behind {context} does not fit."
            )
        random = np.random.default_rng(0)
        self._model, self._session = model, Session(model)
        self._context: list[int] = random.integers(model.vocab_size, size=context + 1).tolist()
        self._draft: list[int] = random.integers(model.vocab_size, size=most - 1).tolist()
        prefill(model, [self._session], [self._context])
        self.seconds(1)

    def seconds(self, tokens: int) -> float:
        """One call over the context's last token and a chain of tokens - 1; every row is asked for, as in a step."""
        proposal = chain(self._draft[: tokens - 1], device=self._model.device)
        segment = self._session.plan(self._context, proposal)
        began = time.perf_counter()
        (output,) = self._model.forward([segment])
        # Waits for a device that computes behind our back.
        float(output.logits[-1, -1])
        return time.perf_counter() - began


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds of the calls of one model behind one context: number of tokens -> every repeat."""

    context: int
    times: dict[int, list[float]] = field(default_factory=dict)

    def seconds(self, tokens: int) -> float:
        """Median."""
        return median(self.times[tokens])

    def ratios(self) -> dict[int, float]:
        """Median of each / median over one token."""
        return {tokens: self.seconds(tokens) / self.seconds(1) for tokens in self.times}

    def report(self) -> dict[str, Any]:
        """For JSON, which knows text keys alone."""
        return {
            "tokens": {str(k): self.seconds(k) for k in self.times},
            "minimum": {str(k): min(times) for k, times in self.times.items()},
            "ratio": {str(k): value for k, value in self.ratios().items()},
        }


@dataclass(frozen=True, eq=False)
class Bandwidth:
    """Bytes a second that `threads` threads read from memory, or the device does: the best of all reads."""

    reads: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def of(self, one: Contender) -> float:
        """For this model's device and threads."""
        return max(self.reads[_place(one)])


def measure(
    contenders: Sequence[Contender], plan: Plan, progress: Callable[[int], None] = lambda done: None
) -> tuple[dict[str, list[Curve]], Bandwidth]:
    """(curves by name, a curve a context; memory bandwidth), everything in turn within each repeat.

    Before the calls of a model one call is dropped, so that its weights and threads are where they are in decoding.
    progress: calls done, of `plan.size` x models.
    """
    curves = {one.name: [Curve(length, {k: [] for k in plan.tokens}) for length in plan.contexts] for one in contenders}
    bandwidth, before, done = Bandwidth(), torch.get_num_threads(), 0
    try:
        probes = {one.name: [Probe(one.model, c, max(plan.tokens)) for c in plan.contexts] for one in contenders}
        readers = {place: Reader(*place) for place in map(_place, contenders)}
        progress(0)
        for repeat in range(plan.repeats):
            for place, reader in readers.items():
                bandwidth.reads.setdefault(place, []).append(reader.speed())
            for one in _in_turn(contenders, repeat):
                torch.set_num_threads(one.torch_threads)
                for probe, curve in zip(probes[one.name], curves[one.name], strict=True):
                    probe.seconds(1)
                    for tokens in _in_turn(plan.tokens, repeat):
                        curve.times[tokens].append(probe.seconds(tokens))
                    progress(done := done + len(plan.tokens))
    finally:
        torch.set_num_threads(before)
    return curves, bandwidth


def best_threads(model: Model, most: int) -> int:
    """1 or `most`: PyTorch's threads with which a call over one token is quicker.

    Stock kernels wait for all threads at every barrier, so a small model on a busy machine is quicker with one.
    """
    before, probe = torch.get_num_threads(), Probe(model, 32, 1)
    times: dict[int, list[float]] = {1: [], most: []}
    try:
        for _ in range(_TRIALS):
            for count, taken in times.items():
                torch.set_num_threads(count)
                probe.seconds(1)
                taken.append(probe.seconds(1))
    finally:
        torch.set_num_threads(before)
    return min(times, key=lambda count: median(times[count]))


class Reader:
    """Reads much more memory than a cache holds, again and again.

    On a CPU: 256 MiB, each thread with a part of its own, by two of numpy's reductions in turn: the largest number of
    it as float32, and the bitwise or of it as int64. Neither has arithmetic worth waiting for, and both let other
    threads run. On another device: the sum of a float32 tensor of 2 GiB.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._reads: list[Callable[[], object]]
        if device == "cpu":
            self._bytes, pool = _READ_BYTES, ThreadPoolExecutor(threads)
            parts = np.array_split(np.ones(_READ_BYTES // 8, np.int64), threads)
            floats = [part.view(np.float32) for part in parts]
            largest, either = np.maximum.reduce, np.bitwise_or.reduce
            self._reads = [lambda: list(pool.map(largest, floats)), lambda: list(pool.map(either, parts))]
        else:
            numbers = torch.ones(2 * _READ_BYTES, device=device)
            self._bytes, self._reads = 8 * _READ_BYTES, [lambda: float(numbers.sum())]

    def speed(self) -> float:
        """Bytes a second: the best of a few reads of each kind, behind one that is dropped."""
        return max(self._bytes / self._seconds(read) for read in self._reads for _ in range(_READS))

    def _seconds(self, read: Callable[[], object]) -> float:
        read()
        began = time.perf_counter()
        read()
        return time.perf_counter() - began


def _place(one: Contender) -> tuple[str, int]:
    device = str(one.model.device)
    return device, one.threads if device == "cpu" else 1


def _in_turn(things: Sequence[Any], repeat: int) -> Sequence[Any]:
    """Forwards and backwards, so that nothing is always measured behind the same."""
    return things[::-1] if repeat % 2 else things


def report(contenders: Sequence[Contender], curves: dict[str, list[Curve]], bandwidth: Bandwidth) -> dict[str, Any]:
    """`models` and `bandwidth_gb_s`; a model's own fields are those of the first context."""
    models = []
    for one in contenders:
        reach, first = bandwidth.of(one), curves[one.name][0]
        by_context = {str(c.context): c.report() | _achieved(one, c, reach) for c in curves[one.name]}
        models.append(
            {
                "name": one.name,
                **by_context[str(first.context)],
                "context": first.context,
                "threads": one.threads,
                "device": str(one.model.device),
                "dtype": one.model.dtype,
                "weights_bytes": one.weights,
                "bandwidth_gb_s": reach / 1e9,
                "by_context": by_context,
            }
        )
    return {"models": models, "bandwidth_gb_s": max(one["bandwidth_gb_s"] for one in models)}


def _achieved(one: Contender, curve: Curve, reach: float) -> dict[str, float | None]:
    """Weights / seconds of a call over one token, and its share of the bandwidth; None where no weights are told.

    Where the embedding is not the head's matrix too, the weights hold a table of which a call reads one row.
    """
    if one.weights is None:
        return {"achieved_gb_s": None, "best_gb_s": None, "bandwidth_share": None}
    speed, best = one.weights / curve.seconds(1), one.weights / min(curve.times[1])
    return {"achieved_gb_s": speed / 1e9, "best_gb_s": best / 1e9, "bandwidth_share": speed / reach}
