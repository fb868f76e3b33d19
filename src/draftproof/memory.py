"""What models will need and what a machine has left, compared before anything is loaded. Sizes in bytes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from draftproof.types import InputError

TOKENS = 2048
"""Text of a request for which there must be room where its length is not known yet: prompt and answer."""


@dataclass(frozen=True)
class Need:
    """What one model takes, from its configuration and the headers of its files.

    loading      beside the weights while they are read; gone afterwards
    kv_per_token of the layers that keep every token; `kv_window`: of a request's other layers, their windows full
    max_context  tokens a request can have at most; None: no limit
    device       where weights and KV lie
    """

    weights: int
    loading: int = 0
    kv_per_token: int = 0
    kv_window: int = 0
    max_context: int | None = None
    device: str = "cpu"

    def kv(self, tokens: int, requests: int = 1) -> int:
        """KV cache of `requests` requests of so many tokens."""
        held = tokens if self.max_context is None else min(tokens, self.max_context)
        return requests * (held * self.kv_per_token + self.kv_window)

    def report(self) -> dict[str, int]:
        """What is known once it is loaded, for `--json`."""
        return {"weights": self.weights, "kv_per_token": self.kv_per_token, "kv_window": self.kv_window}


@dataclass(frozen=True)
class Room:
    """Memory that can be had, and what sets the limit."""

    free: int
    limit: str = "of this machine"


def size(number: float) -> str:
    """Bytes for a reader, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def room_on(device: str) -> Room:
    """What is free on a device: of a GPU what its driver says, else of this machine and of the group it runs us in."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(torch.device(device))
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Room(free + cached, f"of {device}")
    return machine_room()


def refuse_beyond(
    needs: Mapping[str, Need],
    tokens: int = TOKENS,
    requests: int = 1,
    rooms: Callable[[str], Room] = room_on,
    loaded: bool = False,
) -> None:
    """InputError, with all numbers, where models (by role) do not fit together into the memory of their devices.

    That is the weights of all, and the larger of their KV caches and of what the reading of one takes besides. What
    another device is to hold is read into the memory of the machine first. Once models are `loaded`, their KV alone.
    """
    if loaded:
        needs = {role: replace(need, weights=0, loading=0) for role, need in needs.items()}
    for device in dict.fromkeys(["cpu", *(need.device for need in needs.values())]):
        here = [need for need in needs.values() if need.device == device]
        passing = [need.weights for need in needs.values() if device == "cpu" != need.device]
        beside = max([sum(need.kv(tokens, requests) for need in here), *(need.loading for need in here), *passing])
        total, room = sum(need.weights for need in here) + beside, rooms(device)
        if total > room.free:
            raise InputError(
                f"{listed(needs, tokens, requests)}: that takes {size(total)}, and {size(room.free)} {room.limit} are"
                " free; take smaller weights (native: with weights=int8 or int4), shorter texts or fewer at a time, or"
                " a drafter without a model of its own."
            )


def listed(needs: Mapping[str, Need], tokens: int = TOKENS, requests: int = 1) -> str:
    """Weights and KV of every model, for a reader."""
    texts = f"{tokens:,} tokens" if requests == 1 else f"{requests} texts of {tokens:,} tokens"
    models = []
    for role, need in needs.items():
        weights = f"{size(need.weights)} of weights and " if need.weights else ""
        models.append(f"{role} {weights}{size(need.kv(tokens, requests))} of KV")
    return f"{', '.join(models)} for {texts}"


def machine_room(root: Path = Path("/")) -> Room:
    """The least of what the machine and the control groups (version 1 or 2) above this process have left.

    root: where `proc` and `sys` are looked for. Swap does not count: weights are read at every token.
    """
    rooms = [Room(_machine_free(root)), *(Room(free, "of this container's limit") for free in _groups_free(root))]
    return min(rooms, key=lambda room: room.free)


def _machine_free(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups_free(root: Path) -> list[int]:
    """Of every group from the process's own up to the outermost that is visible."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = ("memory.max", "memory.current", "inactive_file")
        base = root / "sys/fs/cgroup"
        if controllers:
            names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), base / "memory"
        place = base / path.strip("/")
        # Inside a container the path may be that of the host, and not be there.
        places = [place, *(above for above in place.parents if above == base or base in above.parents)]
        found += [free for one in places if (free := _group_free(one, *names)) is not None]
    return found


def _group_free(place: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """None for a group without a limit. Pages of files that nobody maps are taken back when memory runs short."""
    most, used = "".join(_lines(place / limit)), "".join(_lines(place / usage))
    if not (most.isdecimal() and used.isdecimal()):
        return None
    stat = dict(line.rsplit(" ", 1) for line in _lines(place / "memory.stat") if " " in line)
    return max(0, int(most) - int(used) + int(stat.get(reclaimable, 0)))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return []


def give_back() -> bool:
    """Return to the system what the C library keeps free between long-lived pieces of its heap; False where it cannot.

    Many small tensors beside a few that stay leave gigabytes there.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    trim(0)
    return True
