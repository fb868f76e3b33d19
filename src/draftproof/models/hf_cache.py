"""Position-addressed, growable key and value entries of one request.

Layers of one kind share two tensors, so that moving the entries of an accepted path costs the same few operations for
30 layers as for one. Layers with a sliding window hold the window and the entries a rollback may need, not more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from draftproof.models.hf_layout import Feed, Sight, upload

SPARE = 64  # entries behind which a rollback is always possible, beyond the window itself
_DRAFTED = 256  # up to so many rows a call may be the verification of a draft, which goes back; above it is a prompt
_FIRST = 128


@dataclass(frozen=True)
class Kind:
    """Shape of the entries of a group of layers, and how they are attended to."""

    sight: Sight
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry in one layer."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize

    @property
    def most(self) -> int | None:
        """Entries that a layer with a window holds once the window is full, at one token a call; None: every entry."""
        return None if self.sight.window is None else self.sight.window + SPARE + self.slack

    @property
    def slack(self) -> int:
        """Entries a window's buffer holds beyond what it must, so that it need not be packed at every token."""
        return SPARE + (self.sight.window or 0) // 8


@dataclass(frozen=True)
class Layout:
    """Kinds of layers of a model, and of every layer its kind and its row in that kind's tensors."""

    kinds: tuple[Kind, ...]
    counts: tuple[int, ...]
    where: tuple[tuple[int, int], ...]
    device: torch.device
    max_context: int | None

    @classmethod
    def of(cls, layers: Sequence[Kind], device: torch.device, max_context: int | None) -> Layout:
        """Group the layers by kind."""
        kinds = tuple(dict.fromkeys(layers))
        rows = [0] * len(kinds)
        where: list[tuple[int, int]] = []
        for kind in layers:
            group = kinds.index(kind)
            where.append((group, rows[group]))
            rows[group] += 1
        return cls(kinds, tuple(rows), tuple(where), device, max_context)


class Store:
    """Entries of one kind's layers: keys [layers, heads, capacity, key_dim], values likewise.

    Entry n lies at n - start. `start` is above 0 only where a window let the oldest entries go. `rows` are the views
    [1, heads, capacity, dim] of every layer.
    """

    def __init__(self, layout: Layout, group: int) -> None:
        self.kind, self._layers = layout.kinds[group], layout.counts[group]
        self._device, self._most = layout.device, layout.max_context
        self.start = 0
        self.use(*self.empty(0))

    @property
    def capacity(self) -> int:
        """Entries the tensors have room for."""
        return self.keys.shape[2]

    def empty(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Tensors of that capacity, not yet the store's."""
        kind = self.kind
        shape = self._layers, kind.heads, capacity
        keys = torch.empty(*shape, kind.key_dim, dtype=kind.dtype, device=self._device)
        return keys, torch.empty(*shape, kind.value_dim, dtype=kind.dtype, device=self._device)

    def use(self, keys: Tensor, values: Tensor) -> None:
        """Make these the store's tensors."""
        self.keys, self.values = keys, values
        self.rows = list(zip(torch.split(keys, 1), torch.split(values, 1), strict=True))

    def reserve(self, held_to: int, total: int, needed_from: int) -> None:
        """Make room for entries up to `total`; of those held, up to `held_to`, the ones below `needed_from` may go."""
        start = self.start if self.kind.sight.window is None else max(self.start, needed_from)
        if total - self.start <= self.capacity and not self._oversized(total - start):
            return
        capacity, held = self._grown(total - start), slice(start - self.start, held_to - self.start)
        keys, values = self.keys[:, :, held], self.values[:, :, held]
        if capacity == self.capacity:
            keys, values = keys.clone(), values.clone()
        else:
            self.use(*self.empty(capacity))
        self.keys[:, :, : held_to - start], self.values[:, :, : held_to - start] = keys, values
        self.start = start

    def _grown(self, room: int) -> int:
        window = self.kind.sight.window
        if window is None:
            wanted = max(2 * self.capacity, room + _FIRST)
            return max(room, wanted if self._most is None else min(wanted, self._most))
        if room + self.kind.slack // 2 <= self.capacity and not self._oversized(room):
            return self.capacity
        return max(room, min(max(2 * self.capacity, _FIRST), self._bound(room, window)))

    def _bound(self, room: int, window: int) -> int:
        return max(room, window - 1 + SPARE) + self.kind.slack

    def _oversized(self, room: int) -> bool:
        """Did a long draft leave a window with more than twice the entries it needs?"""
        window = self.kind.sight.window
        return window is not None and self.capacity > 2 * self._bound(room, window)

    def move(self, length: int, keep: Sequence[int]) -> None:
        """Entries `keep` to the places behind `length`."""
        at = length - self.start
        source = upload(np.array(keep, dtype=np.int64) - self.start, self._device)
        for tensor in (self.keys, self.values):
            tensor[:, :, at : at + len(keep)] = tensor.index_select(2, source)

    def goes_back_to(self, length: int) -> bool:
        """Are all entries there that a token at position `length` may attend to?"""
        window = self.kind.sight.window
        return self.start == 0 or window is None or length == 0 or self.start <= length - window + 1


class Append:
    """Writes new entries behind the old ones, no copy of those."""

    def __init__(self, store: Store, before: int) -> None:
        self._rows, self._at = store.rows, before - store.start
        self.origin = store.start

    def write(self, row: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """New entries [1, heads, T, dim] of one layer; returns all its entries from `origin` on."""
        held_keys, held_values = self._rows[row]
        held_keys.narrow(2, self._at, keys.shape[2]).copy_(keys)
        held_values.narrow(2, self._at, keys.shape[2]).copy_(values)
        return held_keys, held_values

    def commit(self) -> None:
        """Nothing is left to do."""


class Replace:
    """Writes a long prompt into a window: attention sees all of it, the store gets the end of it.

    The new tensors replace the old ones in `commit`, so a call that fails leaves the cache as it was.
    """

    def __init__(self, store: Store, before: int, total: int, kept_from: int) -> None:
        self.origin = max(store.start, before - (store.kind.sight.window or before) + 1)
        self._held = self.origin - store.start, before - self.origin
        self._store, self._from, self._size = store, kept_from, total - kept_from
        self._keys, self._values = store.empty(self._size + store.kind.slack)

    def write(self, row: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As `Append.write`, but what it returns lives for this layer only."""
        held_keys, held_values = self._store.rows[row]
        keys = torch.cat([held_keys.narrow(2, *self._held), keys], 2)
        values = torch.cat([held_values.narrow(2, *self._held), values], 2)
        self._keys[row, :, : self._size] = keys[0, :, self._from - self.origin :]
        self._values[row, :, : self._size] = values[0, :, self._from - self.origin :]
        return keys, values

    def commit(self) -> None:
        """Put the new tensors in the old ones' place."""
        self._store.use(self._keys, self._values)
        self._store.start = self._from


@dataclass(eq=False)
class HfCache:
    """Entries of one request. Shallow ones went through the first `exit_layer` layers; `states` stand behind it."""

    layout: Layout
    length: int = 0
    shallow: int = 0
    exit_layer: int = 0
    states: list[Tensor] = field(default_factory=list)
    stores: tuple[Store, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.stores = tuple(Store(self.layout, group) for group in range(len(self.layout.kinds)))

    @property
    def nbytes(self) -> int:
        """Bytes held for keys, values and states."""
        tensors = [t for store in self.stores for t in (store.keys, store.values)] + self.states
        return sum(t.numel() * t.itemsize for t in tensors)

    def drop_shallow(self) -> None:
        """Forget the shallow entries."""
        self.shallow, self.exit_layer = 0, 0
        self.states.clear()

    def prepare(self, item: Feed, rows: int, described: int, whole: bool) -> list[Append | Replace]:
        """Make room for what `item` feeds; one writer a kind of layers.

        Rollback must stay possible to before a draft or a tree, and `SPARE` entries back in any case.
        whole: every layer will see all of it in this call.
        """
        spare = max(
            SPARE, rows if rows <= _DRAFTED else 0, item.total - item.linear, described if described > item.size else 0
        )
        after = item.total - spare if whole else min(item.total - spare, self.length - SPARE)
        writers: list[Append | Replace] = []
        for store in self.stores:
            window = store.kind.sight.window or 1
            kept = max(store.start, after - window + 1)
            replace = whole and store.kind.sight.window is not None and item.size > spare + store.kind.slack
            if replace and kept > store.start and item.total - store.start > store.capacity:
                writers.append(Replace(store, item.before, item.total, kept))
                continue
            held = self.length + self.shallow
            store.reserve(held, item.total, max(0, min(after, item.lowest) - window + 1))
            writers.append(Append(store, item.before))
        return writers

    def appenders(self, before: int) -> list[Append | Replace]:
        """Writers behind `before` where there is room already."""
        return [Append(store, before) for store in self.stores]

    def reusable(self, length: int) -> int:
        """The longest length <= `length` to go back to."""
        length = max(0, min(length, self.length))
        return length if all(store.goes_back_to(length) for store in self.stores) else 0

    def rollback(self, length: int, keep: Sequence[int]) -> None:
        """Keep entries [0, length), then `keep`."""
        moved = bool(keep) and any(store.start > length for store in self.stores)
        if self.reusable(length) != length or moved:
            raise ValueError(f"a cache of {self.length} entries cannot go back to {length}: ask `reusable` first")
        if any(not low < entry < self.length for low, entry in zip([length - 1, *keep], keep, strict=False)):
            raise ValueError(f"entries to keep must ascend and lie in {length}..{self.length - 1}, not {list(keep)}")
        self.drop_shallow()
        settled = next((i for i, entry in enumerate(keep) if entry != length + i), len(keep))
        for store in self.stores:
            if settled < len(keep):
                store.move(length + settled, keep[settled:])
            if length == 0 and not keep:
                store.start = 0
        self.length = length + len(keep)
