"""Tensors of a Hugging Face folder, checked one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from draftproof.files import refusing
from draftproof.models.folder import check_index
from draftproof.models.native.grid import GROUP, Grid, Weight, unfold
from draftproof.types import InputError

_PREFIXES = ("", "language_model.")


class Checkpoint:
    """The safetensors files of one folder; use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise InputError(f"{self._folder} has no .safetensors file; convert the checkpoint to safetensors first.")
        check_index(self._folder, files)
        with ExitStack() as opened:
            for path in files:
                with refusing(f"{path} is truncated or damaged, so download it again"):
                    file = opened.enter_context(safe_open(path, framework="pt"))
                    self._files.update(dict.fromkeys(file.keys(), file))
            self._stack = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All of them, by name, as stored."""
        for name in sorted(self._files):
            with refusing(f"{name} of {self._folder} cannot be read"):
                yield name, self._files[name].get_tensor(name)

    def __contains__(self, name: str) -> bool:
        return any(prefix + name in self._files for prefix in _PREFIXES)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored; InputError if it is missing, of another shape, or not finite."""
        full = next((prefix + name for prefix in _PREFIXES if prefix + name in self._files), None)
        if full is None:
            raise InputError(f"{self._folder} has no tensor {name}; the checkpoint is incomplete.")
        with refusing(f"{name} of {self._folder} cannot be read"):
            found: Tensor = self._files[full].get_tensor(full)
        if tuple(found.shape) != shape:
            raise InputError(
                f"{name} has shape {list(found.shape)}, but config.json asks for {list(shape)}; check both."
            )
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise InputError(f"{name} holds NaN or infinite weights; download the checkpoint again.")
        return found

    def matrix(self, name: str, outputs: int, depth: int) -> Weight:
        """A weight as stored: a tensor, or its four-bit grid."""
        if name + ".codes" not in self:
            return self.tensor(name, (outputs, depth))
        codes = self.tensor(name + ".codes", (outputs, depth // 2))
        if codes.dtype != torch.uint8:
            raise InputError(f"{name}.codes must hold uint8, not {codes.dtype}; import the checkpoint again.")
        groups = (outputs, depth // GROUP)
        return Grid(unfold(codes), self.tensor(name + ".scales", groups), self.tensor(name + ".minima", groups))
