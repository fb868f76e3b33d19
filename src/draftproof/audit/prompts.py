"""Token ids of the prompts that are compared: files, the project's own, or generated ones for a toy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from draftproof.batch import job_of
from draftproof.prompts import Prompt, read
from draftproof.types import InputError


def prompt_ids(path: str, text: Any, raw: bool = False, limit: int | None = None) -> list[list[int]]:
    """Ids of every line of a file (see `prompts.read`), at most `limit`.

    Of a conversation only what stands before the first reply counts. text: the target's, None without a tokenizer.
    """
    return [_encoded(text, prompt, raw) for prompt in read(path)[:limit]]


def _encoded(text: Any, prompt: Prompt, raw: bool) -> list[int]:
    if text is None and not prompt.token_ids:
        raise InputError(f"{prompt.where} holds text and the target has no tokenizer: give token_ids.")
    ids = job_of(text, replace(prompt, turns=prompt.turns[:1]), raw).encode([])
    if not ids:
        raise InputError(f"{prompt.where} has no tokens: give at least one.")
    return ids


def generated(vocab_size: int, count: int = 16) -> Iterator[list[int]]:
    """Prompts of 1 to 40 tokens with repeats in them, for targets without natural ones; always the same."""
    rng = random.Random(0)
    for length in (1, 2, 3, *(rng.randint(4, 40) for _ in range(count - 3))):
        motif = [rng.randrange(vocab_size) for _ in range(max(1, length // 3))]
        yield (motif * length)[:length]
