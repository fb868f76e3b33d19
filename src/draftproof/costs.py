"""What a step costs on this machine, by draft length: measured once by running the engine, then remembered.

Remembered, because lengths chosen from another measurement would give a seed another text under the ratio rules.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftproof.contracts import Ask, Drafter, DraftSession, Model
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AUTO_GAMMA, AutoLength
from draftproof.engine import Engine
from draftproof.files import cache_folder, read_object
from draftproof.request import Request
from draftproof.stats import total
from draftproof.types import InputError, Proposal, SamplingParams, Timing, chain
from draftproof.verify import CoupledRule

_CONTEXT = 64
_FIRST_COUNTS = (1, 8, 4, AUTO_GAMMA + 1)
_OTHER_COUNTS = (2, 6, 12, 3, 16, 5, 10, 20)
_DRAFT_DEPTHS = (1, 4)
_MOST_ROUNDS = 9
_FIRST_ROUNDS = 2
_SETTLED = 0.05


@dataclass(frozen=True)
class Part:
    """A drafter whose length is to follow cost.

    looks  its tokens cost no forward
    spec   the name of its costs
    guess  the chance of its tokens, before a request has taught better
    """

    drafter: Drafter
    looks: bool
    spec: str
    guess: float


def by_cost(parts: Sequence[Part], target: Model) -> Drafter:
    """The drafters in one, lengths chosen step by step. InputError for one of trees."""
    for part in parts:
        if part.drafter.branches:
            raise InputError(f"the length of a tree is its shape: give {part.spec} a gamma, or no shape and width.")
    paid = [part for part in parts if not part.looks]
    name = " ".join([target.name, target.dtype, str(target.device), "+".join(part.spec for part in paid)])
    drafts = [part.drafter for part in paid]
    known = remembered(name, cache_folder() / "costs", lambda: measure(target, drafts))
    guesses = {part.drafter.name: part.guess for part in paid}
    return AutoLength([part.drafter for part in parts if part.looks], drafts, known, guesses, time.perf_counter)


def measure(target: Model, drafts: Sequence[Drafter], seconds: float = 1.5) -> Costs:
    """Costs of steps of one request behind a short text, each the least of some interleaved rounds.

    Other programs only ever add time, so the least is what the machine can do. seconds: for the verification; a
    large model takes longer, since a few counts are measured twice whatever it costs. The drafts take as long again.
    """
    given = _Given()
    request = _begin(Engine(target, given, CoupledRule()), target)
    verify = _least(lambda count: given.step(request, count - 1), _FIRST_COUNTS, _OTHER_COUNTS, seconds)
    return Costs(verify, {part.name: _draft_curve(target, part, seconds / len(drafts)) for part in drafts})


def _draft_curve(target: Model, part: Drafter, seconds: float) -> Curve:
    engine = Engine(target, part, CoupledRule())
    requests = {depth: _begin(engine, target, min(depth, part.gamma)) for depth in _DRAFT_DEPTHS}
    return _least(lambda depth: _step(requests[depth]).draft, _DRAFT_DEPTHS, (), seconds)


def remembered(name: str, folder: Path, make: Callable[[], Costs]) -> Costs:
    """The costs known under this name and on this machine; measured, and written down, where none are settled yet.

    A further measurement takes the place of a known one where it is lower. They are settled, and never measured
    again, once one brings nothing: on a busy machine that takes a few runs. A file that cannot be read is made
    again; where nothing can be written they are measured every time.
    """
    file = memory_of(name, folder)
    known = _read(file)
    if known is not None and known[1]:
        return known[0]
    made = make()
    costs = made if known is None else _lower(known[0], made)
    settled = known is not None and _alike(known[0], costs)
    write_down(file, {"name": name, "machine": machine(), "settled": settled, **asdict(costs)})
    return costs


def machine() -> list[object]:
    """What remembered measurements hold for."""
    return [processor(), torch.get_num_threads(), version("draftproof"), torch.__version__]


def memory_of(name: str, folder: Path) -> Path:
    """The file of what is remembered under this name and on this machine."""
    return folder / f"{hashlib.sha256(json.dumps([name, *machine()]).encode()).hexdigest()[:24]}.json"


def write_down(file: Path, value: Mapping[str, Any]) -> None:
    """In one step; where nothing can be written nothing is remembered."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(value))
        part.replace(file)
    except OSError:
        pass


def _read(file: Path) -> tuple[Costs, bool] | None:
    """What a file says, and whether it is settled."""
    try:
        found = read_object(file)
        drafts = {name: _curve(curve["points"]) for name, curve in found["drafts"].items()}
        return Costs(_curve(found["verify"]["points"]), drafts), bool(found["settled"])
    except (InputError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _lower(one: Costs, other: Costs) -> Costs:
    """The lower of both at every count that either knows."""
    drafts = {name: _lower_curve(curve, one.drafts.get(name)) for name, curve in other.drafts.items()}
    return Costs(_lower_curve(one.verify, other.verify), drafts)


def _lower_curve(one: Curve, other: Curve | None) -> Curve:
    best = dict(one.points)
    for count, seconds in () if other is None else other.points:
        best[count] = min(best.get(count, seconds), seconds)
    return Curve(tuple(sorted(best.items())))


def _alike(known: Costs, lower: Costs) -> bool:
    pairs = [(known.verify, lower.verify), *((known.drafts.get(name), c) for name, c in lower.drafts.items())]
    return all(
        before is not None and all(before.at(count) <= seconds * (1 + _SETTLED) for count, seconds in after.points)
        for before, after in pairs
    )


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


class _Given:
    """Proposes any `gamma` tokens; what is measured is what it costs to verify them."""

    name = "given"
    layers: tuple[int, ...] = ()
    draws = branches = False
    gamma = AUTO_GAMMA

    def start(self, target: Any) -> DraftSession:
        """Nothing to remember."""
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Any) -> None:
        """Nothing to learn."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The last tokens of the text once more."""
        return [chain(ask.context[len(ask.context) - ask.depth :]) for ask in asks]

    def step(self, request: tuple[Engine, Request], depth: int) -> float:
        """Seconds of a whole step that verifies `depth` draft tokens, drafting not counted."""
        self.gamma = depth
        timing = _step(request)
        return total(timing) - timing.draft


def _begin(engine: Engine, target: Model, gamma: int | None = None) -> tuple[Engine, Request]:
    """A request behind the prompt, with the whole of its length ahead."""
    prompt = [(7 * i + 1) % target.vocab_size for i in range(_CONTEXT)]
    request = engine.submit(prompt, SamplingParams(max_tokens=2**31, seed=0, gamma=gamma))
    engine.step([request])
    return engine, request


def _step(request: tuple[Engine, Request]) -> Timing:
    engine, running = request
    (step,) = engine.step([running])
    return step.timing


def _least(seconds_of: Callable[[int], float], first: Sequence[int], others: Sequence[int], budget: float) -> Curve:
    """The least of every count: the first counts twice, then all of them for as long as the budget lasts."""
    best: dict[int, float] = {}
    seconds_of(first[0])
    began = time.perf_counter()
    for number, count in _rounds(first, others):
        if number >= _FIRST_ROUNDS and time.perf_counter() - began > budget:
            break
        took = seconds_of(count)
        best[count] = min(best.get(count, took), took)
    return Curve(tuple(sorted(best.items())))


def _rounds(first: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(round, count) in the order of measuring."""
    for number in range(_MOST_ROUNDS):
        for count in (*first, *(others if number >= _FIRST_ROUNDS else ())):
            yield number, count


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return Curve(tuple((int(count), float(seconds)) for count, seconds in points))
