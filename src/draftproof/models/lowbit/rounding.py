"""Rounding of weight matrices to a grid of 4 bits.

Error-compensated rounding is GPTQ (Frantar et al. 2210.17323, algorithm 1): inputs are rounded one after the other, and
what each leaves as an error in the outputs is made good by the inputs that follow, along the inverse of the Hessian of
the layer's squared error, H = E[x xᵀ] over the inputs x of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 15
_BLOCK = 32  # small enough that no thread waits for another within a block
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


@dataclass(frozen=True, eq=False)
class Rounded:
    """Weights `scale * code + minimum`: codes [outputs, depth] uint8, scales and minima [outputs, groups] float16."""

    codes: Tensor
    scales: Tensor
    minima: Tensor

    def dense(self) -> Tensor:
        """[outputs, depth] float32."""
        size = self.codes.shape[1] // self.scales.shape[1]
        scales, minima = (part.float().repeat_interleave(size, 1) for part in (self.scales, self.minima))
        return self.codes.float() * scales + minima


def nearest(weight: Tensor, group: int) -> Rounded:
    """Every weight to the nearest point of a grid that spans its group; weight [outputs, depth] float32."""
    scales, minima = _span(weight.view(len(weight), -1, group))
    wide = (part.float().repeat_interleave(group, 1) for part in (scales, minima))
    return Rounded(_codes(weight, *wide).to(torch.uint8), scales, minima)


def compensated(weight: Tensor, hessian: Tensor, group: int, damping: float = 0.01) -> Rounded:
    """GPTQ on a grid chosen beforehand for each group, the inputs with the largest Hessian entries first.

    hessian [depth, depth] float32, E[x xᵀ]; `damping` is added to its diagonal as a share of the diagonal's mean.
    """
    importance = hessian.diagonal()
    scales, minima = _best_span(weight, importance, group)
    order = importance.argsort(descending=True)
    wide = [part.float().T.repeat_interleave(group, 0)[order] for part in (scales, minima)]
    codes = _in_turn(weight.T[order], _inverse_root(hessian[order][:, order], damping), *wide)
    return Rounded(codes[order.argsort()].T.to(torch.uint8).contiguous(), scales, minima)


def _in_turn(left: Tensor, root: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """Codes of every input, its error spread over the inputs behind it; all [depth, outputs] but root [depth, depth].

    `left` is used up; `root` is upper triangular.
    """
    codes = torch.empty_like(left)
    for first in range(0, len(left), _BLOCK):
        block = slice(first, first + _BLOCK)
        part, inner, slopes = left[block], root[block, block], root[block, block].diagonal().tolist()
        errors = torch.empty_like(part)
        for j, slope in enumerate(slopes):
            at = first + j
            codes[at] = _codes(part[j], scales[at], minima[at])
            errors[j] = (part[j] - torch.addcmul(minima[at], codes[at], scales[at])) / slope
            part[j + 1 :].addr_(inner[j, j + 1 :], errors[j], alpha=-1)
        left[first + _BLOCK :].addmm_(root[block, first + _BLOCK :].T, errors, alpha=-1)
    return codes


def _inverse_root(hessian: Tensor, damping: float) -> Tensor:
    """Upper Cholesky factor of the inverse; the damping grows until the matrix is positive definite."""
    mean = hessian.diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny)
    eye = torch.eye(len(hessian), device=hessian.device)
    while True:
        lower, failed = torch.linalg.cholesky_ex(hessian + damping * mean * eye)
        root, again = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed and not again:
            found: Tensor = root
            return found
        damping *= 10


def _codes(weight: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """Nearest codes 0 ... 15, as floats."""
    return torch.where(scales > 0, (weight - minima) / scales, 0.0).round().clamp(0, LEVELS)


def _span(groups: Tensor, low: float = 1.0, high: float = 1.0) -> tuple[Tensor, Tensor]:
    """(scales, minima) [outputs, groups] float16 of a grid over each group [outputs, groups, size], ends shrunk."""
    minima = (groups.amin(2) * low).to(torch.float16)
    return ((groups.amax(2) * high - minima.float()) / LEVELS).clamp_min(0).to(torch.float16), minima


def _best_span(weight: Tensor, importance: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """The span whose rounding errors, weighed by the inputs' importance [depth], are smallest in each group."""
    groups, weights = weight.view(len(weight), -1, group), importance.view(1, -1, group)
    best_error = torch.full(groups.shape[:2], float("inf"), device=weight.device)
    best = [torch.zeros_like(part) for part in _span(groups)]
    for low in _SHRINKS:
        for high in _SHRINKS:
            found = _span(groups, low, high)
            scales, minima = (part.float()[:, :, None] for part in found)
            off = _codes(groups, scales, minima) * scales + minima - groups
            error = (off.square() * weights).sum(2)
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best = [torch.where(better, new, old) for new, old in zip(found, best, strict=True)]
    return best[0], best[1]
