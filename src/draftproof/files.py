"""Reading a model's folder: whatever a library raises over a damaged file becomes one sentence that names the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftproof.types import InputError

_LONGEST = 300


def cache_folder() -> Path:
    """Where draftproof keeps what it can make again: DRAFTPROOF_CACHE, or the platform's cache folder."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("DRAFTPROOF_CACHE")
    return Path(chosen).expanduser() if chosen else user_cache_path("draftproof", appauthor=False)


def folder_at(path: str | Path) -> Path:
    """An existing folder, `~` resolved. InputError for any other name."""
    with refusing(f"{shortened(str(path))} cannot be opened"):
        folder = Path(path).expanduser()
        try:
            found = folder.is_dir()
        except OSError as error:
            raise InputError(f"{shortened(str(path))} cannot be opened: {error.strerror or error}.") from error
    if found:
        return folder
    raise InputError(f"{path} is not a folder: give one that holds a Hugging Face model, with its config.json.")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. InputError for anything else."""
    with refusing(f"{file} is not valid JSON"):
        value = json.loads(_text(file))
    if not isinstance(value, dict):
        raise InputError(f"{file} must hold a JSON object: download it again.")
    return value


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """InputError, "what: reason", for every error of the block; one that is an InputError already stays as it is.

    For calls into libraries that read files: what they raise over a damaged one is not limited to a few classes.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        # A panic of a Rust library is no Exception, and has no importable class.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {said(error)}.") from error


def said(error: BaseException) -> str:
    """What an error says, in one line without a full stop."""
    text = " ".join(str(error).split()).rstrip(".!")
    # A KeyError says only which key.
    return shortened(f"there is no {text}" if isinstance(error, KeyError) else text or type(error).__name__, _LONGEST)


def shortened(text: str, most: int = 80) -> str:
    """The text, its end left out where it is long."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}.") from error
