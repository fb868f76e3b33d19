"""The native CPU backend: its own kernels, invariant to what else is computed, flat in the number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.types import InputError

if TYPE_CHECKING:
    from draftproof.models.native.load import load_native as load_native
    from draftproof.models.native.model import NativeModel as NativeModel

__all__ = ["NativeModel", "available", "load_native"]


def available() -> bool:
    """Whether the compiled kernels are installed."""
    from importlib.util import find_spec

    return find_spec("draftproof._kernels") is not None


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not available():
        raise InputError(
            "native: needs the compiled kernels, which this installation lacks; install a C++20 compiler (g++ 11 or"
            " clang 14) and reinstall draftproof, or use hf: instead."
        )
    from draftproof.models.native import load, model

    return load.load_native if name == "load_native" else model.NativeModel
