"""What a target tells its pupil: embeddings, and its rows over the draft vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.contracts import Shared


class Teacher:
    """V tokens of the draft vocabulary, H the target's width."""

    def __init__(self, shared: Shared, ids: Tensor, device: torch.device | str = "cpu") -> None:
        """ids [V] int64: the tokens that rows are wanted of."""
        self.ids = ids.to(device)
        self._shared = shared
        self._weight = shared.head_rows(ids).to(device)

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., H] of the tokens [...]; each token is read once."""
        different, places = torch.unique(tokens, return_inverse=True)
        return self._shared.embed(different).to(tokens.device)[places]

    @torch.no_grad()
    def rows(self, states: Tensor) -> Tensor:
        """[M, V] float32: the target's distribution among the draft vocabulary behind its last states [M, H]."""
        normed = self._shared.final_norm(states.float()).to(self._weight.device)
        return torch.softmax(torch.nn.functional.linear(normed, self._weight).float(), -1)


@torch.no_grad()
def expected_counts(shared: Shared, states: Tensor, chunk: int = 256) -> Tensor:
    """[vocab] float64: how often each token is expected behind the last states [M, H]: the sum of the target's rows.

    Smoother than counting what was written: tokens that could have been written count too.
    """
    product, counts = shared.head(), torch.zeros(0)
    device = shared.head_rows(torch.zeros(1, dtype=torch.int64)).device
    for part in torch.split(states, chunk):
        row = torch.softmax(product(shared.final_norm(part.to(device).float())).float(), -1).sum(0).double().cpu()
        counts = row if not len(counts) else counts + row
    return counts
