"""The sampler that requests use: `sampling.Sampler` with quicker forms of its last stages on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftproof import kernels
from draftproof.sampling import Sampler, Stages, nucleus_by_sort, nucleus_threshold, probabilities, softmax
from draftproof.types import SamplingParams

_LIKELY = 1e-3


class FastSampler(Sampler):
    """Sampler whose last stages are compiled, and whose top-p needs no full sort where they are not.

    filters: all that lies between scores and distribution, None where some of it is not compiled.
    """

    def __init__(self, params: SamplingParams, prompt_length: int, stop_tokens: Sequence[int] = ()) -> None:
        super().__init__(params, prompt_length, stop_tokens)
        known = params.temperature > 0 and params.top_k == 0 and params.typical_p == 1
        self.filters = kernels.Filters(params.temperature, params.top_p, params.min_p) if known else None

    def probabilities(self, scores: Tensor) -> Tensor:
        """[R, V] as in the reference."""
        if self.filters is not None and kernels.usable(scores):
            return _compiled(scores, self.filters)
        return probabilities(scores, self.params, self._stages(scores))

    def _stages(self, scores: Tensor) -> Stages:
        """On other devices than a CPU a sort is quick, and a look at values is not."""
        if scores.device.type != "cpu":
            return Stages(softmax, nucleus_by_sort)
        return Stages(_softmax if kernels.usable(scores) else softmax, nucleus_by_cut)


def _compiled(scores: Tensor, filters: kernels.Filters) -> Tensor:
    out = torch.empty_like(scores)
    kernels.distributions(scores.numpy(), filters, out.numpy())
    return out


def _softmax(scores: Tensor, temperature: float) -> Tensor:
    return _compiled(scores, kernels.Filters(temperature))


def nucleus_by_cut(probs: Tensor, top_p: float) -> Tensor:
    """`nucleus_by_sort` on the few tokens that can matter.

    All tokens below (1 - top_p) / V together weigh less than 1 - top_p, so the nucleus lies above that cut; mostly
    it lies above a much higher one.
    """
    thresholds = []
    for row in probs.numpy():
        for cut in (_LIKELY, (1 - top_p) / len(row) / 2):
            likely = row[row >= cut]
            if likely.sum(dtype=np.float64) >= top_p:
                break
        ordered = torch.from_numpy(-np.sort(-likely)) if len(likely) else probs.new_full((1,), float("nan"))
        thresholds.append(nucleus_threshold(ordered[None], top_p)[0])
    return torch.stack(thresholds)
