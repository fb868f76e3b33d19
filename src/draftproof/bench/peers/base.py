"""What the adapters share: the work they are given, settings worth trying, where an answer ends."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Protocol

from draftproof.bench.methods import Answer, Method
from draftproof.bench.peers.gguf_files import GgufFiles
from draftproof.types import InputError, Origin, Step

Setting = Mapping[str, int | str | bool]
"""One way to run a method that does not change its answer beyond rounding: threads, precision, attention kernel."""

_WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class Work:
    """What every peer is given.

    folder   Hugging Face folder of the target
    gguf     the file it was imported from, and others of the same weights; None where there is none
    ends     end tokens: they end every answer, and stand in it
    context  tokens of the longest prompt and its answer
    threads  counts worth trying
    lookup   draft lengths of prompt look-up; empty: those that the peer's own documents name
    exit     layers of early exit
    """

    folder: Path
    gguf: GgufFiles | None
    ends: tuple[int, ...]
    context: int
    threads: Sequence[int]
    lookup: Sequence[int]
    exit: int


class PeerMethod(Method, Protocol):
    """A method that can run in several ways, of which the fastest is to be compared."""

    bits: int
    """Bits a weight, so that it is set beside methods of the same size."""
    counts: bool
    """It says how many draft tokens each of its target calls verified."""
    plain: PeerMethod | None
    """The same project's plain decoding of the same weights; None where it is that itself."""

    def settings(self) -> Sequence[Setting]:
        """Ways to run that are worth trying; the first is taken where nothing is tried."""

    def use(self, setting: Setting) -> None:
        """Run so from now on; may load the weights anew."""


@dataclass
class Tuned:
    """What calibration found: the setting taken, and tokens/s of each."""

    setting: Setting
    tried: list[tuple[Setting, float]] = field(default_factory=list)


def tune(method: PeerMethod, prompts: Sequence[Sequence[int]], max_tokens: int, rounds: int = 2) -> Tuned:
    """Try all settings in turn on these prompts, `rounds` times, and leave the method with the fastest.

    With one setting, or `max_tokens` 0, the first is taken untried.
    """
    settings = list(method.settings())
    speeds = [0.0] * len(settings)
    tried = len(settings) > 1 and max_tokens > 0
    for _ in range(rounds if tried else 0):
        for index, setting in enumerate(settings):
            method.use(setting)
            method.answer(prompts[0], _WARM_UP_TOKENS)
            answers = [method.answer(prompt, max_tokens) for prompt in prompts]
            speed = sum(len(answer.tokens) for answer in answers) / sum(answer.seconds for answer in answers)
            speeds[index] = max(speeds[index], speed)
    best = settings[speeds.index(max(speeds))]
    method.use(best)
    return Tuned(best, list(zip(settings, speeds, strict=True)) if tried else [])


class Recorder:
    """Takes an answer down as it comes: tokens, the time of the first, and the target calls they came from."""

    def __init__(self, ends: Iterable[int], max_tokens: int) -> None:
        self._ends, self._max = frozenset(ends), max_tokens
        self._tokens: list[int] = []
        self._calls: list[int] = []
        self._first: float | None = None
        self._began = time.perf_counter()

    @property
    def done(self) -> bool:
        """An end token stands at the end, or all tokens are there."""
        return len(self._tokens) >= self._max or (bool(self._tokens) and self._tokens[-1] in self._ends)

    def add(self, tokens: Iterable[int], call: int | None = None) -> None:
        """Tokens of a target call, cut where the answer ends. call: its number, one more than the last if None."""
        if self._first is None:
            self._first = time.perf_counter() - self._began
        number = (self._calls[-1] + 1 if self._calls else 0) if call is None else call
        for token in tokens:
            if self.done:
                break
            self._tokens.append(int(token))
            self._calls.append(number)

    def answer(self, drafted: Sequence[int] = ()) -> Answer:
        """Now it has ended.

        drafted: draft tokens that each call verified; empty where the peer does not say, then as many are assumed as
        were accepted, so that of the counts only the mean acceptance length means something (`PeerMethod.counts`).
        """
        seconds = time.perf_counter() - self._began
        steps: list[Step] = []
        for call, group in groupby(zip(self._calls, self._tokens, strict=True), key=itemgetter(0)):
            tokens = tuple(token for _, token in group)
            steps.append(_step(tokens, max(len(tokens) - 1, drafted[call] if drafted else 0), not steps))
        return Answer(tuple(self._tokens), seconds, self._first, tuple(steps))

    def whole(self, first_seconds: float | None) -> Answer:
        """The same where the tokens came all at once; first_seconds as the peer has measured it, None if it has not."""
        return replace(self.answer(), first_seconds=first_seconds, steps=())


def _step(tokens: tuple[int, ...], verified: int, prefill: bool) -> Step:
    accepted = len(tokens) - 1
    taken: Origin = "accepted"
    last: Origin = "plain" if not verified else "bonus" if accepted == verified else "correction"
    return Step(
        tokens=tokens,
        origins=(*(taken,) * accepted, last),
        num_draft_tokens=verified,
        num_accepted_tokens=accepted,
        draft_depth=verified,
        drafter="peer",
        prefill=prefill,
    )


def need(module: str, package: str) -> ModuleType:
    """A peer's Python module. InputError naming the package where it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this comparison needs the package {package}: pip install {package} ({error}).") from error


def with_plain(made: Sequence[PeerMethod]) -> list[PeerMethod]:
    """The modes of one project on one set of weights, plain first: the others are told which it is."""
    for method in made[1:]:
        method.plain = made[0]
    return list(made)


def needed(work: Work) -> GgufFiles:
    """The target's GGUF files. InputError where there are none."""
    if work.gguf is None:
        raise InputError(
            f"there is no GGUF file of {work.folder}: name the one it was imported from with --gguf, "
            "or leave out the peers that read GGUF."
        )
    return work.gguf


def thread_settings(threads: Sequence[int], **others: Sequence[int | str | bool]) -> list[Setting]:
    """Every combination of the thread counts with these values."""
    settings: list[dict[str, int | str | bool]] = [{"threads": count} for count in threads]
    for name, values in others.items():
        settings = [{**setting, name: value} for value in values for setting in settings]
    return list(settings)
