"""Topology of what is fed: which position every new entry has and which entries it may attend to.

Everything here is host data until a mask is built, so nothing has to be fetched from the device. Entries are numbered
by their place in the cache; in the linear part of a cache the number of an entry is its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.device import send
from draftproof.types import Cache, Segment

QUERY_ROWS = 512  # rows of one attention block; bounds the mask of a long prompt at QUERY_ROWS x entries
PACKED_ROWS = 64  # up to here the query heads that share a key head become rows of one matrix product


@dataclass(frozen=True, eq=False)
class Feed:
    """T new entries behind `before` old ones.

    linear     entries [0, linear) stand in a row; those behind them form a tree ("branching" entries)
    positions  [T] of the new entries
    limits     [T]: a new entry attends to entries [0, limit) of the linear part
    seen       [branching new, branching] bool: attended branching entries, itself included
    places     [branching] positions of all branching entries
    """

    before: int
    size: int
    linear: int
    positions: NDArray[np.int64]
    limits: NDArray[np.int64]
    seen: NDArray[np.bool_]
    places: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Entries behind the call."""
        return self.before + self.size

    @property
    def chained(self) -> int:
        """New entries that continue the linear part; they come first."""
        return self.size - len(self.seen)

    @property
    def lowest(self) -> int:
        """Smallest position fed; `before` if nothing is."""
        return int(self.positions.min(initial=self.before))

    @property
    def highest(self) -> int:
        """Largest position fed; -1 if nothing is."""
        return int(self.positions.max(initial=-1))


@dataclass(frozen=True)
class Sight:
    """What the attention of a group of layers has in common.

    window   a token attends to the last `window` positions, its own included; None: to all
    groups   query heads that share one key head
    softcap  scores are capped before the softmax (Gemma-2)
    """

    window: int | None
    groups: int
    softcap: bool


@dataclass(frozen=True, eq=False)
class Block:
    """Rows [start, stop) of a segment attend to entries [low, high).

    bias    0 or -inf to be added to the scores, [rows, high - low]; packed: [groups * rows, high - low]; None: all seen
    causal  no bias, because the entries are the rows themselves
    """

    start: int
    stop: int
    low: int
    high: int
    bias: Tensor | None = None
    causal: bool = False
    packed: bool = False


def feed(before: int, size: int, parents: Sequence[int]) -> Feed:
    """Read a segment's parents (`types.Segment`): of the last len(parents) of the before + size entries."""
    first = before + size - len(parents)
    if first < 0:
        raise ValueError(f"{len(parents)} parents describe more than the {before + size} entries there are")
    chain = _chain_length(parents)
    branching = len(parents) - chain
    seen = np.zeros((branching, branching), dtype=np.bool_)
    limits, places = [0] * branching, [0] * branching
    for i, parent in enumerate(parents[chain:]):
        if not -1 <= parent < chain + i:
            raise ValueError("parents[i] must be -1 or an earlier entry")
        if parent < chain:
            limits[i] = places[i] = first + parent + 1
        else:
            elder = parent - chain
            seen[i] = seen[elder]
            limits[i], places[i] = limits[elder], places[elder] + 1
        seen[i, i] = True
    new = min(branching, size)
    straight = np.arange(before, before + size - new, dtype=np.int64)
    tail = np.array(places, dtype=np.int64)
    positions = np.concatenate([straight, tail[branching - new :]])
    ends = np.concatenate([straight + 1, np.array(limits[branching - new :], dtype=np.int64)])
    return Feed(before, size, first + chain, positions, ends, seen[branching - new :], tail)


def blocks(item: Feed, sight: Sight, origin: int, dtype: torch.dtype, device: torch.device) -> list[Block]:
    """Attention of one segment through layers of one kind; entries below `origin` are not there.

    Built once a call and shared by those layers.
    """
    if 0 < item.size <= QUERY_ROWS and item.chained < item.size:
        return [_tree_block(item, sight, origin, (0, item.size), dtype, device)]
    result = _chain_blocks(item, sight, origin, dtype, device)
    for start in range(item.chained, item.size, QUERY_ROWS):
        rows = start, min(start + QUERY_ROWS, item.size)
        result.append(_tree_block(item, sight, origin, rows, dtype, device))
    return result


def upload(array: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    """Host data on the device, without waiting for it."""
    return send(torch.from_numpy(np.ascontiguousarray(array)), device)


def _chain_length(parents: Sequence[int]) -> int:
    if tuple(parents) == tuple(range(-1, len(parents) - 1)):
        return len(parents)
    return next(i for i, parent in enumerate(parents) if parent != i - 1)


def _chain_blocks(item: Feed, sight: Sight, origin: int, dtype: torch.dtype, device: torch.device) -> list[Block]:
    rows, before, window = item.chained, item.before, sight.window
    if rows == 1:
        return [Block(0, 1, _low(before, window, origin), before + 1, packed=not sight.softcap)]
    if before == 0 and not sight.softcap and (window is None or rows <= window):
        return [Block(0, rows, 0, rows, causal=True)] if rows else []
    height = min(rows, QUERY_ROWS)
    width = before + rows - origin if window is None else min(before + rows - origin, window - 1 + height)
    bias = _chain_bias(height, width, window, dtype, device) if rows else None
    result: list[Block] = []
    for start in range(0, rows, QUERY_ROWS):
        stop = min(start + QUERY_ROWS, rows)
        low, high = _low(before + start, window, origin), before + stop
        # Every block is a corner of the same staircase: its last row sees its last entry.
        part = None if bias is None else bias[height - (stop - start) :, width - (high - low) :]
        result.append(_packed(Block(start, stop, low, high, part), sight))
    return result


def _low(position: int, window: int | None, origin: int) -> int:
    return origin if window is None else max(origin, position - window + 1)


def _chain_bias(height: int, width: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Row r sees entry width - height + r, its own, and those before it, `window` in all."""
    hidden = torch.full((height, width), float("-inf"), dtype=dtype, device=device)
    own = width - height
    bias = hidden.triu(own + 1)
    return bias if window is None or window >= width else bias + hidden.tril_(own - window)


def _tree_block(
    item: Feed, sight: Sight, origin: int, rows: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Block:
    start, stop = rows
    window, places = sight.window, item.positions[start:stop]
    # A branching entry's number is above its position, so none of them may be cut off by the window's low end.
    low = min(_low(int(places.min()), window, origin), item.linear)
    ends = upload(np.stack([item.limits[start:stop], places])[:, :, None], device)
    numbers = torch.arange(low, item.total, device=device)
    visible = numbers < ends[0]
    if window is not None:
        visible &= numbers > ends[1] - window
    tail = np.zeros((stop - start, len(item.places)), dtype=np.bool_)
    chained = max(0, item.chained - start)
    tail[chained:] = item.seen[start + chained - item.chained : stop - item.chained]
    if window is not None:
        tail &= places[:, None] - item.places[None] < window
    visible[:, item.linear - low :] = upload(tail, device)
    bias = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, float("-inf"))
    return _packed(Block(start, stop, low, item.total, bias), sight)


def _packed(block: Block, sight: Sight) -> Block:
    if sight.softcap or block.bias is None or block.stop - block.start > PACKED_ROWS:
        return block
    return Block(block.start, block.stop, block.low, block.high, block.bias.repeat(sight.groups, 1), packed=True)


def plain(cache: Cache, tokens: Tensor, resume: int = 0) -> Segment:
    """Tokens in a row, a row of logits for each."""
    return Segment(cache, tokens, tuple(range(-1, len(tokens) - 1)), len(tokens), resume)
