"""Hessians of a model's linear layers over calibration texts, one decoder layer in memory at a time, and its rounding.

Works for every transformers model that keeps its decoder layers in a list: the model runs once with layers that only
write down how they are called, then each layer runs by itself in float32 on the states of the one before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.models.lowbit.rounding import Rounded, compensated, nearest
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.types import InputError


def rounded_layers(model: Any, path: str, settings: LowBit, calibration: Calibration) -> Iterator[tuple[str, Rounded]]:
    """(name of the weight, rounded weight) of every linear layer whose inputs come in whole groups.

    model  a transformers model on any device; `path` is the dotted name of its list of decoder layers
    """
    layers = model.get_submodule(path)
    calls = _Calls.of(model, path, calibration.texts()) if settings.rounding == "compensated" else None
    for number, layer in enumerate(layers):
        calibration.progress("rounding the target's weights to 4 bits", number / len(layers))
        own = copy.deepcopy(layer).float()
        linears = {name: module for name, module in own.named_modules() if _fits(module, settings.group)}
        hessians = {} if calls is None else calls.through(own, number, linears)
        for name, module in linears.items():
            full = f"{path}.{number}.{name}.weight"
            yield full, _rounded(full, module.weight.detach(), hessians.get(name), settings.group)
    calibration.progress("rounding the target's weights to 4 bits", 1.0)


def _rounded(name: str, weight: Tensor, hessian: Tensor | None, group: int) -> Rounded:
    """To the nearest point where no text went through the layer."""
    if hessian is None:
        return nearest(weight, group)
    if not torch.isfinite(hessian).all():
        raise InputError(f"{name} is given inputs that are not finite: use rounding=nearest for this model.")
    return compensated(weight, hessian, group)


def _fits(module: nn.Module, group: int) -> bool:
    return type(module) is nn.Linear and module.in_features % group == 0


class _Calls:
    """How every layer is called for every text, and the states that stand before the next layer."""

    def __init__(self, states: list[Tensor], keywords: list[list[dict[str, Any]]]) -> None:
        self._states, self._keywords = states, keywords

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, path: str, texts: Sequence[Sequence[int]]) -> _Calls:
        """Run the model with recorders in the layers' places."""
        parent, _, last = path.rpartition(".")
        owner, layers = model.get_submodule(parent), model.get_submodule(path)
        recorders = [_Recorder(layer) for layer in layers]
        setattr(owner, last, nn.ModuleList(recorders))
        try:
            for text in texts:
                owner(torch.tensor([list(text)], device=model.device), use_cache=False)
        finally:
            setattr(owner, last, layers)
        return cls([call[0].float() for call in recorders[0].calls], [[kw for _, kw in r.calls] for r in recorders])

    @torch.no_grad()
    def through(self, layer: nn.Module, number: int, linears: dict[str, nn.Linear]) -> dict[str, Tensor]:
        """E[x xᵀ] over the inputs of every linear layer; the states move behind this layer."""
        sums = _Sums(linears)
        try:
            for i, keywords in enumerate(self._keywords[number]):
                output = layer(self._states[i], **{key: _in_float(value) for key, value in keywords.items()})
                self._states[i] = output[0] if isinstance(output, tuple) else output
        finally:
            sums.close()
        return sums.means()


class _Recorder(nn.Module):
    """Stands in for a layer: keeps its arguments and hands the states on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, dict[str, Any]]] = []
        self.__dict__["_real"] = layer  # not a module of this one: its attributes alone are read

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def forward(self, hidden_states: Tensor, *args: Any, **keywords: Any) -> Tensor:
        """The states as they came."""
        if args:
            raise InputError("this model hands its layers arguments without names: use rounding=nearest for it.")
        self.calls.append((hidden_states, keywords))
        return hidden_states


class _Sums:
    """Sums of x xᵀ while the layer runs; layers that are given the same tensor share theirs."""

    def __init__(self, linears: dict[str, nn.Linear]) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, int] = {}
        self._shares: dict[str, str] = {}
        self._last: tuple[Tensor, str] | None = None
        self._hooks = [module.register_forward_pre_hook(self._adder(name)) for name, module in linears.items()]

    def _adder(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            x: Tensor = inputs[0]
            if self._last is not None and self._last[0] is x and self._last[1] != name:
                self._shares[name] = self._last[1]
                return
            self._last = x, name
            rows = x.reshape(-1, x.shape[-1])
            self._sums[name] = self._sums.get(name, 0) + rows.T @ rows
            self._rows[name] = self._rows.get(name, 0) + len(rows)

        return add

    def close(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()
        self._last = None

    def means(self) -> dict[str, Tensor]:
        """By name; a linear layer that never ran has none."""
        found = {name: total / self._rows[name] for name, total in self._sums.items()}
        return found | {name: found[other] for name, other in self._shares.items()}


def _in_float(value: Any) -> Any:
    """Tensors of an argument in float32, as the layer computes."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    return type(value)(map(_in_float, value)) if type(value) in (tuple, list) else value


def rounded_folder(folder: Path, settings: LowBit, calibration: Calibration) -> Iterator[tuple[str, Rounded]]:
    """The same for a Hugging Face folder, read with transformers for the time it takes."""
    from draftproof.models.hf_check import text_config
    from draftproof.models.hf_layers import find_layers
    from draftproof.models.hf_load import read_folder

    model = read_folder(str(folder), "cpu", "auto")
    trunk = find_layers(model, int(text_config(model.config).num_hidden_layers))
    if trunk is None:
        raise InputError(f"{folder} has no list of decoder layers: use another drafter.")
    yield from rounded_layers(model, ".".join(trunk.path), settings, calibration)
