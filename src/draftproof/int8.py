"""Matrices as int8 with a scale a row."""

from __future__ import annotations

import torch
from torch import Tensor


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes -127..127 [outputs, depth] and one scale an output, by the largest magnitude; weight in float32."""
    scales = weight.abs().amax(dim=1) / 127.0
    codes = torch.where(scales[:, None] > 0, weight / scales[:, None], torch.zeros(())).round()
    return codes.to(torch.int8).contiguous(), scales.contiguous()
