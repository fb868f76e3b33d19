"""The native CPU backend behind the protocol `Model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof import _kernels
from draftproof.contracts import Shared, Twin
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.native.config import DecoderSpec
from draftproof.models.native.need import kv
from draftproof.models.native.shared import NativeShared
from draftproof.types import Cache, InputError, Output, Segment


@dataclass(frozen=True, eq=False)
class Source:
    """What a model was made of: the folder, the structure whose matrices a copy may share, format, threads.

    `copy` makes a copy at fewer bits, None for a model that is one.
    """

    folder: Path
    config: _kernels.Config
    weights: str
    threads: int
    copy: Callable[[NativeModel, _kernels.Model, LowBit, Calibration], Twin] | None = None


class NativeModel:
    """A decoder in C++ whose logits for a token are the same bits whatever else is in the call.

    The cost of a forward is nearly flat in the number of tokens until arithmetic, not memory, is the limit.
    """

    def __init__(self, name: str, spec: DecoderSpec, compiled: _kernels.Model, source: Source) -> None:
        self.name = name
        self.threads = source.threads
        self.vocab_size = spec.vocab
        self.max_context: int | None = spec.max_context
        self.device = torch.device("cpu")
        self.num_layers = len(spec.layers)
        able = {"rollback", "tree", "hidden", "early_exit", "invariant"}
        self.can = frozenset(able if source.copy is None else able | {"lowbit"})
        self.dtype = source.weights
        self.isa: str = compiled.isa
        self.spec, self.source = spec, source
        self._compiled = compiled
        self._row = spec.vocab if source.config.head_tokens else source.config.head.outputs

    def memory(self) -> dict[str, int]:
        """Bytes: `weights`, `kv_per_token` of the layers that keep every token, `kv_window` of a request's others.

        `kv_window` is what the sliding-window layers of one request hold once their windows are full.
        """
        each, window = kv(self.spec)
        return {"weights": self._compiled.weight_bytes, "kv_per_token": each, "kv_window": window}

    def shared(self) -> Shared:
        """Weights for a trained head."""
        return NativeShared(self.spec, self.source.config, self.dtype, self.isa, self.threads)

    def new_cache(self) -> Cache:
        """An empty cache."""
        cache: Cache = self._compiled.new_cache()
        return cache

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        """One call for all requests; see `contracts.Model`. Layer l is the state after l layers, 0 the embedding.

        Raises ValueError for segments that contradict their caches, InputError beyond `max_context`; no cache has
        changed then.
        """
        outputs = [self._output(segment, len(layers)) for segment in segments]
        self._run([self._call(*pair) for pair in zip(segments, outputs, strict=True)], layers, exit_layer)
        return outputs

    def whole(self, segments: Sequence[Segment], texts: Sequence[tuple[Tensor, Tensor] | None]) -> list[Tensor]:
        """As `contracts.Twin` says, of a copy."""
        outputs = [self._output(segment, 0) for segment in segments]
        calls = [self._call(*pair) for pair in zip(segments, outputs, strict=True)]
        beside = [() if text is None else tuple(part.numpy() for part in text) for text in texts]
        self._run([call + more for call, more in zip(calls, beside, strict=True)], (), self.num_layers)
        return [output.logits for output in outputs]

    def _run(self, calls: list[tuple[Any, ...]], layers: Sequence[int], exit_layer: int | None) -> None:
        try:
            self._compiled.forward(calls, list(layers), -1 if exit_layer is None else exit_layer)
        except OverflowError as error:
            raise InputError(f"{self.name}: {error}; shorten the prompt or ask for fewer new tokens.") from error

    def reusable(self, cache: Any, length: int) -> int:
        """The longest length <= `length` to which `rollback` can go: `length`, or 0 where a window has passed it."""
        answer: int = cache.reusable(length)
        return answer

    def rollback(self, cache: Any, length: int, keep: Sequence[int] = ()) -> None:
        """Keep entries [0, length) and then `keep`, a path in the order of the text."""
        cache.rollback(length, list(keep))

    def lowbit(self, settings: LowBit, calibration: Calibration) -> Twin:
        """A copy at fewer bits over the same caches, for drafts; see `models.lowbit.settings`."""
        if self.source.copy is None:
            raise InputError(f"{self.name} is a copy at fewer bits already.")
        return self.source.copy(self, self._compiled, settings, calibration)

    def _output(self, segment: Segment, layers: int) -> Output:
        hidden = torch.empty(len(segment.tokens), layers, self.spec.hidden) if layers else None
        return Output(torch.empty(segment.rows, self._row), hidden)

    def _call(self, segment: Segment, output: Output) -> tuple[Any, ...]:
        tokens: Tensor = segment.tokens.to(torch.int64).contiguous()
        hidden = None if output.hidden is None else output.hidden.numpy()
        return (
            segment.cache, tokens.numpy(), segment.parents, segment.rows, segment.resume, output.logits.numpy(), hidden
        )  # fmt: skip
