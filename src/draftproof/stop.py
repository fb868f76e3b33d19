"""When a request ends: committed tokens pass one at a time, so the earliest event wins wherever it falls in a block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from draftproof.types import FinishReason, SamplingParams


class Stopper:
    """End tokens, stop strings, max_tokens and the context limit of one request."""

    def __init__(
        self,
        params: SamplingParams,
        end_tokens: Collection[int],
        room: int,
        ends_text: Callable[[int], bool] | None = None,
    ) -> None:
        """room: tokens the target's context still takes; ends_text(token): does the text now hold a stop string?"""
        self._limit = min(params.max_tokens, room)
        self._ends = {*end_tokens, *params.stop_tokens}
        self._ends_text = ends_text
        self._emitted = 0

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self._limit - self._emitted

    def cut(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """(how many of the new tokens are kept, why the request ends or None).

        The token that ends a request is kept: an end token stands in the ids, the text of a stop string is cut by
        `text.Stream`.
        """
        for kept, token in enumerate(tokens, 1):
            self._emitted += 1
            if token in self._ends or (self._ends_text is not None and self._ends_text(token)):
                return kept, "stop"
            if self.left <= 0:
                return kept, "length"
        return len(tokens), "length" if self.left <= 0 else None
