"""Host numbers on a device without waiting for it: a step synchronises once, when its results come back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """[n] the numbers as a tensor; the copy is queued behind the device's other work."""
    return send(torch.tensor(values, dtype=dtype), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device; CUDA takes it from pinned memory, else the copy would wait."""
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
