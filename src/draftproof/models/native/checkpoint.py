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
from draftproof.models.folder import check_index, weight_files
from draftproof.models.native.grid import GROUP, Grid, Weight, dense, unfold
from draftproof.types import InputError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_PREFIXES = ("", "language_model.")
_CODES, _SCALES, _MINIMA = ".codes", ".scales", ".minima"


class Checkpoint:
    """The safetensors files of one folder; use it in a `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Checkpoint:
        files = weight_files(self._folder)
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
        return bool(self._full(name))

    def _full(self, name: str) -> str:
        """The name as the files have it; "" for a tensor that is missing."""
        return next((prefix + name for prefix in _PREFIXES if prefix + name in self._files), "")

    @property
    def on_grid(self) -> bool:
        """Whether it keeps weights on a grid (`grid.py`)."""
        return any(name.endswith(_CODES) for name in self._files)

    def grid_bits(self, name: str) -> int | None:
        """4 or 8 for a weight on a grid, else None."""
        if name + _CODES not in self:
            return None
        return 4 if name + _MINIMA in self else 8

    def stored(self, name: str) -> str:
        """The type a tensor is stored in, as the file names it ("BF16"); "" for one that is missing."""
        full = self._full(name)
        return str(self._files[full].get_slice(full).get_dtype()) if full else ""

    def tensor(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = FLOATS) -> Tensor:
        """The tensor as stored; InputError if it is missing, of another shape or type, or not finite."""
        full = self._full(name)
        if not full:
            raise InputError(f"{self._folder} has no tensor {name}; the checkpoint is incomplete.")
        with refusing(f"{name} of {self._folder} cannot be read"):
            found: Tensor = self._files[full].get_tensor(full)
        if tuple(found.shape) != shape:
            raise InputError(
                f"{name} has shape {list(found.shape)}, but config.json asks for {list(shape)}; check both."
            )
        if found.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            stored = str(found.dtype).removeprefix("torch.")
            raise InputError(f"{name} of {self._folder} holds {stored}, not {wanted}; convert the checkpoint again.")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise InputError(f"{name} holds NaN or infinite weights; download the checkpoint again.")
        return found

    def matrix(self, name: str, outputs: int, depth: int) -> Weight:
        """A weight as stored: a tensor, or its grid of four or eight bits."""
        if name + _CODES not in self:
            return self.tensor(name, (outputs, depth))
        if name in self:
            raise InputError(f"{self._folder} has {name} twice, dense and on a grid; import the checkpoint again.")
        if depth % GROUP:
            raise InputError(f"{name} cannot lie on a grid: its depth {depth} is no multiple of {GROUP}.")
        groups, half = (outputs, depth // GROUP), (torch.float16,)
        if name + _MINIMA not in self:
            codes = self.tensor(name + _CODES, (outputs, depth), (torch.int8,))
            return Grid(codes, self.tensor(name + _SCALES, groups, half))
        codes = unfold(self.tensor(name + _CODES, (outputs, depth // 2), (torch.uint8,)))
        return Grid(codes, self.tensor(name + _SCALES, groups, half), self.tensor(name + _MINIMA, groups, half))

    def dense(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its name, those on a grid as float32 [outputs, depth]."""
        for name in self._files:
            if not name.endswith((_SCALES, _MINIMA)):
                weight = name.removesuffix(_CODES)
                yield weight, self.weight(weight)

    def weight(self, name: str) -> Tensor:
        """One of them. InputError for one that is missing."""
        full = self._full(name + _CODES) or self._full(name)
        if not full:
            raise InputError(f"{self._folder} has no tensor {name}; the checkpoint is incomplete.")
        with refusing(f"{name} of {self._folder} cannot be read"):
            outputs, *rest = self._files[full].get_slice(full).get_shape()
        if not full.endswith(_CODES):
            return self.tensor(name, (outputs, *rest))
        depth = rest[0] * 2 if name + _MINIMA in self else rest[0]
        return dense(self.matrix(name, outputs, depth))
