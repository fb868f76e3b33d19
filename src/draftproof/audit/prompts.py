"""Token ids of the prompts that are compared: files, the project's own, or generated ones for a toy."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from draftproof.prompts import Prompt, read, read_text
from draftproof.run import encode, has_template
from draftproof.types import InputError


def prompt_ids(path: str, text: Any, raw: bool = False, limit: int | None = None) -> list[list[int]]:
    """Ids of every line of a file, at most `limit`. Lines are as in `prompts.read`, or {"token_ids": [...]} throughout.

    Of a conversation only what stands before the first reply counts. text: the target's, None without a tokenizer.
    """
    if (ids := _token_ids(path)) is not None:
        return ids[:limit]
    prompts = read(path)[:limit]
    if text is None:
        raise InputError(f"{path} holds text and the target has no tokenizer: give token_ids.")
    return [_encoded(text, prompt, raw) for prompt in prompts]


def _encoded(text: Any, prompt: Prompt, raw: bool) -> list[int]:
    if prompt.messages:
        return encode(text, list(prompt.messages))
    ids = encode(text, prompt.turns[0], raw or not has_template(text))
    if not ids:
        raise InputError(f"{prompt.where} has no tokens: give at least one.")
    return ids


def _token_ids(path: str) -> list[list[int]] | None:
    """None for a file without token ids."""
    if path.partition(":")[0] == "bundled":
        return None
    lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    if not lines or '"token_ids"' not in lines[0][1]:
        return None
    return [_ids(line, f"line {number} of {path}") for number, line in lines]


def _ids(line: str, where: str) -> list[int]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}.") from error
    ids = value.get("token_ids") if isinstance(value, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise InputError(f"{where}: token_ids must be a list of whole numbers, at least one, on every line.")
    return ids


def generated(vocab_size: int, count: int = 16) -> Iterator[list[int]]:
    """Prompts of 1 to 40 tokens with repeats in them, for targets without natural ones; always the same."""
    rng = random.Random(0)
    for length in (1, 2, 3, *(rng.randint(4, 40) for _ in range(count - 3))):
        motif = [rng.randrange(vocab_size) for _ in range(max(1, length // 3))]
        yield (motif * length)[:length]
