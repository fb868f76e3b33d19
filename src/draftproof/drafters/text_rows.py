"""What a reduced output head lacks of a text's own words: rows of the target's head for the tokens of the context.

A head of the most frequent tokens misses names and rare words, and those that a text has used it uses again: of the
tokens that SmolLM2-135M writes and a head of 16,384 lacks, three in four stand in the context (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.contracts import Model, Shared, SharesWeights
from draftproof.device import upload
from draftproof.types import InputError, Segment

_MOST = 1024
_TRIED = 64
_FED = 8
_CLOSE = 0.02  # of the largest logit: rows in bfloat16, products in another order


class TextRows:
    """Rows for the tokens of one request's context that `known` [V] does not have, the latest 1,024 of them."""

    def __init__(self, shared: Shared, known: Sequence[bool], device: torch.device) -> None:
        self._shared, self._known, self._device = shared, known, device
        self._read, self._tokens = 0, dict[int, None]()
        self.ids = torch.empty(0, dtype=torch.int64, device=device)
        self.rows = torch.empty(0, shared.width, device=device)

    def read(self, context: Sequence[int]) -> None:
        """The context has grown to this."""
        new = [t for t in dict.fromkeys(context[self._read :]) if not self._known[t] and t not in self._tokens]
        self._read = len(context)
        if not new:
            return
        ids = upload(new, self._device)
        self.ids = torch.cat([self.ids, ids])[-_MOST:]
        self.rows = torch.cat([self.rows, self._shared.head_rows(ids).to(self._device)])[-_MOST:]
        self._tokens = dict.fromkeys(list(self._tokens | dict.fromkeys(new))[-_MOST:])

    def logits(self, states: Tensor) -> Tensor:
        """[R, len(ids)] behind the last layer's states [R, H]."""
        return self._shared.final_norm(states) @ self.rows.T


def text_rows(target: Model, ids: Tensor | None) -> tuple[Shared, list[bool]] | None:
    """What `TextRows` needs where a head knows `ids` alone; None where it knows all, or the target's rows are no help.

    Whether logits are products of its rows, without a bias, a scale or a cap, is tried with a few tokens.
    """
    if ids is None or "hidden" not in target.can or not isinstance(target, SharesWeights):
        return None
    try:
        shared = target.shared()
    except InputError:
        return None
    tried = torch.arange(0, target.vocab_size, max(1, target.vocab_size // _TRIED), device=target.device)
    fed = tried[-_FED:]
    segment = Segment(target.new_cache(), fed, tuple(range(-1, len(fed) - 1)), len(fed))
    (output,) = target.forward([segment], (target.num_layers,))
    if output.hidden is None:
        return None
    made = shared.final_norm(output.hidden[:, 0]) @ shared.head_rows(tried).to(target.device).T
    expected = output.logits[:, tried].float()
    if not (made - expected).abs().max() < _CLOSE * expected.abs().max():
        return None
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[ids.cpu()] = True
    return shared, known.tolist()
