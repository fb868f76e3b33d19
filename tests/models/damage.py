"""What tests of damaged files share."""

from __future__ import annotations

import random
import struct
from typing import Any

from models.gguf_files import small_model

from draftproof.types import InputError


def tiny() -> Any:
    """A Llama of one layer."""
    return small_model("llama", num_hidden_layers=1)


def assert_one_sentence(error: InputError) -> None:
    assert "\n" not in str(error) and str(error).endswith(".") and len(str(error)) < 600


def spoiled(content: bytes, head: int, rng: random.Random) -> bytes:
    """Cut, bits flipped, a number replaced by an extreme one, or a few bytes lost."""
    data, place, kind = bytearray(content), rng.randrange(min(head, len(content))), rng.random()
    if kind < 0.2:
        return content[:place]
    if kind < 0.6:
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(min(head, len(content)))] ^= 1 << rng.randrange(8)
    elif kind < 0.8:
        data[place : place + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 2**62), b"\xff" * 4])
    else:
        del data[place : place + rng.randrange(1, 200)]
    return bytes(data)
