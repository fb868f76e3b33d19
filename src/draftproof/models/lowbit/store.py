"""Rounded weights in a file of the cache folder, found again by the target's fingerprint and the settings."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.files import refusing
from draftproof.models.lowbit.rounding import Rounded
from draftproof.models.lowbit.settings import Calibration, LowBit

_VERSION = 1  # of rounding and calibration: files of another one are made anew
_SAMPLE = 256


@dataclass(frozen=True, eq=False)
class Store:
    """weights: by the names of the checkpoint; frequent: the calibration texts' tokens, most frequent first."""

    weights: dict[str, Rounded]
    frequent: tuple[int, ...]


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Of names, shapes, types and a sample of every tensor's values."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)].cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_or_make(
    target: str,
    settings: LowBit,
    calibration: Calibration,
    make: Callable[[Calibration], Iterator[tuple[str, Rounded]]],
) -> Store:
    """The rounded weights of a target with that fingerprint; `make` rounds them if no file has them yet.

    What needs no calibration is made every time.
    """
    if settings.bits == 8:
        return Store({}, ())
    if settings.rounding == "nearest":
        return Store(dict(make(calibration)), ())
    described = {key: value for key, value in asdict(settings).items() if key != "vocab"} | {"version": _VERSION}
    name = hashlib.blake2b(json.dumps([target, described]).encode(), digest_size=8).hexdigest()
    file = None if calibration.folder is None else Path(calibration.folder) / f"lowbit-{name}.safetensors"
    if file is not None and file.exists():
        return _read(file)
    texts = calibration.texts()
    counted = Counter(token for text in texts for token in text)
    store = Store(
        dict(make(Calibration(lambda: texts, calibration.always, None, calibration.progress))),
        tuple(token for token, _ in counted.most_common()),
    )
    if file is not None:
        _write(file, store)
    return store


def vocabulary(size: int, settings: LowBit, always: Sequence[int], frequent: Sequence[int]) -> Tensor | None:
    """[K] ids of the reduced head, ascending: `always`, then those counted, then the smallest ids.

    Tokenizers that merge pairs give frequent tokens small ids. None where all are wanted.
    """
    if not settings.vocab or settings.vocab >= size:
        return None
    ids = dict.fromkeys(token for token in (*always, *frequent, *range(size)) if 0 <= token < size)
    return torch.tensor(sorted(list(ids)[: settings.vocab]), dtype=torch.int64)


def _read(file: Path) -> Store:
    from safetensors.torch import load_file

    with refusing(f"{file} is damaged; delete it, and it is made again"):
        tensors = load_file(file)
        names = [key.removesuffix(".codes") for key in tensors if key.endswith(".codes")]
        weights = {name: Rounded(*(tensors[f"{name}.{part}"] for part in _PARTS)) for name in names}
        return Store(weights, tuple(tensors["frequent"].tolist()))


_PARTS = ("codes", "scales", "minima")


def _write(file: Path, store: Store) -> None:
    """Under another name first, so that no reader finds half a file."""
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {"frequent": torch.tensor(store.frequent, dtype=torch.int64)}
    for name, weight in store.weights.items():
        tensors |= {f"{name}.{part}": getattr(weight, part).cpu().contiguous() for part in _PARTS}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lowbit.", dir=file.parent) as work:
        save_file(tensors, Path(work) / "weights.safetensors")
        (Path(work) / "weights.safetensors").replace(file)
