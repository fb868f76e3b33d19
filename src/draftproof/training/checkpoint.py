"""What a run has come to, in one file that is replaced in a single step, so that a kill at any time loses a round."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from draftproof.files import refusing
from draftproof.types import InputError

NAME = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write beside, then replace."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f"{NAME}.new"
    torch.save(state, beside)
    os.replace(beside, folder / NAME)


def load(folder: Path) -> dict[str, Any]:
    """InputError where there is none or it is damaged."""
    file = folder / NAME
    if not file.is_file():
        raise InputError(f"{folder} has no {NAME} to resume from: train without --resume.")
    with refusing(f"{file} cannot be read"):
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state
