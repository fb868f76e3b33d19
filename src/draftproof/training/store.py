"""Samples on disk, where states are wanted more than once: a file of safetensors for every round that wrote them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from draftproof.files import refusing
from draftproof.memory import size
from draftproof.training.samples import Sample
from draftproof.types import InputError


def estimate(tokens: int, layers: int, width: int) -> int:
    """Bytes of the states and ids of so many tokens, in bfloat16 and int32."""
    return tokens * (layers * width * 2 + 4)


def refuse_short(folder: Path, needed: int) -> None:
    """InputError, with both numbers, where the disk has less."""
    place = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise InputError(
            f"the stored states will take {size(needed)} and {folder} has {size(free)} left: store fewer tokens"
            " (--store-tokens), use another disk, or train online, without --store."
        )


class Store:
    """The samples of a folder, in the order in which they were written; a source that begins again at its end."""

    def __init__(self, folder: Path, cursor: int = 0) -> None:
        """cursor: files that have been read so far."""
        self.folder, self.begun = folder, cursor

    @property
    def files(self) -> list[Path]:
        """Complete files alone."""
        return sorted(self.folder.glob("round-*.safetensors"))

    def tokens(self) -> int:
        """Of all answers that are stored."""
        return sum(int(self._notes(file)["written"]) for file in self.files)

    def add(self, samples: Sequence[Sample]) -> None:
        """One more file."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(self.files)
        named = {
            f"{i:05d}.{part}": getattr(one, part) for i, one in enumerate(samples) for part in ("tokens", "states")
        }
        written = sum(len(one.tokens) - one.answer for one in samples)
        notes = {"names": json.dumps([one.name for one in samples]), "written": str(written)}
        notes["answers"] = json.dumps([one.answer for one in samples])
        beside = self.folder / "writing"
        save_file(named, beside, notes)
        beside.replace(self.folder / f"round-{number:06d}.safetensors")

    def write(self, tokens: int) -> list[Sample]:
        """The next files, until they hold so many new tokens."""
        files, made, written = self.files, list[Sample](), 0
        if not files:
            raise InputError(f"{self.folder} holds no stored samples.")
        while written < tokens:
            made += self.read(files[self.begun % len(files)])
            self.begun += 1
            written = sum(len(one.tokens) - one.answer for one in made)
            if self.begun % len(files) == 0:
                break
        return made

    def read(self, file: Path) -> list[Sample]:
        """InputError for a file that is damaged."""
        from safetensors.torch import load_file

        notes = self._notes(file)
        with refusing(f"{file} is damaged"):
            tensors = load_file(file)
            names, answers = json.loads(notes["names"]), json.loads(notes["answers"])
            return [
                Sample(name, tensors[f"{i:05d}.tokens"].to(torch.int32), int(answer), tensors[f"{i:05d}.states"])
                for i, (name, answer) in enumerate(zip(names, answers, strict=True))
            ]

    def _notes(self, file: Path) -> dict[str, str]:
        from safetensors import safe_open

        with refusing(f"{file} is damaged"), safe_open(file, framework="pt") as opened:
            return dict(opened.metadata())
