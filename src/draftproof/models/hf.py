"""Any transformers causal language model as a `Model`: one flattened row for all requests, a cache for each.

All segments of a call become one row [1, sum of T] with their own position ids, so linear layers see one matrix; the
attention function (`hf_attention`) reads each segment's own cache. Files: `hf_layout` topology and masks, `hf_cache`
entries, `hf_layers` early exits, `hf_check` and `hf_load` refusals.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftproof.contracts import Shared, Twin
from draftproof.models import hf_check, hf_layers, hf_lowbit
from draftproof.models.hf_attention import KWARG, Call, Part, register
from draftproof.models.hf_cache import HfCache
from draftproof.models.hf_layout import feed, plain, upload
from draftproof.models.hf_load import read_folder
from draftproof.models.hf_shared import HfShared
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.types import Cache, InputError, Output, Segment


def load_hf(path: str, device: str = "cpu", dtype: str = "auto") -> HfModel:
    """The model of a Hugging Face folder. InputError for what cannot be read or cannot be rolled back.

    device: "cpu", "cuda", "cuda:N" or "mps"; dtype: "auto" (that of the files), "float32", "bfloat16", "float16".
    """
    return HfModel.wrap(read_folder(path, device, dtype), path)


@dataclass(eq=False)
class _Item:
    """The share of a segment that one pass through the layers computes."""

    segment: Segment
    cache: HfCache
    part: Part
    tokens: Tensor

    @property
    def size(self) -> int:
        return self.part.feed.size


class HfModel:
    """Weights of a transformers model, shared and read-only; implements `contracts.Model`.

    Built by `wrap` or `load_hf`. Calls from several threads are safe as long as no two of them share a cache.
    """

    def __init__(self, model: Any, name: str) -> None:
        hf_check.refuse_state(model, name)
        hf_check.refuse_config(model.config, name)
        hf_check.refuse_class(type(model), name)
        hf_check.refuse_modules(model, name)
        register()
        text = hf_check.text_config(model.config)
        self.name, self.num_layers = name, int(text.num_hidden_layers)
        self.max_context = hf_check.context_limit(model.config)
        self.dtype = str(model.dtype).removeprefix("torch.")
        net = hf_layers.private(model)
        trunk = hf_layers.find_layers(net, self.num_layers)
        if trunk is None:
            raise InputError(f"{name} has no list of {self.num_layers} decoder layers that draftproof can find.")
        self._trunk, tapped = trunk, hf_layers.whole(trunk)
        self._variants: dict[tuple[str, int], Any] = {("plain", 0): net, ("tapped", 0): tapped}
        with torch.no_grad():
            self._layout, self.vocab_size, self._tuples = hf_check.probe(tapped, self.num_layers, name)
            self.device = self._layout.device
            empty = torch.empty(1, 0, dtype=net.dtype, device=self.device)
            self._nothing = empty.new_empty(0, self.vocab_size), empty.new_empty(1, 0, text.hidden_size)
            self.can = frozenset({"rollback", "tree", "hidden", "early_exit", "lowbit"})
            if type(model).__name__ not in hf_check.VERIFIED:
                self._test_unverified(model)

    @classmethod
    def wrap(cls, model: Any, name: str | None = None) -> HfModel:
        """A model object in memory, which stays as it is: its weights are shared, its modules are not touched."""
        from transformers import PreTrainedModel

        if not isinstance(model, PreTrainedModel):
            raise InputError(f"a transformers model is needed, not {type(model).__name__}; unwrap or merge it first.")
        return cls(model, name or model.config.name_or_path or type(model).__name__)

    def memory(self) -> dict[str, int]:
        """Bytes: `weights`, `kv_per_token` of the layers that keep every token, `kv_window` of a request's others."""
        tensors = {id(t): t for t in itertools.chain(self._trunk.net.parameters(), self._trunk.net.buffers())}.values()
        sizes = {"weights": sum(t.numel() * t.element_size() for t in tensors), "kv_per_token": 0, "kv_window": 0}
        for kind, count in zip(self._layout.kinds, self._layout.counts, strict=True):
            if kind.most is None:
                sizes["kv_per_token"] += count * kind.entry_bytes
            else:
                sizes["kv_window"] += count * kind.entry_bytes * kind.most
        return sizes

    def shared(self) -> Shared:
        """Weights for a trained head."""
        return HfShared(self._trunk, self.name)

    @torch.no_grad()
    def lowbit(self, settings: LowBit, calibration: Calibration) -> Twin:
        """A copy at fewer bits over the same caches, for drafts; see `models.lowbit.settings`."""
        net, ids, size = hf_lowbit.low_bit_net(self._trunk, self.vocab_size, settings, calibration)
        twin = copy.copy(self)
        twin.name, twin.dtype, twin.can = f"{self.name} at {settings.bits} bits", "int4", self.can - {"lowbit"}
        twin._trunk = hf_layers.same_layers(net, self._trunk)
        twin._variants = {("plain", 0): net, ("tapped", 0): hf_layers.whole(twin._trunk)}
        return Twin(twin, ids, size)

    def new_cache(self) -> Cache:
        """An empty cache."""
        return HfCache(self._layout)

    def reusable(self, cache: Cache, length: int) -> int:
        """The longest length <= `length` to which `rollback` can go; 0 where a window has let its entries go."""
        return self._own(cache).reusable(length)

    @torch.no_grad()
    def rollback(self, cache: Cache, length: int, keep: Sequence[int] = ()) -> None:
        """Afterwards: entries [0, length), then `keep` (absolute numbers, ascending); no shallow ones."""
        self._own(cache).rollback(length, tuple(keep))

    @torch.no_grad()
    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        """One call for all requests (`contracts.Model.forward`). Layer 0: the embeddings; l: behind l layers."""
        self._check(segments, layers, exit_layer)
        if exit_layer is not None:
            return self._exit(segments, layers, exit_layer)
        resumed = sorted({self._own(s.cache).exit_layer for s in segments if s.resume})
        if not resumed:
            return self._full(segments, layers)
        if len(resumed) == 1:
            return self._resume(segments, layers, resumed[0])
        return self._in_turn(segments, layers, resumed)

    def _full(self, segments: Sequence[Segment], layers: Sequence[int]) -> list[Output]:
        for segment in segments:
            self._own(segment.cache).drop_shallow()
        items = [self._item(segment) for segment in segments]
        logits, states = self._run(self._variant("tapped" if layers else "plain"), items, layers)
        _commit(items)
        return _outputs(items, logits, states, layers)

    def _exit(self, segments: Sequence[Segment], layers: Sequence[int], exit_layer: int) -> list[Output]:
        items = [self._item(segment, shallow=True) for segment in segments]
        logits, states = self._run(self._variant("lower", exit_layer), items, [*layers, exit_layer])
        sizes = [item.size for item in items]
        for item, piece in zip(items, torch.split(states[exit_layer][0], sizes), strict=True):
            item.cache.shallow += item.size
            item.cache.exit_layer = exit_layer
            item.cache.states.append(piece)
        return _outputs(items, logits, states, layers)

    def _resume(self, segments: Sequence[Segment], layers: Sequence[int], exit_layer: int) -> list[Output]:
        """The first layers for the tokens that have not been there, then the other layers for all."""
        if any(layer < exit_layer for layer in layers):
            # States before the exit were not kept, so these tokens go through every layer again.
            return self._full([replace(segment, resume=0) for segment in segments], layers)
        items = [self._item(segment) for segment in segments]
        below = [_unfed(item) for item in items]
        _, fresh = self._run(self._variant("lower", exit_layer), below, [exit_layer], head=False)
        pieces: list[Tensor] = []
        sizes = [item.size for item in below]
        for item, piece in zip(items, torch.split(fresh[exit_layer][0], sizes), strict=True):
            done = item.segment.resume
            pieces += [torch.cat(item.cache.states)[:done], piece] if done else [piece]
        states = torch.cat(pieces)[None]
        logits, found = self._run(self._variant("upper", exit_layer), items, layers, states)
        for item in items:
            item.cache.drop_shallow()
        _commit(items)
        return _outputs(items, logits, {**found, exit_layer: states}, layers)

    def _in_turn(self, segments: Sequence[Segment], layers: Sequence[int], exits: Sequence[int]) -> list[Output]:
        """Requests that left at different layers go on one group after the other."""
        group = [self._own(s.cache).exit_layer if s.resume else exits[0] for s in segments]
        outputs: dict[int, Output] = {}
        for exit_layer in exits:
            members = [i for i, at in enumerate(group) if at == exit_layer]
            results = self._resume([segments[i] for i in members], layers, exit_layer)
            outputs.update(zip(members, results, strict=True))
        return [outputs[i] for i in range(len(segments))]

    def _item(self, segment: Segment, shallow: bool = False) -> _Item:
        """Read the segment's topology and make room in its cache."""
        cache = self._own(segment.cache)
        before = cache.length + (cache.shallow if shallow else 0)
        described = feed(before, len(segment.tokens), segment.parents)
        if self.max_context is not None and described.highest >= self.max_context:
            raise InputError(
                f"{self.name} has room for {self.max_context} tokens and was given {described.highest + 1}:"
                " shorten the prompt or ask for fewer new tokens."
            )
        whole = not shallow and not segment.resume
        writers = cache.prepare(described, segment.rows, len(segment.parents), whole)
        return _Item(segment, cache, Part(described, writers), segment.tokens)

    def _run(
        self, net: Any, items: Sequence[_Item], layers: Sequence[int], states: Tensor | None = None, head: bool = True
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """One pass: [rows of all items, V] logits and the states [1, sum of T, H] behind the layers asked for."""
        ends = list(itertools.accumulate(item.size for item in items))
        if not ends or not ends[-1]:
            return self._nothing[0], dict.fromkeys(layers, self._nothing[1])
        rows = [np.arange(end - item.segment.rows, end) for end, item in zip(ends, items, strict=True) if head]
        numbers = upload(np.concatenate([*(item.part.feed.positions for item in items), *rows]), self.device)
        call = Call([item.part for item in items], self._layout, frozenset(layers), states)
        tokens = torch.cat([item.tokens for item in items]).to(self.device, non_blocking=True)
        output = net(
            tokens[None],
            position_ids=numbers[None, : ends[-1]],
            logits_to_keep=numbers[ends[-1] :],
            use_cache=False,
            **{KWARG: call},
        )
        return output.logits[0], call.states

    def _variant(self, which: str, exit_layer: int = 0) -> Any:
        key = which, exit_layer
        if key not in self._variants:
            build = hf_layers.lower if which == "lower" else hf_layers.upper
            self._variants[key] = build(self._trunk, exit_layer, self._tuples)
        return self._variants[key]

    def _own(self, cache: Cache) -> HfCache:
        if not isinstance(cache, HfCache) or cache.layout is not self._layout:
            raise ValueError(f"the cache was not made by {self.name}")
        return cache

    def _check(self, segments: Sequence[Segment], layers: Sequence[int], exit_layer: int | None) -> None:
        last = self.num_layers if exit_layer is None else exit_layer
        if exit_layer is not None and not (1 <= exit_layer <= self.num_layers and "early_exit" in self.can):
            raise InputError(f"{self.name} has no exit behind layer {exit_layer} of {self.num_layers}.")
        if any(not 0 <= layer <= last for layer in layers):
            raise InputError(f"{self.name} gives states of the layers 0 to {last} here, not of all in {list(layers)}.")
        if len({id(segment.cache) for segment in segments}) != len(segments):
            raise ValueError("two segments of a call must not share a cache")
        for segment in segments:
            cache = self._own(segment.cache)
            most = min(cache.shallow, len(segment.tokens)) if exit_layer is None else 0
            if not 0 <= segment.resume <= most:
                raise ValueError(f"resume={segment.resume}, but the cache has {cache.shallow} shallow entries")
            if exit_layer is not None and cache.exit_layer not in (0, exit_layer):
                raise ValueError(f"the shallow entries of the cache are of layer {cache.exit_layer}, not {exit_layer}")

    def _test_unverified(self, model: Any) -> None:
        """What nobody has compared yet must reproduce its own forward; early exits are offered if they do."""

        def together(sequences: Sequence[Sequence[int]]) -> list[Tensor]:
            long, short = (torch.tensor(tokens, device=self.device) for tokens in sequences)
            caches = self.new_cache(), self.new_cache()
            first = self.forward([plain(caches[0], long[:3]), plain(caches[1], short)])
            second = self.forward([plain(caches[0], long[3:])])
            return [torch.cat([first[0].logits, second[0].logits]), first[1].logits]

        def resumed(exit_layer: int | None) -> Tensor:
            tokens, cache = torch.arange(4, device=self.device) % self.vocab_size, self.new_cache()
            if exit_layer is not None:
                self.forward([plain(cache, tokens[:2])], exit_layer=exit_layer)
            return self.forward([plain(cache, tokens, 2 if exit_layer else 0)])[0].logits

        hf_check.self_test(model, together, self.vocab_size, self.name)
        if not hf_check.agrees(lambda: resumed((self.num_layers + 1) // 2), lambda: resumed(None)):
            self.can -= {"early_exit", "lowbit"}


def _unfed(item: _Item) -> _Item:
    """The tokens of an item that have not been through the first layers."""
    done = item.segment.resume
    if not done:
        return item
    tokens = item.tokens[done:]
    described = feed(item.cache.length + done, len(tokens), item.segment.parents)
    return _Item(item.segment, item.cache, Part(described, item.cache.appenders(described.before)), tokens)


def _commit(items: Sequence[_Item]) -> None:
    for item in items:
        for writer in item.part.writers:
            writer.commit()
        item.cache.length = item.part.feed.total


def _outputs(items: Sequence[_Item], logits: Tensor, states: dict[int, Tensor], layers: Sequence[int]) -> list[Output]:
    rows = torch.split(logits, [item.segment.rows for item in items])
    if not layers:
        return [Output(share) for share in rows]
    wanted = torch.stack([states[layer][0] for layer in layers], 1)
    every = torch.split(wanted, [item.size for item in items])
    return [Output(share, hidden) for share, hidden in zip(rows, every, strict=True)]
