"""A language model that is an exact table: every prefix has its own random row, found again from seeds alone.

For tests, audits and examples: no weights, no rounding between call shapes, and a cache whose content can be read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Twin
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.lowbit.store import vocabulary
from draftproof.types import Cache, InputError, Output, Segment

_LAYERS = 4


class ToyCache:
    """Tokens of every entry; those in `shallow` went through the first layers only."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.shallow: list[int] = []

    @property
    def length(self) -> int:
        """Entries that went through every layer."""
        return len(self.tokens)


class ToyModel:
    """Random logits for the last `order` tokens of the prefix (0: the whole prefix).

    `near` = (seed, weight) mixes in the rows of another toy model: a draft as good as one likes. An exit at layer l
    of 4 gives rows that approach the model's own as l grows.
    """

    can = frozenset({"rollback", "tree", "early_exit", "invariant", "lowbit"})
    num_layers = _LAYERS
    device = torch.device("cpu")

    def __init__(
        self,
        seed: int = 0,
        vocab_size: int = 16,
        order: int = 3,
        near: tuple[int, float] | None = None,
        max_context: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if vocab_size < 2:
            raise InputError(f"a toy model needs at least 2 tokens, not {vocab_size}.")
        self.name = f"toy:{seed}"
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.fed = 0
        self.calls = 0
        self._seed, self._order, self._near, self._dtype = seed, order, near, dtype
        self.dtype = str(dtype).removeprefix("torch.")
        self._row = lru_cache(maxsize=65536)(self._make_row)

    def new_cache(self) -> Cache:
        """An empty cache."""
        return ToyCache()

    def lowbit(self, settings: LowBit, calibration: Calibration) -> Twin:
        """A table whose rows lie near this one's, the nearer the more bits it has; its caches are this table's."""
        near = (self._seed, 1 - 2.0 ** (1 - settings.bits))
        twin = _Narrow(self._seed + 104729, self.vocab_size, self._order, near, self.max_context, self._dtype)
        twin.ids = vocabulary(self.vocab_size, settings, calibration.always, ())
        return Twin(twin, twin.ids, 0, ahead=2)

    def row(self, prefix: Sequence[int], exit_layer: int | None = None) -> Tensor:
        """[V] logits behind the prefix; a shared tensor, not to be written to."""
        layer = self.num_layers if exit_layer is None else exit_layer
        return self._row(tuple(prefix[-self._order :] if self._order else prefix), layer)

    def _make_row(self, prefix: tuple[int, ...], layer: int) -> Tensor:
        logits = _noise(self._seed, prefix, self.vocab_size)
        if self._near is not None:
            seed, weight = self._near
            logits = weight * _noise(seed, prefix, self.vocab_size) + (1 - weight) * logits
        share = layer / self.num_layers
        if share < 1:
            logits = share * logits + (1 - share) * _noise(self._seed + 7919 * (layer + 1), prefix, self.vocab_size)
        return logits.to(self._dtype)

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        """One call: append the tokens, return the rows of the prefixes they end."""
        if layers:
            raise InputError("a toy model has no hidden states: use a drafter that needs none.")
        self.calls += 1
        return [self._one(segment, exit_layer) for segment in segments]

    def _one(self, segment: Segment, exit_layer: int | None) -> Output:
        cache = segment.cache
        assert isinstance(cache, ToyCache)
        new = segment.tokens.tolist()
        self.fed += len(new) if exit_layer is None else 0
        if exit_layer is None:
            if segment.resume > len(cache.shallow) or new[: segment.resume] != cache.shallow[: segment.resume]:
                raise ValueError("resume must name tokens that are shallow entries already")
            cache.shallow.clear()
            cache.tokens += new
            held = cache.tokens
        else:
            cache.shallow += new
            held = cache.tokens + cache.shallow
        base = len(held) - len(segment.parents)
        ends = range(len(segment.parents) - segment.rows, len(segment.parents))
        paths = [[held[base + node] for node in tree.path(segment.parents, end)] for end in ends]
        rows = [self.row([*held[:base], *path], exit_layer) for path in paths]
        return Output(torch.stack(rows) if rows else torch.empty(0, self.vocab_size, dtype=self._dtype))

    def reusable(self, cache: Cache, length: int) -> int:
        """Any prefix can be gone back to."""
        return min(length, cache.length)

    def rollback(self, cache: Cache, length: int, keep: Sequence[int] = ()) -> None:
        """Afterwards: entries [0, length), then `keep`; no shallow ones."""
        assert isinstance(cache, ToyCache)
        if length > cache.length or any(not length <= entry < cache.length for entry in keep):
            raise ValueError(f"cannot keep entries that a cache of {cache.length} does not hold")
        cache.tokens = cache.tokens[:length] + [cache.tokens[entry] for entry in keep]
        cache.shallow.clear()


class _Narrow(ToyModel):
    """A toy model with logits for some of its tokens."""

    ids: Tensor | None = None

    def _one(self, segment: Segment, exit_layer: int | None) -> Output:
        logits = super()._one(segment, exit_layer).logits
        return Output(logits if self.ids is None else logits[:, self.ids])


def _noise(seed: int, prefix: tuple[int, ...], size: int) -> Tensor:
    rng = random.Random(f"{seed}:{prefix}")
    return torch.tensor([3.0 * (rng.random() - 0.5) / (0.15 + rng.random()) for _ in range(size)], dtype=torch.float64)
