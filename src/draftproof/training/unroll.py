"""A head over whole texts, several steps deep: the training-time test of EAGLE-3 (Li et al. 2503.01840, section 3.2).

In step 0 an entry is made of the target's true state; in step k entry j is made of the head's own state of entry j - 1
from step k - 1. It sees the true entries up to j - k and its own path, one entry of each later step, which is what
`drafters.eagle` computes when it drafts. B texts of T entries, M entries with something to learn, A of them in the
longest run, H the head's width. Only what is needed is computed: of other entries keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.drafters.eagle_head import EagleHead


@dataclass(frozen=True, eq=False)
class Runs:
    """Where the entries to learn from lie: one run a text. text, entry, offset [M]: of each; first [B]: of each run."""

    text: Tensor
    entry: Tensor
    offset: Tensor
    first: Tensor
    longest: int

    @classmethod
    def of(cls, mask: Tensor) -> Runs:
        """mask [B, T] bool, one run of True in every row that has any."""
        text, entry = mask.nonzero().unbind(1)
        first = mask.int().argmax(1)
        offset = entry - first[text]
        return cls(text, entry, offset, first, int(offset.max()) + 1)

    def window(self, x: Tensor, texts: int) -> Tensor:
        """[heads, M, d] -> [B, heads, A, d]."""
        wide = x.new_zeros(texts, self.longest, x.shape[0], x.shape[2])
        return wide.index_put((self.text, self.offset), x.transpose(0, 1)).transpose(1, 2)


def unroll(head: EagleHead, embedded: Tensor, states: Tensor, mask: Tensor, steps: int) -> list[Tensor]:
    """[M, H] a step: the head's own states of the masked entries; in step k those at an offset below k mean nothing.

    embedded [B, T, H]: of token j + 1. states [B, T, L, target_hidden]: the target's, of token j.
    """
    texts, length = mask.shape
    runs = Runs.of(mask)
    seen = mask.flip(1).int().cummax(1).values.flip(1).bool()  # up to the end of each run
    chosen = mask[seen]
    entered, residual = head.enter(embedded[seen], head.combine(states[seen].float()).float())
    positions = seen.nonzero()[:, 1]
    q, k, v = head.project(entered, head.angles(positions))
    true_keys, true_values = (_whole(one.to(v.dtype), seen) for one in (k, v))
    angles, flat = head.angles(runs.entry), embedded[mask]
    query, residual = q[:, chosen], residual[chosen]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    made: list[Tensor] = []
    for step in range(steps):
        sight = _sight(runs, length, step)
        window = runs.window(query.to(v.dtype), texts)
        mixed = attend(window, (true_keys, true_values), sight, keys, values)
        attended = mixed.transpose(1, 2)[runs.text, runs.offset].flatten(1)
        own = head.leave(attended, residual)
        made.append(own)
        if step + 1 < steps:
            before = torch.nn.functional.pad(own, (0, 0, 1, 0))[:-1].float()
            entered, residual = head.enter(flat, before)
            query, key, value = head.project(entered, angles)
            keys.append(runs.window(key.to(v.dtype), texts))
            values.append(runs.window(value, texts))
    return made


def attend(
    queries: Tensor, true: tuple[Tensor, Tensor], sight: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> Tensor:
    """[B, heads, A, d] for queries of the like.

    true: keys and values [B, kv_heads, T, d] of step 0, of which `sight` [B, 1, A, T] is seen. keys, values
    [B, kv_heads, A, d]: of the later steps; query a of step k sees entry a - k + m of step m.
    """
    if not keys:
        return torch.nn.functional.scaled_dot_product_attention(queries, *true, attn_mask=sight, enable_gqa=True)
    groups = queries.shape[1] // true[0].shape[1]
    step, length, scale = len(keys), true[0].shape[2], queries.shape[3] ** -0.5
    own_keys = [_late(key, step - m, groups) for m, key in enumerate(keys, 1)]
    own_values = [_late(value, step - m, groups) for m, value in enumerate(values, 1)]
    scores = (queries @ true[0].repeat_interleave(groups, 1).transpose(-1, -2)).float() * scale
    scores = scores.masked_fill(~sight, float("-inf"))
    path = torch.stack([(queries * key).sum(-1).float() * scale for key in own_keys], -1)
    weights = torch.softmax(torch.cat([scores, path], -1), -1).to(queries.dtype)
    mixed = weights[..., :length] @ true[1].repeat_interleave(groups, 1)
    for m, value in enumerate(own_values):
        mixed = mixed + weights[..., length + m, None] * value
    return mixed


def _sight(runs: Runs, length: int, step: int) -> Tensor:
    """[B, 1, A, T] bool: query a sees the true entries up to its own, less `step`."""
    last = runs.first[:, None] + torch.arange(runs.longest, device=runs.first.device) - step
    seen: Tensor = torch.arange(length, device=runs.first.device) <= last[:, :, None]
    return seen[:, None]


def _whole(x: Tensor, seen: Tensor) -> Tensor:
    """[heads, N, d] -> [B, heads, T, d], zeros where nothing is seen."""
    wide = x.new_zeros(*seen.shape, x.shape[0], x.shape[2])
    return wide.index_put(tuple(seen.nonzero().unbind(1)), x.transpose(0, 1)).transpose(1, 2)


def _late(x: Tensor, entries: int, groups: int) -> Tensor:
    """[B, kv_heads, A, d] moved down by so many entries, each head repeated for its group of queries."""
    moved = torch.nn.functional.pad(x, (0, 0, entries, 0))[:, :, : x.shape[2]]
    return moved.repeat_interleave(groups, 1)
