"""Measured costs in files of the cache folder, one for every target, its drafters and this machine."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.files import read_object
from draftproof.types import InputError

_RUNS = 3
_ALIKE = 0.05


def remembered(name: str, folder: Path, make: Callable[[], Costs]) -> Costs:
    """The mean of the costs measured under this name and on this machine; measured once more until they are settled.

    They are settled, and never measured again, after three runs, or two that say the same. Not the least of all runs:
    where a host moves the cores about, a run sees one state of the machine and the next another, and the least of each
    count would be a curve that no state has. A file that cannot be read is made again; where nothing can be written
    they are measured every time.
    """
    file = memory_of(name, folder)
    known = _read(file)
    if len(known) >= _RUNS or (len(known) == 2 and _alike(known[0], known[1])):
        return _mean(known)
    runs = [*known, make()]
    write_down(file, {"name": name, "machine": machine(), "runs": [asdict(one) for one in runs]})
    return _mean(runs)


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


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def _mean(runs: Sequence[Costs]) -> Costs:
    mean = runs[0]
    for number, one in enumerate(runs[1:], 2):
        mean = mean.toward(one, 1 / number)
    return mean


def _read(file: Path) -> list[Costs]:
    """The runs that a file holds."""
    try:
        return [_costs(run) for run in read_object(file)["runs"]]
    except (InputError, AttributeError, KeyError, TypeError, ValueError):
        return []


def _costs(run: Mapping[str, Any]) -> Costs:
    drafts = {name: _curve(curve["points"]) for name, curve in run["drafts"].items()}
    further = None if run["further"] is None else _costs(run["further"])
    return Costs(_curve(run["verify"]["points"]), drafts, int(run["context"]), further)


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return Curve(tuple((int(count), float(seconds)) for count, seconds in points))


def _alike(one: Costs, other: Costs) -> bool:
    """Does a count take the same part of a plain step in both? The lengths depend on nothing else."""
    unit, others = one.verify.at(1), other.verify.at(1)
    pairs = [(one.verify, other.verify), *((curve, other.drafts.get(name)) for name, curve in one.drafts.items())]
    alike = all(
        b is not None and all(abs(a.at(n) / unit - b.at(n) / others) <= _ALIKE for n, _ in (*a.points, *b.points))
        for a, b in pairs
    )
    if one.further is None or other.further is None:
        return alike and one.further is other.further
    return alike and _alike(one.further, other.further)
