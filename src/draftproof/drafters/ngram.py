"""Continues earlier occurrences of the text's end: prompt look-up without an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession
from draftproof.device import upload
from draftproof.drafters.children import DEFAULT_GAMMA
from draftproof.types import InputError, Proposal

_BLOCK = 1024
_SCANNED = 256


class NgramDrafter:
    """Longest suffix match in prompt + output of one request; among equally long ones the latest.

    `width` > 1 offers that many different continuations as a tree. All tokens are chosen.
    """

    name = "ngram"
    layers: tuple[int, ...] = ()
    draws = False

    def __init__(self, gamma: int = DEFAULT_GAMMA, min: int = 2, max: int = 32, width: int = 1) -> None:
        """min, max: shortest suffix that counts as a match, and the longest that is compared."""
        if not 1 <= min <= max:
            raise InputError(f"the n-gram drafter needs 1 <= min <= max, not min={min}, max={max}.")
        if gamma < 1 or width < 1:
            raise InputError(f"the n-gram drafter needs gamma and width of at least 1, not {gamma} and {width}.")
        self.gamma, self.branches = gamma, width > 1
        self._min, self._max, self._width = min, max, width

    def start(self, target: Any) -> DraftSession:
        """The history of one request; never used for another."""
        return _History(target.model.device)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One look-up a request."""
        return [self._look_up(ask) for ask in asks]

    def _look_up(self, ask: Ask) -> Proposal:
        history = ask.session
        assert isinstance(history, _History)
        text = history.follow(ask.context)
        tokens: list[int] = []
        parents: list[int] = []
        for start in matches(text, self._min, self._max, self._width):
            _add_path(tokens, parents, continuation(text, start, ask.depth))
        return Proposal(upload(tokens, history.device), tuple(parents))


class _History:
    """The context as an array that grows by doubling."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._text = np.empty(1024, np.int64)
        self._length = 0

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Take over what was committed."""
        self.follow(context)

    def follow(self, context: Sequence[int]) -> np.ndarray:
        """[n] the context; only its new end is copied. Another text begins anew."""
        known = self._length
        if known > len(context) or (known and self._text[known - 1] != context[known - 1]):
            self._length = 0
        if len(context) > len(self._text):
            self._text = np.concatenate([self._text, np.empty(len(context), np.int64)])
        self._text[self._length : len(context)] = context[self._length :]
        self._length = len(context)
        return self._text[: self._length]


def matches(text: np.ndarray, shortest: int, longest: int, count: int) -> list[int]:
    """Where the best `count` continuations with different first tokens begin: longest match first, then the latest.

    Earlier ends are compared from the latest on, a block at a time, until nothing longer can come.
    """
    ends = np.flatnonzero(text[:-1] == text[-1])
    found: dict[int, tuple[int, int]] = {}
    for stop in range(len(ends), 0, -_BLOCK):
        block = ends[max(0, stop - _BLOCK) : stop]
        sizes = suffix_lengths(text, block, longest)
        for i in np.lexsort((-block, -sizes))[:_SCANNED]:
            first, match = int(text[block[i] + 1]), (int(sizes[i]), int(block[i]) + 1)
            if match[0] >= shortest:
                found[first] = max(found.get(first, match), match)
        if sum(size == longest for size, _ in found.values()) >= count:
            break
    return [start for _, start in sorted(found.values(), reverse=True)[:count]]


def suffix_lengths(text: np.ndarray, ends: np.ndarray, longest: int) -> np.ndarray:
    """[len(ends)] how many tokens up to each end repeat the text's last ones, `longest` at most; 1 at least."""
    sizes = np.ones(len(ends), np.int64)
    alive = np.arange(len(ends))
    for size in range(2, min(longest, len(text)) + 1):
        alive = alive[ends[alive] >= size - 1]
        alive = alive[text[ends[alive] - size + 1] == text[len(text) - size]]
        if not len(alive):
            break
        sizes[alive] = size
    return sizes


def continuation(text: np.ndarray, start: int, length: int) -> list[int]:
    """`length` tokens from `start`; past the end of the text it reads on in what it has just written."""
    path: list[int] = text[start : start + length].tolist()
    while len(path) < length:
        path.append(path[len(path) - (len(text) - start)])
    return path


def _add_path(tokens: list[int], parents: list[int], path: Sequence[int]) -> None:
    """Merge a continuation into the tree: shared beginnings are shared nodes."""
    node = -1
    for token in path:
        known = (i for i, parent in enumerate(parents) if parent == node and tokens[i] == token)
        child = next(known, len(tokens))
        if child == len(tokens):
            tokens.append(token)
            parents.append(node)
        node = child
