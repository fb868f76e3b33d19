"""What is made small: the distance of the head's rows from the target's, or that less the expected accepted length.

M positions, V the draft vocabulary. p is the target's row over the draft vocabulary, q the head's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from draftproof.types import Proposal
from draftproof.verify import TokenRule, expected_accepted

Loss = Literal["distance", "length"]
LOSSES: tuple[Loss, ...] = ("distance", "length")


def distance(logits: Tensor, p: Tensor) -> Tensor:
    """[M]: cross-entropy of q to p, the Kullback-Leibler distance up to what does not depend on q."""
    return torch.nn.functional.cross_entropy(logits.float(), p, reduction="none")


def accepted_length(p: Tensor, q: Tensor) -> Tensor:
    """[M]: expected accepted length of chains [M, N] whose tokens the target wrote; p, q their chances in both rows.

    The stops are those of `verify.TokenRule` with the roles exchanged: for a token x drawn from p the rule accepts with
    min(1, q(x) / p(x)), whose mean over x is sum min(p, q), as for drafts drawn from q (Leviathan et al. 2211.17192,
    theorem 3.5). Only the chances of the chain's own tokens enter the stops, so rows of two outcomes will do.
    """
    count = p.shape[1]
    parents = tuple(range(-1, count - 1))
    tokens = torch.zeros(count, dtype=torch.int64, device=p.device)

    def length(drafted: Tensor, judged: Tensor) -> Tensor:
        proposal = Proposal(tokens, parents, torch.stack([drafted, 1 - drafted], -1))
        rows = torch.stack([judged, 1 - judged], -1)
        stops = TokenRule().outcomes(proposal, torch.cat([rows, rows[-1:]])).stops
        return expected_accepted(proposal, stops)

    found: Tensor = torch.vmap(length)(p, q)
    return found


def chain_chances(rows: Sequence[Tensor], tokens: Tensor, otherwise: float) -> Tensor:
    """[M, N]: the chance that row i of each chain gives its token [M, N]; `otherwise` for -1, one without a logit."""
    found = []
    for i, row in enumerate(rows):
        own = row.gather(1, tokens[:, i : i + 1].clamp(min=0))[:, 0]
        found.append(torch.where(tokens[:, i] < 0, otherwise, own))
    return torch.stack(found, 1)
