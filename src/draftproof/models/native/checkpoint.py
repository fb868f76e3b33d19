"""Tensors of a Hugging Face folder, checked one by one as they are asked for."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

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
        self._check_index(files)
        for path in files:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise InputError(f"{path} is damaged ({error}); download it again.") from error
            self._files.update(dict.fromkeys(file.keys(), file))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _check_index(self, files: list[Path]) -> None:
        index = self._folder / "model.safetensors.index.json"
        if not index.is_file():
            return
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{index} is damaged ({error!r}); download it again.") from error
        missing = wanted - {path.name for path in files}
        if missing:
            raise InputError(f"{self._folder} lacks {', '.join(sorted(missing))}; download it again.")

    def __contains__(self, name: str) -> bool:
        return any(prefix + name in self._files for prefix in _PREFIXES)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored; InputError if it is missing, of another shape, or not finite."""
        full = next((prefix + name for prefix in _PREFIXES if prefix + name in self._files), None)
        if full is None:
            raise InputError(f"{self._folder} has no tensor {name}; the checkpoint is incomplete.")
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
