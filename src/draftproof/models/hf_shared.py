"""What a trained head takes from a transformers model: its embedding, output head and final norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftproof.contracts import Product
from draftproof.models.hf_layers import Trunk
from draftproof.types import InputError

_NORMS = ("norm", "final_layer_norm", "final_layernorm", "ln_f")


class HfShared:
    """`contracts.Shared` of a transformers model; products are torch's, in the model's dtype and on its device."""

    def __init__(self, trunk: Trunk, name: str) -> None:
        inner: Any = trunk.net
        for part in trunk.path[:-1]:
            inner = inner._modules[part]
        embedding, head = trunk.net.get_input_embeddings(), trunk.net.get_output_embeddings()
        norm = next((inner._modules[one] for one in _NORMS if one in inner._modules), None)
        if embedding is None or head is None or norm is None:
            raise InputError(f"{name} has its embedding, output head or last norm in a place draftproof cannot find.")
        self.width = int(embedding.weight.shape[1])
        self._head, self._norm = head, norm
        self._embedding: Tensor = embedding.weight.detach()
        self._like: Tensor = head.weight.detach()

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the input embedding."""
        return self._embedding.index_select(0, tokens.to(self._embedding.device)).float()

    def head_rows(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the output head."""
        return self._like.index_select(0, tokens.to(self._like.device)).float()

    @torch.no_grad()
    def _whole(self, states: Tensor) -> Tensor:
        logits: Tensor = self._head(states.to(self._like.dtype))
        return logits.float()

    def head(self) -> Product:
        """The output head itself; nothing is copied."""
        return self._whole

    @torch.no_grad()
    def final_norm(self, states: Tensor) -> Tensor:
        """[n, H]: the states as the output head reads them."""
        normed: Tensor = self._norm(states.to(self._like.dtype))
        return normed.float()

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """torch's linear in the model's dtype."""
        own = weight.detach().to(self._like.device, self._like.dtype)
        shift = None if bias is None else bias.detach().to(own)
        return lambda x: torch.nn.functional.linear(x.to(own.dtype), own, shift).float()
