"""Rounding to four bits, with and without compensation, and the Hessians that compensation weighs errors by."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models.hf_models import build, tokens
from torch import Tensor, nn

from draftproof.models.lowbit.calibrate import rounded_layers
from draftproof.models.lowbit.rounding import Rounded, compensated, nearest
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.types import InputError

TEXTS = [tokens(60, 1), tokens(45, 2)]


def problem(outputs: int, depth: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights and the Hessian of inputs that depend on each other."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4 * depth, depth, generator=draw) @ torch.randn(depth, depth, generator=draw)
    return torch.randn(outputs, depth, generator=draw), inputs.T @ inputs / len(inputs)


def error(rounded: Rounded, weight: Tensor, hessian: Tensor) -> float:
    off = rounded.dense() - weight
    return float(torch.einsum("oi,ij,oj->", off, hessian, off))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("group", [32, 64])
def test_compensation_leaves_a_smaller_error_in_the_outputs(seed: int, group: int) -> None:
    weight, hessian = problem(48, 128, seed)
    plain, better = nearest(weight, group), compensated(weight, hessian, group)
    assert error(better, weight, hessian) < 0.6 * error(plain, weight, hessian)
    assert int(better.codes.max()) <= 15 and better.scales.shape == (48, 128 // group)


def test_every_weight_is_within_half_a_step_of_its_nearest_point() -> None:
    weight, _ = problem(20, 64, 9)
    rounded = nearest(weight, 32)
    steps = rounded.scales.float().repeat_interleave(32, 1)
    assert ((rounded.dense() - weight).abs() <= 0.52 * steps + 1e-3).all()


@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
def test_weights_on_a_grid_stay_there(rounding: str) -> None:
    codes = torch.randint(0, 16, (24, 64), dtype=torch.uint8)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    on_grid = Rounded(codes, torch.full((24, 2), 0.25).half(), torch.full((24, 2), -2.0).half())
    _, hessian = problem(24, 64, 3)
    weight = on_grid.dense()
    made = nearest(weight, 32) if rounding == "nearest" else compensated(weight, hessian, 32)
    assert torch.equal(made.codes, codes)


def test_inputs_that_never_come_are_no_trouble() -> None:
    weight, hessian = problem(16, 64, 4)
    hessian[5], hessian[:, 5] = 0, 0
    assert torch.isfinite(compensated(weight, hessian, 32).dense()).all()
    assert torch.isfinite(compensated(weight, torch.zeros(64, 64), 32).dense()).all()
    assert torch.isfinite(compensated(torch.zeros(16, 64), hessian, 32).dense()).all()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "mistral"])
def test_layers_are_rounded_with_the_hessians_of_the_model_itself(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.models.hf_layers import find_layers
    from draftproof.models.lowbit import calibrate

    model = build(family)
    trunk = find_layers(model, model.config.num_hidden_layers)
    assert trunk is not None
    path = ".".join(trunk.path)
    expected = own_hessians(copy.deepcopy(model), path)
    seen: list[Tensor] = []

    def watched(weight: Tensor, hessian: Tensor, group: int) -> Rounded:
        seen.append(hessian)
        return nearest(weight, group)

    monkeypatch.setattr(calibrate, "compensated", watched)
    names = [name for name, _ in rounded_layers(model, path, LowBit(group=32), Calibration(lambda: TEXTS))]
    assert len(names) == len(expected)
    for name, hessian in zip(names, seen, strict=True):
        torch.testing.assert_close(hessian, expected[name], rtol=1e-3, atol=1e-4)
    assert all(type(layer).__name__ != "_Recorder" for layer in model.get_submodule(path))


def own_hessians(model: Any, path: str) -> dict[str, Tensor]:
    """The same in one pass of the whole model."""
    sums: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].reshape(-1, module.in_features)
            sums[name] = sums.get(name, 0) + rows.T @ rows

        return add

    for name, module in model.get_submodule(path).named_modules():
        if type(module) is nn.Linear and module.in_features % 32 == 0:
            module.register_forward_pre_hook(hook(f"{path}.{name}.weight"))
    with torch.no_grad():
        for text in TEXTS:
            model(torch.tensor([text]), use_cache=False)
    count = sum(map(len, TEXTS))
    return {name: total / count for name, total in sums.items()}


def test_inputs_that_are_not_finite_are_refused() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[TEXTS[0][0]] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        list(rounded_layers(model, "model.layers", LowBit(group=32), Calibration(lambda: TEXTS)))
