"""What a trained head takes from a native model: rows and products of its packed weights."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from draftproof import _kernels
from draftproof.contracts import HeadParts, Product
from draftproof.models.native.config import DecoderSpec
from draftproof.models.native.grid import GROUP
from draftproof.models.native.head import NativeHead, make_head
from draftproof.models.native.pack import pack


class NativeShared:
    """`contracts.Shared` of a native model. Its products are int8, float32 where the model's weights are."""

    def __init__(self, spec: DecoderSpec, config: _kernels.Config, weights: str, isa: str, threads: int) -> None:
        self.width = spec.hidden
        self._format: Literal["f32", "int8"] = "f32" if weights == "f32" else "int8"
        self._config, self._eps, self._isa, self._threads = config, spec.eps, isa, threads
        self._norm = torch.tensor(config.final_norm)
        self._arena = _kernels.Arena()

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the input embedding."""
        return _rows(self._config.embedding, tokens)

    def head_rows(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the output head."""
        return _rows(self._config.head, tokens)

    def head(self) -> Product:
        """The output head, packed as the model has it."""
        return self._product(self._config.head)

    def final_norm(self, states: Tensor) -> Tensor:
        """[n, H]: the states as the output head reads them."""
        return torch.nn.functional.rms_norm(states.float(), (self.width,), self._norm, self._eps)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """Packed and multiplied by the model's threads; a depth that the kernels do not take is left to torch."""
        if weight.shape[1] % GROUP:
            plain = weight.float()
            return lambda x: torch.nn.functional.linear(x, plain, bias)
        multiply = self._product(pack(weight.detach(), self._format, self._arena))
        return multiply if bias is None else lambda x: multiply(x) + bias

    def whole_head(self, parts: HeadParts) -> NativeHead | None:
        """The head's step in one compiled call, its matrices in the format of `product`."""
        return make_head(parts, self._config.embedding, self._format, self._isa, self._threads)

    def _product(self, matrix: _kernels.Matrix) -> Product:
        def multiply(x: Tensor) -> Tensor:
            out = torch.empty(len(x), matrix.outputs)
            if len(x):
                _kernels.matmul(matrix, x.contiguous().numpy(), out.numpy(), isa=self._isa, threads=self._threads)
            return out

        return multiply


def _rows(matrix: _kernels.Matrix, tokens: Tensor) -> Tensor:
    rows = np.empty((len(tokens), matrix.depth), np.float32)
    for i, token in enumerate(tokens.tolist()):
        matrix.unpack_row(token, rows[i])
    return torch.from_numpy(rows)
