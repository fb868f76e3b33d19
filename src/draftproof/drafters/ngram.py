"""Continues earlier occurrences of the text's end: prompt look-up without an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftproof.contracts import Ask, DraftSession
from draftproof.device import upload
from draftproof.drafters.children import DEFAULT_GAMMA
from draftproof.types import InputError, Proposal

_FIRST_BLOCK = 64
_BLOCK = 1024
_GLANCE = 4
_SCANNED = 256
# By length of the match, 10 and more; from scripts/ngram_chances.py, see docs/log.md.
_CHANCES = (0.2, 0.2, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.9)


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
        found = matches(text, self._min, self._max, self._width)
        if self._width == 1 and found:
            path, length = continuation(text, found[0].start, ask.depth), found[0].length
            sure = chances(length, len(path))
            return Proposal(upload(path, history.device), tuple(range(-1, len(path) - 1)), confidence=sure)
        for match in found:
            _add_path(tokens, parents, continuation(text, match.start, ask.depth))
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


class Match(NamedTuple):
    """`length` tokens before `start` repeat the text's last ones."""

    length: int
    start: int


def chances(length: int, count: int) -> tuple[float, ...]:
    """Guesses how often the tokens behind a match of this length are the target's, each once those before it are.

    Every token that is taken makes the match longer by one. In steps of a tenth.
    """
    first = min(length, len(_CHANCES) - 1)
    return (_CHANCES[first:] + _CHANCES[-1:] * count)[:count]


def matches(text: np.ndarray, shortest: int, longest: int, count: int) -> list[Match]:
    """The best `count` continuations with different first tokens: longest match first, then the latest.

    Earlier ends are compared from the latest on, a block at a time, until nothing longer can come.
    """
    ends = np.flatnonzero(text[:-1] == text[-1])
    found: dict[int, Match] = {}
    stop, size, floor = len(ends), _FIRST_BLOCK, shortest - 1
    while stop > 0 and floor < longest:
        block, stop, size = ends[max(0, stop - size) : stop], stop - size, _BLOCK
        sizes = suffix_lengths(text, block, longest)
        better = np.flatnonzero(sizes > floor)
        before = dict(found)
        for i in better[np.lexsort((-block[better], -sizes[better]))][:_SCANNED]:
            first, match = int(text[block[i] + 1]), Match(int(sizes[i]), int(block[i]) + 1)
            found[first] = max(found.get(first, match), match)
        lengths = sorted((match.length for match in found.values()), reverse=True)
        if len(lengths) >= count or (found == before and lengths and lengths[-1] == longest):
            floor = lengths[min(count, len(lengths)) - 1]
    return sorted(found.values(), reverse=True)[:count]


def suffix_lengths(text: np.ndarray, ends: np.ndarray, longest: int) -> np.ndarray:
    """[len(ends)] how many tokens up to each end repeat the text's last ones, `longest` at most."""
    sizes = _compared(text, ends, min(_GLANCE, longest))
    alike = np.flatnonzero(sizes == _GLANCE)
    if longest > _GLANCE and len(alike):
        sizes[alike] = _compared(text, ends[alike], longest)
    return sizes


def _compared(text: np.ndarray, ends: np.ndarray, longest: int) -> np.ndarray:
    width = min(longest, len(text))
    places = ends[:, None] - np.arange(width)
    same = (text[places] == text[::-1][:width]) & (places >= 0)
    return np.where(same.all(1), width, same.argmin(1))


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
