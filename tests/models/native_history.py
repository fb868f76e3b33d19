"""Random histories of calls and rollbacks, every row of which must have the bits of plain decoding."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from models.native_models import chain_segment

from draftproof.models.native.model import NativeModel
from draftproof.types import Segment


class Plain:
    """Logits behind a text when its tokens are fed one at a time, alone, by one thread."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], bytes] = {}

    def __call__(self, text: tuple[int, ...]) -> bytes:
        if text not in self._known:
            cache = self._model.new_cache()
            for end in range(1, len(text) + 1):
                logits = self._model.forward([chain_segment(cache, [text[end - 1]])])[0].logits
                self._known[text[:end]] = logits.numpy().tobytes()
        return self._known[text]


@dataclass
class History:
    """One request on a random walk: its cache, its committed text, and the tree behind it."""

    cache: Any
    text: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def text_at(self, node: int) -> tuple[int, ...]:
        return (*self.text, *(self.nodes[i] for i in self.path(node)))

    def grow(self, rng: random.Random) -> Segment:
        """A chain or a random tree, below the nodes already in the cache."""
        count, bushy = rng.randint(1, 16), rng.random() < 0.6
        for _ in range(count):
            here = len(self.nodes)
            self.parents.append(rng.randint(-1, here - 1) if bushy else here - 1)
            self.nodes.append(rng.randint(0, 4))
        tokens = torch.tensor(self.nodes[-count:])
        return Segment(self.cache, tokens, tuple(self.parents), rng.randint(1, count))

    def settle(self, model: NativeModel, rng: random.Random) -> None:
        """Keep a random path, or go back into the text."""
        length = len(self.text)
        if rng.random() < 0.2:
            back = rng.randint(0, length)
            if model.reusable(self.cache, back) == back:
                model.rollback(self.cache, back)
                self.text, self.nodes, self.parents = self.text[:back], [], []
                return
        path = self.path(rng.randint(-1, len(self.nodes) - 1))
        model.rollback(self.cache, length, [length + i for i in path])
        self.text += [self.nodes[i] for i in path]
        self.nodes, self.parents = [], []


def walk(model: NativeModel, plain: Plain, seed: int, calls: int) -> int:
    """Random calls over four requests; every row must be plain's, bit for bit. Returns the rows compared."""
    rng = random.Random(seed)
    histories = [History(model.new_cache()) for _ in range(4)]
    compared = 0
    for _ in range(calls):
        chosen = rng.sample(histories, rng.randint(1, 4))
        segments = [h.grow(rng) for h in chosen]
        for h, segment, output in zip(chosen, segments, model.forward(segments), strict=True):
            for row in range(segment.rows):
                node = len(h.nodes) - segment.rows + row
                assert output.logits[row].numpy().tobytes() == plain(h.text_at(node))
                compared += 1
            if rng.random() < 0.8:
                h.settle(model, rng)
            assert h.cache.length == len(h.text) + len(h.nodes)
    return compared
