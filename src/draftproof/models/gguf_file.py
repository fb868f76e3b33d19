"""Opening a GGUF file with the gguf package, which believes what a file says of its own size: checked here first."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.files import refusing, shortened
from draftproof.types import InputError

# Magic, version, number of tensors, number of entries.
_HEADER = struct.Struct("<4sIQQ")
# Far above what models have, and far below what reading one element after the other has memory for.
_MOST_TENSORS, _MOST_ENTRIES, _MOST_ELEMENTS = 1 << 17, 1 << 14, 1 << 22


def open_gguf(source: Path) -> Any:
    """A reader over the whole file. InputError for a missing, foreign, damaged or truncated one."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise InputError("reading GGUF files needs the extra gguf: pip install 'draftproof[gguf]'.") from error

    class Reader(GGUFReader):  # type: ignore[misc]
        """One that ends where the file ends."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            found = super()._get(offset, dtype, count, override_order)
            if len(found) < count:
                raise ValueError("the file ends in the middle of it")
            return found

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY and (length := int(self._get(orig_offs + 4, np.uint64)[0])):
                _refuse_above(_MOST_ELEMENTS, length, "elements in an array")
            return super()._get_field_parts(orig_offs, raw_type)

    _check_header(source)
    with refusing(f"{source} is damaged or truncated, so fetch it again"):
        return Reader(source)


def _check_header(source: Path) -> None:
    with refusing(f"{shortened(str(source))} cannot be read"):
        if source.exists() and not source.is_file():
            raise InputError(f"{source} cannot be read: it is not a file.")
        with source.open("rb") as file:
            head = file.read(_HEADER.size)
    if head[:4] != b"GGUF":
        raise InputError(f"{source} is not a GGUF file: it does not begin with the letters GGUF.")
    with refusing(f"{source} is damaged or truncated, so fetch it again"):
        _, version, tensors, entries = _HEADER.unpack(head)
        if version and not version & 0xFFFF:
            raise InputError(f"{source} is in the byte order of another kind of machine: fetch the little-endian file.")
        _refuse_above(_MOST_TENSORS, tensors, "tensors")
        _refuse_above(_MOST_ENTRIES, entries, "entries")


def _refuse_above(most: int, number: int, what: str) -> None:
    if number > most:
        raise ValueError(f"it claims to have {number} {what}")
