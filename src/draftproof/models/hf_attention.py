"""One attention function for transformers: every segment reads and writes its own cache.

What a call needs travels with it, as a keyword argument that transformers hands from layer to layer. So there is no
global state and several threads may call at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftproof.models.hf_cache import Append, Kind, Layout, Replace
from draftproof.models.hf_layout import Block, Feed, Sight, blocks

NAME = "draftproof"
KWARG = "draftproof_call"

# What transformers hands down for other attention functions, and what has no meaning without a padding mask.
_KNOWN = frozenset(
    {"position_ids", "cache_position", "position_embeddings", "use_cache", "dropout", "scaling", "is_causal"}
    | {"output_attentions", "output_hidden_states", "output_router_logits"}
)


@dataclass(eq=False)
class Part:
    """One segment's share of one pass through the layers. `blocks` are built for a kind of layers when first met."""

    feed: Feed
    writers: Sequence[Append | Replace]
    blocks: dict[int, list[Block]] = field(default_factory=dict)


@dataclass(eq=False)
class Call:
    """One pass through the layers.

    taps      layers whose states are wanted: l is behind the l-th decoder layer, 0 is before the first
    states    those states, [1, T, H]
    injected  [1, T, H]: states that take the place of what the first layers would compute
    """

    parts: Sequence[Part]
    layout: Layout
    taps: frozenset[int] = frozenset()
    injected: Tensor | None = None
    states: dict[int, Tensor] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, softcap: float | None
    ) -> Tensor:
        """query [1, heads, T, dim], key and value [1, key heads, T, dim] -> [1, T, heads, value dim]."""
        group, row = self.layout.where[layer]
        sight = self.layout.kinds[group].sight
        outputs: list[Tensor] = []
        offset = 0
        for part in self.parts:
            size, writer = part.feed.size, part.writers[group]
            if group not in part.blocks:
                part.blocks[group] = blocks(part.feed, sight, writer.origin, query.dtype, query.device)
            asked, *new = _share(offset, size, query, key, value)
            keys, values = writer.write(row, *new)
            for block in part.blocks[group]:
                low, seen = block.low - writer.origin, block.high - block.low
                (rows,) = _share(block.start, block.stop - block.start, asked)
                entries = keys.narrow(2, low, seen), values.narrow(2, low, seen)
                outputs.append(_attend(rows, entries, block, sight.groups, (scaling, softcap)))
            offset += size
        # Some architectures view the result, as transformers' own functions return it contiguous.
        return outputs[0].contiguous() if len(outputs) == 1 else torch.cat(outputs, 1)


@dataclass(eq=False)
class Probe:
    """Stands in for a `Call` with one token and writes down what every layer asks of its attention."""

    kinds: dict[int, Kind] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    tuples: bool = False
    tapped: int = 0

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """The one token sees itself alone, so the output is its value."""
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self.kinds:
            self.problems.append("runs attention more than once a layer")
            layer = len(self.kinds)
        named = {name: v for name, v in options.items() if v is not None and name not in _KNOWN}
        window, softcap = named.pop("sliding_window", None), named.pop("softcap", None)
        if named:
            self.problems.append(f"passes {', '.join(sorted(named))} to its attention")
        if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
            self.problems.append("attends to later tokens")
        if query.shape[2] != key.shape[2] or query.shape[1] % key.shape[1] or key.dtype != value.dtype:
            self.problems.append("gives attention keys that do not belong to the tokens fed")
        groups = query.shape[1] // key.shape[1]
        sight = Sight(window, groups, softcap is not None)
        self.kinds[layer] = Kind(sight, key.shape[1], key.shape[3], value.shape[3], key.dtype)
        return value.repeat_interleave(groups, 1).transpose(1, 2).contiguous()


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The function registered with transformers' attention interface under `NAME`."""
    call = options.pop(KWARG, None)
    if isinstance(call, Probe):
        return call.attend(module, query, key, value, {**options, "attention_mask": attention_mask}), None
    if not isinstance(call, Call):
        raise RuntimeError("its layers do not hand keyword arguments on to their attention")
    layer: Any = module.layer_idx
    return call.attend(layer, query, key, value, options.get("scaling"), options.get("softcap")), None


def register() -> None:
    """Make the function known to transformers; doing so again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)


def _share(start: int, size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Rows [start, start + size) of [1, heads, T, dim]."""
    if tensors[0].shape[2] == size:
        return tensors
    return tuple(tensor.narrow(2, start, size) for tensor in tensors)


def _attend(
    query: Tensor,
    entries: tuple[Tensor, Tensor],
    block: Block,
    groups: int,
    options: tuple[float | None, float | None],
) -> Tensor:
    """query [1, heads, T, dim] on keys and values [1, key heads, S, dim] -> [1, T, heads, value dim].

    options: factor of the scores (None: dim ** -0.5) and their cap.
    """
    _, heads, rows, dim = query.shape
    key, value = entries
    scaling, softcap = options
    if softcap is not None:
        output = _capped(query, key, value, block.bias, dim**-0.5 if scaling is None else scaling, softcap)
    elif block.packed:
        # Heads that share a key head are rows of one product: the keys are read once, and no copy of them is made.
        packed = query.reshape(1, key.shape[1], -1, dim)
        output = F.scaled_dot_product_attention(packed, key, value, attn_mask=block.bias, scale=scaling)
    else:
        output = F.scaled_dot_product_attention(
            query.reshape(-1, groups, rows, dim),
            key.transpose(0, 1).expand(-1, groups, -1, -1),
            value.transpose(0, 1).expand(-1, groups, -1, -1),
            attn_mask=block.bias,
            is_causal=block.causal,
            scale=scaling,
        )
    return output.reshape(1, heads, rows, value.shape[3]).transpose(1, 2)


def _capped(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float, cap: float) -> Tensor:
    """Gemma-2 (arXiv 2408.00118, section 2): scores become cap * tanh(scores / cap) before the mask."""
    _, heads, rows, dim = query.shape
    scores = torch.matmul(query.reshape(1, key.shape[1], -1, dim), key.transpose(2, 3))
    scores = torch.tanh(scores * (scaling / cap)) * cap
    if bias is not None:
        scores = (scores.view(1, heads, rows, -1) + bias).view_as(scores)
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(query.dtype), value)
