"""draftproof: lossless speculative decoding, with proof.

The names below are the library; each is imported from its module when it is first used, so that `import draftproof`
takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Engine": "engine",
    "InputError": "types",
    "Piece": "run",
    "Proposal": "types",
    "Result": "run",
    "SamplingParams": "types",
    "Stats": "stats",
    "Step": "types",
    "Text": "text",
    "generate": "batch",
    "hf_generate": "custom_generate",
    "load_drafter": "catalog",
    "load_engine": "catalog",
    "load_model": "catalog",
    "load_rule": "catalog",
    "stream": "run",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"draftproof has no {name}; its names are {', '.join(__all__)}")
    return getattr(import_module(f"draftproof.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
