"""One decoder layer over the target's states and the next token's embedding, for serving and for training alike.

EAGLE-1 (Li et al. 2401.15077, section 4.1): fc over [embedding, state], a layer, the target's own head.
EAGLE-3 (Li et al. 2503.01840, section 3): fc over the states of several layers; the layer's attention reads
[norm(embedding), norm(state)]; a norm and a head of its own over a reduced vocabulary.

n entries. Entry i is the pair of token i + 1 and the state of token i, at position i; behind it comes token i + 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from draftproof.contracts import HeadParts, Product, Shared

Layout = Literal["eagle1", "eagle3"]
_LINEAR = ("fc", "qkv", "out", "gate_up", "down", "lm_head")


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and switches of a head.

    vocab, draft_vocab     tokens of the target, and those the head gives logits for
    target_hidden          width of the target's states
    layers                 target layers whose states it reads, in the order of fc's columns: l is behind l layers
    rope                   rotary parameters as transformers writes them ("rope_type", "rope_theta", ...)
    norm_before_residual   the residual starts from the normed state
    input_norm             a norm on what fc reads (EAGLE-3 alone)
    out_norm               a norm in front of the head
    """

    layout: Layout
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    vocab: int
    draft_vocab: int
    target_hidden: int
    layers: tuple[int, ...]
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_context: int = 2048
    norm_before_residual: bool = False
    input_norm: bool = False
    out_norm: bool = True
    fc_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    own_head: bool = True
    own_embedding: bool = False

    @property
    def fused(self) -> int:
        """Width that fc reads."""
        return len(self.layers) * self.target_hidden if self.layout == "eagle3" else self.hidden + self.target_hidden


class Norm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] / rms(x) * weight."""
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _Served(nn.Module):
    """A weight behind the backend's own product."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class EagleHead(nn.Module):
    """The head's mathematics, step by step. Weights that it shares with its target are not among its own.

    ids [draft_vocab] int64: the target's token of every logit; None: all tokens in their order.
    """

    ids: Tensor | None
    frequencies: Tensor

    def __init__(self, config: HeadConfig, ids: Tensor | None = None) -> None:
        super().__init__()
        c, self.config = config, config
        width = c.heads * c.head_dim
        entered = 2 * c.hidden if c.layout == "eagle3" else c.hidden
        self.fc: nn.Module = nn.Linear(c.fused, c.hidden, bias=c.fc_bias)
        self.qkv: nn.Module = nn.Linear(entered, width + 2 * c.kv_heads * c.head_dim, bias=c.qkv_bias)
        self.out: nn.Module = nn.Linear(width, c.hidden, bias=c.out_bias)
        self.gate_up: nn.Module = nn.Linear(c.hidden, 2 * c.intermediate, bias=c.mlp_bias)
        self.down: nn.Module = nn.Linear(c.intermediate, c.hidden, bias=c.mlp_bias)
        self.lm_head: nn.Module = nn.Linear(c.hidden, c.draft_vocab, bias=False) if c.own_head else nn.Identity()
        self.embedding = nn.Embedding(c.vocab, c.hidden) if c.own_embedding else None
        self.mlp_norm = Norm(c.hidden, c.eps)
        self.embedding_norm = Norm(c.hidden, c.eps) if c.layout == "eagle3" else None
        self.state_norm = Norm(c.hidden, c.eps) if c.layout == "eagle3" else None
        self.input_norm = Norm(c.fused, c.eps) if c.input_norm else None
        self.norm = Norm(c.hidden, c.eps) if c.out_norm else None
        self.query_norm = Norm(c.head_dim, c.eps) if c.qk_norm else None
        self.key_norm = Norm(c.head_dim, c.eps) if c.qk_norm else None
        self.register_buffer("ids", ids)
        frequencies, self.rope_scale = rope(c)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.mlp_norm.weight.device

    def combine(self, states: Tensor) -> Tensor:
        """[n, L, target_hidden] of the target to the [n, H] that the layer reads; EAGLE-1 takes them as they are."""
        if self.config.layout == "eagle1":
            return states[:, 0]
        flat = states.flatten(1)
        fused: Tensor = self.fc(flat if self.input_norm is None else self.input_norm(flat))
        return fused

    def enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and states [..., H] to (what attention reads, what the residual starts from)."""
        if self.embedding_norm is None or self.state_norm is None:
            fused: Tensor = self.fc(torch.cat([embedded, states], -1))
            return fused, fused
        normed = self.state_norm(states)
        entered = torch.cat([self.embedding_norm(embedded), normed], -1)
        return entered, normed if self.config.norm_before_residual else states

    def project(self, entered: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """[n, entered] to queries [heads, n, d], keys and values [kv_heads, n, d], rotated."""
        c, n = self.config, len(entered)
        parts = self.qkv(entered).view(n, c.heads + 2 * c.kv_heads, c.head_dim).transpose(0, 1)
        q, k, v = parts.split([c.heads, c.kv_heads, c.kv_heads])
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
            return rotate(q, angles), rotate(k, angles), v
        turned = rotate(parts[: c.heads + c.kv_heads], angles)
        return turned[: c.heads], turned[c.heads :], v

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [n, d] of the positions [n]."""
        half = positions.float()[:, None] * self.frequencies
        both = torch.cat([half, half], -1)
        return both.cos() * self.rope_scale, both.sin() * self.rope_scale

    def leave(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Attention's output [n, heads * d] and the residual [n, H] to the layer's output, the head's own state."""
        state = residual + self.out(attended)
        gate, up = self.gate_up(self.mlp_norm(state)).chunk(2, -1)
        output: Tensor = state + self.down(torch.nn.functional.silu(gate) * up)
        return output

    def logits(self, states: Tensor) -> Tensor:
        """[n, draft_vocab] over the head's own vocabulary."""
        found: Tensor = self.lm_head(states if self.norm is None else self.norm(states))
        return found

    def parts(self, shared: Shared) -> HeadParts | None:
        """For a backend that computes the step as a whole; None for a form that `contracts.HeadParts` does not have."""
        c = self.config
        if c.layout != "eagle3" or not c.out_norm or c.fc_bias or c.mlp_bias:
            return None
        tensors = {name: value.detach() for name, value in self.state_dict().items() if name != "ids"}
        if not c.own_head:
            every = torch.arange(c.vocab) if self.ids is None else self.ids
            tensors["lm_head.weight"] = shared.head_rows(every)
        return HeadParts(
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            intermediate=c.intermediate,
            eps=c.eps,
            frequencies=self.frequencies,
            rope_scale=self.rope_scale,
            normed_residual=c.norm_before_residual,
            tensors=tensors,
        )

    def give_up(self) -> None:
        """Let go of the weights that a backend has taken over; sizes and the map of tokens stay."""
        for name in (*_LINEAR, "embedding"):
            setattr(self, name, nn.Identity())
        self.requires_grad_(False).eval()

    def serve(self, product: Callable[[Tensor, Tensor | None], Product], head: Product | None) -> None:
        """Put the backend's products in the place of the linear layers; `head` where the head has none of its own."""
        for name in _LINEAR:
            layer = getattr(self, name)
            if isinstance(layer, nn.Linear):
                setattr(self, name, _Served(product(layer.weight.detach(), layer.bias)))
        if head is not None:
            self.lm_head = _Served(head)
        self.requires_grad_(False).eval()


def rope(config: HeadConfig) -> tuple[Tensor, float]:
    """([d / 2] rotary frequencies, the factor on cosines and sines), by transformers' own Llama."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    c = config
    made = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=c.hidden,
            num_attention_heads=c.heads,
            head_dim=c.head_dim,
            max_position_embeddings=c.max_context,
            rope_parameters=dict(c.rope),
        )
    )
    return made.inv_freq.detach().clone(), float(made.attention_scaling)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x [heads, n, d] turned by the angles [n, d]: the halves of d are the two coordinates."""
    cosines, sines = angles
    half = x.shape[-1] // 2
    return x * cosines + torch.cat([-x[..., half:], x[..., :half]], -1) * sines
