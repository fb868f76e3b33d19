"""A low-bit copy of a native model: four-bit matrices, eight-bit activations, a reduced head, the target's caches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from draftproof import _kernels
from draftproof.contracts import Twin
from draftproof.files import refusing
from draftproof.models.lowbit.rounding import Rounded
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.lowbit.store import Store, fingerprint, load_or_make, vocabulary
from draftproof.models.native.build import Builder
from draftproof.models.native.checkpoint import Checkpoint
from draftproof.models.native.config import DecoderSpec
from draftproof.models.native.grid import Grid, Weight, dense
from draftproof.models.native.model import NativeModel, Source
from draftproof.models.native.pack import pack

_AHEAD = 3  # with the token before them four rows, which are one tile: 1.05 of the cost of one


def make_twin(target: NativeModel, compiled: _kernels.Model, settings: LowBit, calibration: Calibration) -> Twin:
    """The copy of a target; rounded weights come from the cache folder, or are made and put there."""
    source, spec = target.source, target.spec
    with refusing(f"{source.folder} cannot be copied at fewer bits"), Checkpoint(source.folder) as checkpoint:
        print_ = fingerprint(checkpoint.tensors())
        store = load_or_make(print_, settings, calibration, lambda texts: _rounded(source, settings, texts))
        ids = vocabulary(spec.vocab, settings, calibration.always, store.frequent)
        config, layers = _TwinBuilder(spec, checkpoint, source, store, ids).build()
        config.head_tokens = [] if ids is None else ids.tolist()
        twin = _kernels.Model(config, layers, target.isa, target.threads, compiled)
    name = f"{target.name} at {settings.bits} bits"
    made = Source(source.folder, config, f"int{settings.bits}", source.threads)
    shared = config.embedding.bytes if config.embedding is not config.head else 0
    model = NativeModel(name, spec, twin, made)
    return Twin(model, ids, twin.weight_bytes - shared, model.whole, _AHEAD)


def _rounded(source: Source, settings: LowBit, calibration: Calibration) -> Iterator[tuple[str, Rounded]]:
    """By transformers' own model of the folder, on as many threads as the target has."""
    from draftproof.models.lowbit.calibrate import rounded_folder

    before = torch.get_num_threads()
    torch.set_num_threads(source.threads)
    try:
        yield from rounded_folder(source.folder, settings, calibration)
    finally:
        torch.set_num_threads(before)


class _TwinBuilder(Builder):
    """Matrices rounded beforehand at four bits, all others at eight; the embedding is the target's."""

    def __init__(
        self, spec: DecoderSpec, checkpoint: Checkpoint, source: Source, store: Store, ids: Tensor | None
    ) -> None:
        super().__init__(spec, checkpoint, "int4", "int8")
        self._source, self._store, self._ids = source, store, ids

    def ends(self) -> tuple[_kernels.Matrix, _kernels.Matrix]:
        """The target's embedding, and the rows of its head that are wanted."""
        spec = self._spec
        name = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
        rows = dense(self._checkpoint.matrix(name, spec.vocab, spec.hidden))
        return self._source.config.embedding, self.pack(rows if self._ids is None else rows[self._ids])

    def _matrix(self, name: str, outputs: int, depth: int) -> Weight:
        """A checkpoint's own grid stays what it is."""
        weight = super()._matrix(name, outputs, depth)
        rounded = self._store.weights.get(name)
        return weight if isinstance(weight, Grid) or rounded is None else _on_grid(rounded)

    def pack(self, weight: Weight, head: bool = False) -> _kernels.Matrix:
        """On a grid four bits, otherwise eight."""
        return pack(weight, "int4" if isinstance(weight, Grid) else "int8", self._arena)


def _on_grid(rounded: Rounded) -> Grid:
    """The kernels take its groups as they are."""
    return Grid(rounded.codes, rounded.scales, rounded.minima)
