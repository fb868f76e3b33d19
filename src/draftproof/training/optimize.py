"""Muon for matrices, AdamW for all else, both torch's, and transformers' cosine over the budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_TICKS = 10_000
_WARM = 0.02
_MOST_NORM = 1.0


class Optimizer:
    """Steps of both optimizers under one schedule that follows the share of the budget that is spent."""

    def __init__(self, module: nn.Module, rate: float) -> None:
        """rate: of AdamW; Muon's updates are scaled to AdamW's size and take the same (2502.16982, equation 4)."""
        from transformers import get_cosine_schedule_with_warmup

        matrices, others = _split(module)
        made: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)]
        if matrices:
            muon: Any = torch.optim.Muon
            made.append(muon(matrices, lr=rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
        self._module, self._made = module, made
        self._schedules = [get_cosine_schedule_with_warmup(one, int(_WARM * _TICKS), _TICKS) for one in made]
        self._ticks = 0

    def step(self, loss: torch.Tensor, share: float) -> None:
        """Backward, clip, step; then on to the learning rate of this share of the budget. It begins at 0."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), _MOST_NORM)
        for one in self._made:
            one.step()
            one.zero_grad()
        while self._ticks < min(share, 1.0) * _TICKS - 0.5:
            self._ticks += 1
            for schedule in self._schedules:
                schedule.step()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "ticks": self._ticks,
            "optimizers": [one.state_dict() for one in self._made],
            "schedules": [one.state_dict() for one in self._schedules],
        }

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._ticks = state["ticks"]
        for one, saved in zip(self._made, state["optimizers"], strict=True):
            one.load_state_dict(saved)
        for schedule, saved in zip(self._schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)


def _split(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(matrices that map states to states, everything else: norms, biases, the output head)."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        inner = parameter.dim() == 2 and not name.startswith("lm_head")
        (matrices if inner else others).append(parameter)
    return matrices, others
