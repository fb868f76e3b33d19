"""Where numbers come from: commit, machine, versions, command, date."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("draftproof", "torch", "transformers", "numpy")


def provenance(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """What a reader needs to measure the same again. packages: those whose versions matter; missing ones are left out.

    The home folder is written as ~ in the command.
    """
    return {
        "command": " ".join(_homeless(shlex.quote(word)) for word in ("draftproof", *sys.argv[1:])),
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": cpu(),
        "cores": cores(),
        "memory_bytes": _memory(),
        "gpu": _gpu(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: found for name in packages if (found := _version(name)) is not None},
    }


def commit() -> str | None:
    """Of the checkout the package runs from, with "-dirty" where files were changed; None where it is installed."""
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", ":/")
    return f"{_git(here.parent, 'rev-parse', '--short', 'HEAD')}{'-dirty' if changed else ''}"


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(names):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it is not there or refuses."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def _homeless(word: str) -> str:
    home = str(Path.home())
    return word.replace(home, "~") if len(home) > 1 else word
