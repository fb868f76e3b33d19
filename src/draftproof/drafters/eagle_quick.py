"""A head's step for one request on a CPU in numpy: for so few numbers torch's calls cost more than what they compute.

The same mathematics as `eagle_head.EagleHead` and `eagle.HeadCache.attend`, to which tests hold it; the products are
those of the target's backend in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof import tree
from draftproof.drafters.eagle_head import EagleHead
from draftproof.types import Segment

Floats = NDArray[np.float32]


class Entries(Protocol):
    """Keys and values of one request; `eagle.HeadCache` is one."""

    coming: list[int]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Entries [kv_heads, n, d] at the positions `coming`."""

    def held(self) -> tuple[Tensor, Tensor]:
        """[kv_heads, n, d] of all entries, those being drafted included."""


def fits(head: EagleHead, segments: Sequence[Segment]) -> bool:
    """One request, of which one row is wanted, on a chain, by a head of the usual make."""
    c = head.config
    usual = c.layout == "eagle3" and not c.qk_norm and head.device.type == "cpu"
    return usual and len(segments) == 1 and segments[0].rows == 1 and tree.is_chain(segments[0].parents)


class QuickHead:
    """The parts of a serving head as numpy sees them."""

    def __init__(self, head: EagleHead) -> None:
        c, self._head = head.config, head
        self._eps, self._heads, self._kv, self._width = c.eps, c.heads, c.kv_heads, c.head_dim
        self._before = c.norm_before_residual
        self._norms = {
            name: part.weight.detach().float().numpy()
            for name in ("embedding_norm", "state_norm", "mlp_norm", "norm")
            if (part := getattr(head, name)) is not None
        }
        self._frequencies = head.frequencies.numpy()

    def step(self, embedded: Tensor, states: Tensor, cache: Entries) -> tuple[Tensor, Tensor]:
        """(the head's own state [1, H], logits [1, draft vocabulary]) behind the last of n entries.

        embedded, states [n, H] as `EagleHead.enter` takes them.
        """
        given = states.float().numpy()
        normed = self._norm(given, "state_norm")
        parts = self._product(
            "qkv", np.concatenate([self._norm(embedded.float().numpy(), "embedding_norm"), normed], 1)
        )
        heads = parts.reshape(len(parts), -1, self._width)
        angles = self._angles(cache.coming)
        keys = rotated(heads[:, self._heads : self._heads + self._kv], angles)
        query = rotated(heads[-1:, : self._heads], (angles[0][-1:], angles[1][-1:]))
        values = heads[:, self._heads + self._kv :]
        cache.append(*(torch.from_numpy(one.transpose(1, 0, 2)) for one in (keys, values)))
        residual = (normed if self._before else given)[-1:]
        own = self._leave(self._attend(query[0], *cache.held()), residual)
        final = self._norm(own, "norm") if "norm" in self._norms else own
        logits: Tensor = self._head.lm_head(torch.from_numpy(final))
        return torch.from_numpy(own), logits

    def _attend(self, query: Floats, keys: Tensor, values: Tensor) -> Floats:
        """[1, heads * d] for the query [heads, d]."""
        grouped = query.reshape(self._kv, -1, self._width).transpose(0, 2, 1)
        scores = np.matmul(keys.numpy(), grouped) * np.float32(self._width**-0.5)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        mixed: Floats = np.matmul(weights.transpose(0, 2, 1), values.numpy())
        return mixed.reshape(1, -1)

    def _leave(self, attended: Floats, residual: Floats) -> Floats:
        state = residual + self._product("out", attended)
        both = self._product("gate_up", self._norm(state, "mlp_norm"))
        gate, up = np.split(both, 2, 1)
        return state + self._product("down", gate / (1 + np.exp(-gate)) * up)

    def _norm(self, x: Floats, name: str) -> Floats:
        mean = np.square(x).mean(1, keepdims=True)
        made: Floats = x / np.sqrt(mean + np.float32(self._eps)) * self._norms[name]
        return made

    def _product(self, name: str, x: Floats) -> Floats:
        layer: Any = getattr(self._head, name)
        made: Floats = layer(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return made

    def _angles(self, positions: Sequence[int]) -> tuple[Floats, Floats]:
        """Cosines and sines [n, 1, d / 2]."""
        half = np.array(positions, np.float32)[:, None, None] * self._frequencies
        scale = np.float32(self._head.rope_scale)
        return np.cos(half) * scale, np.sin(half) * scale


def rotated(x: Floats, angles: tuple[Floats, Floats]) -> Floats:
    """x [n, heads, d] turned by the angles [n, 1, d / 2]: the halves of d are the two coordinates."""
    cosines, sines = angles
    one, other = np.split(x, 2, 2)
    return np.concatenate([one * cosines - other * sines, other * cosines + one * sines], 2)
