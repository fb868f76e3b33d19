"""GGUF files of the target's own weights in other formats, written once: what llama.cpp and OpenVINO read."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.types import InputError

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0 to 1."""

FORMATS = {"bf16": 16, "q8_0": 8, "f16": 16, "f32": 32}
"""Formats that can be written, with their bits a weight; `file` is the file as it is."""
FILE = "file"


@dataclass(frozen=True)
class GgufFile:
    """label: the format of most weights, such as "Q8_0"."""

    path: Path
    label: str
    bits: int


class GgufFiles:
    """A target's GGUF file and the others written from it on demand."""

    def __init__(self, source: Path, work: Path, kinds: Sequence[str], progress: Progress | None = None) -> None:
        """work: where what is written lies, and is found again. kinds: formats that are to be compared."""
        for kind in kinds:
            if kind not in (*FORMATS, FILE):
                raise InputError(f"a GGUF format is {', '.join(FORMATS)} or {FILE}, not {kind}.")
        self.source, self.kinds = source, tuple(kinds)
        self._work, self._progress = work, progress
        self._found: dict[str, GgufFile] = {}

    def get(self, kind: str) -> GgufFile:
        """The file in this format. InputError where it cannot be written."""
        if kind not in self._found:
            self._found[kind] = self._own() if kind == FILE else self._written(kind)
        return self._found[kind]

    def _own(self) -> GgufFile:
        sizes: Counter[str] = Counter()
        bits: dict[str, int] = {}
        for tensor in _reader(self.source).tensors:
            label = tensor.tensor_type.name
            sizes[label] += int(tensor.n_elements)
            bits[label] = int(8 * tensor.n_bytes // tensor.n_elements)
        label = max(sizes, key=sizes.__getitem__)
        return GgufFile(self.source, label, bits[label])

    def _written(self, kind: str) -> GgufFile:
        try:
            state = self.source.stat()
        except OSError as error:
            raise InputError(f"{self.source} cannot be read: {error.strerror or error}.") from error
        name = f"{self.source.stem}.{state.st_size:x}-{state.st_mtime_ns:x}.{kind}.gguf"
        return GgufFile(convert(self.source, kind, self._work / name, self._progress), kind.upper(), FORMATS[kind])


def convert(source: Path, kind: str, out: Path, progress: Progress | None = None) -> Path:
    """`source` with its matrices stored as `kind`, all metadata kept; returns `out`, at once where it exists.

    The weights are those of the Hugging Face folder that `import` makes of the file: rounded to bfloat16 unless all
    matrices of the file are F32 or F16. Vectors (norms, biases) stay F32. InputError for a file or format that
    cannot be used; nothing is left behind then.
    """
    if out.exists():
        return out
    if kind not in FORMATS:
        raise InputError(f"a GGUF file can be written as {', '.join(FORMATS)}, not {kind}.")
    reader = _reader(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    os.close(handle)
    try:
        _write(reader, kind, Path(part), source, progress or (lambda what, share: None))
        os.replace(part, out)
    finally:
        Path(part).unlink(missing_ok=True)
    return out


def check_same_weights(gguf: Path, folder: Path) -> None:
    """InputError unless embedding and final norm of the file, in bfloat16, are those of the folder."""
    from draftproof.models.native.checkpoint import Checkpoint

    reader = _reader(gguf)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = {"model.norm.weight": "output_norm.weight", "model.embed_tokens.weight": "token_embd.weight"}
    sentence = f"{gguf.name} does not hold the weights of {folder}: name the file that the folder was imported from."
    with Checkpoint(folder) as weights:
        for name, label in names.items():
            ours, theirs = _bf16(weights.weight(name).float().numpy()), stored.get(label)
            if theirs is None or not np.array_equal(_bf16(_values(theirs, gguf) - _offset(reader, label)), ours):
                raise InputError(sentence)


def _reader(source: Path) -> Any:
    """InputError where the package is missing or the file is none."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise InputError("GGUF files need the extra gguf: pip install 'draftproof[gguf]'.") from error
    try:
        return GGUFReader(source)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}.") from error
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{source} is no whole GGUF file ({' '.join(str(error).split())}).") from error


def _write(reader: Any, kind: str, out: Path, source: Path, report: Progress) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer, kind)
    exact = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1} <= {"F32", "F16"}
    wanted = GGMLQuantizationType[kind.upper()]
    total, done = sum(int(tensor.n_elements) for tensor in reader.tensors), 0
    for tensor in reader.tensors:
        values, offset = _values(tensor, source), _offset(reader, tensor.name)
        values = values if exact else _bf16(values - offset) + offset
        stored = wanted if len(tensor.shape) > 1 else GGMLQuantizationType.F32
        try:
            writer.add_tensor(tensor.name, quantize(values, stored), raw_dtype=stored)
        except ValueError as error:
            raise InputError(f"{source.name} cannot be stored as {kind}: {tensor.name}: {error}.") from error
        done += int(tensor.n_elements)
        report(f"writing {kind} weights", done / total)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: Any, writer: Any, kind: str) -> None:
    from gguf import GGML_QUANT_VERSION, GGUFValueType, LlamaFileType

    kinds = {"f32": LlamaFileType.ALL_F32} | {k: LlamaFileType[f"MOSTLY_{k.upper()}"] for k in ("bf16", "f16", "q8_0")}
    ours = {"general.architecture", "general.file_type", "general.quantization_version", "general.alignment"}
    for name, field in reader.fields.items():
        # What begins with "GGUF." is the header; a whole file has no split.
        if name not in ours and not name.startswith(("GGUF.", "split.")):
            kind_of, inner = field.types[0], field.types[-1]
            writer.add_key_value(name, field.contents(), kind_of, inner if kind_of == GGUFValueType.ARRAY else None)
    writer.add_file_type(kinds[kind])
    writer.add_quantization_version(GGML_QUANT_VERSION)


def _values(tensor: Any, source: Path) -> NDArray[np.float32]:
    from gguf.quants import dequantize

    try:
        return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError as error:
        raise InputError(
            f"{source.name}: its tensor {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported."
        ) from error


def _offset(reader: Any, name: str) -> np.float32:
    """Gemma's norms multiply by 1 + weight; the file stores the sum."""
    gemma = reader.fields["general.architecture"].contents() == "gemma3"
    return np.float32(gemma and name.endswith("norm.weight"))


def _bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to bfloat16 as PyTorch does it."""
    import torch

    return torch.from_numpy(values).bfloat16().float().numpy()
