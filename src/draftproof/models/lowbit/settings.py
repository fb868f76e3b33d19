"""What is asked of a low-bit copy, and what a target gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from draftproof.types import InputError

Rounding = Literal["compensated", "nearest"]
DEFAULT_VOCAB = 16384
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class LowBit:
    """Settings of a copy.

    bits      4 (scale and minimum a group of inputs) or 8 (one scale an output)
    group     inputs that share a scale and a minimum
    vocab     tokens its head knows of itself, 0: all of them
    rounding  "compensated": the rounding error of each input is made good by those that follow, weighed by calibration
              texts; "nearest": every weight by itself, no calibration
    """

    bits: int = 4
    group: int = 64
    vocab: int = DEFAULT_VOCAB
    rounding: Rounding = "compensated"

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise InputError(f"lowbit has 4 or 8 bits, not {self.bits}.")
        if self.group not in GROUPS:
            raise InputError(f"group of lowbit must be one of {', '.join(map(str, GROUPS))}, not {self.group}.")
        if self.vocab < 0:
            raise InputError(f"vocab of lowbit is a number of tokens, or 0 for all, not {self.vocab}.")
        if self.rounding not in get_args(Rounding):
            raise InputError(f"rounding of lowbit must be one of {', '.join(get_args(Rounding))}, not {self.rounding}.")


@dataclass(frozen=True)
class Calibration:
    """Texts the target is likely to read and write, made when they are needed, and where the result may be kept.

    texts     token ids of every text
    always    tokens that the reduced head must know: those that end a text
    folder    for files that can be made again; None keeps nothing
    progress  told (what is being done, share done)
    """

    texts: Callable[[], Sequence[Sequence[int]]]
    always: Sequence[int] = ()
    folder: Any = None
    progress: Callable[[str, float], None] = lambda what, share: None
