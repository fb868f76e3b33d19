"""A low-bit copy of a transformers model over the same caches: its linear layers at 4 bits by PyTorch's own kernels.

Everything else, weights included, is the target's. PyTorch computes 4-bit products in bfloat16 on the CPU and on CUDA;
in other dtypes only what enters and leaves a layer is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.models import hf_layers
from draftproof.models.lowbit.calibrate import rounded_layers
from draftproof.models.lowbit.rounding import Rounded
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.lowbit.store import fingerprint, load_or_make, vocabulary
from draftproof.types import InputError

_ZERO = 8  # PyTorch's kernels compute (code - 8) * scale + zero
_AGREES = 0.03  # largest error of a product in bfloat16, relative to the largest entry


def low_bit_net(
    trunk: hf_layers.Trunk, size: int, settings: LowBit, calibration: Calibration
) -> tuple[Any, Tensor | None, int]:
    """(the copy's modules, [K] the tokens of its head or None, bytes of its own); `size`: the target's vocabulary.

    InputError where PyTorch has no such kernels for the device, or other than 4 bits are asked for.
    """
    device = next(trunk.net.parameters()).device
    _packer(device)
    if settings.bits != 4:
        raise InputError(f"lowbit on hf: has 4 bits, not {settings.bits}: PyTorch's 4-bit kernels do the work.")

    def make(texts: Calibration) -> Iterator[tuple[str, Rounded]]:
        plain = hf_layers.private(trunk.net)
        plain.set_attn_implementation("eager")
        return rounded_layers(plain, ".".join(trunk.path), settings, texts)

    store = load_or_make(fingerprint(trunk.net.named_parameters()), settings, calibration, make)
    if not store.weights:
        raise InputError("lowbit finds no linear layer to round in this model: use another drafter.")
    net, own = hf_layers.private(trunk.net), 0
    for name, rounded in store.weights.items():
        path = name.removesuffix(".weight")
        owner, _, last = path.rpartition(".")
        bias = net.get_submodule(path).bias
        made = FourBitLinear(rounded, bias, device)
        own += sum(tensor.nbytes for tensor in made.buffers())
        setattr(net.get_submodule(owner), last, made)
    ids = vocabulary(size, settings, calibration.always, store.frequent)
    head = net.get_output_embeddings()
    if ids is not None and type(head) is nn.Linear:
        ids = ids.to(device)
        rows = _rows_of(head, ids)
        net.set_output_embeddings(rows)
        return net, ids, own + sum(tensor.nbytes for tensor in rows.parameters())
    return net, None, own


def _rows_of(head: nn.Linear, ids: Tensor) -> nn.Module:
    """The head for these tokens alone."""
    bias = None if head.bias is None else head.bias.detach()[ids]
    weight = head.weight.detach()[ids]
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made


class FourBitLinear(nn.Module):
    """x [..., depth] -> [..., outputs] with weights on a grid of 4 bits."""

    def __init__(self, rounded: Rounded, bias: Tensor | None, device: torch.device) -> None:
        super().__init__()
        outputs, depth = rounded.codes.shape
        scales, minima = rounded.scales.float(), rounded.minima.float()
        zeros = torch.stack([scales, minima + _ZERO * scales], 2).transpose(0, 1).contiguous()
        self.in_features, self.out_features = depth, outputs
        self._group = depth // scales.shape[1]
        self._pack, self._multiply = _packer(device)
        self.bias = bias
        self.register_buffer("codes", self._pack(rounded.codes.to(device)), persistent=False)
        self.register_buffer("zeros", zeros.to(device, torch.bfloat16), persistent=False)
        self._check(rounded, device)

    @property
    def weight(self) -> Tensor:
        """Stands for its device and dtype where a model looks at them."""
        return self._buffers["zeros"]  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """The product, in the dtype of x."""
        flat = x.reshape(-1, self.in_features).to(torch.bfloat16)
        out: Tensor = self._multiply(flat, self.codes, self._group, self.zeros).to(x.dtype)
        out = out if self.bias is None else out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def _check(self, rounded: Rounded, device: torch.device) -> None:
        """The layout of PyTorch's packed weights is its own affair, so every matrix is tried out once."""
        x = torch.linspace(-1, 1, self.in_features, device=device)[None].cos()
        expected = x.float() @ rounded.dense().to(device).T
        found = self._multiply(x.to(torch.bfloat16), self.codes, self._group, self.zeros)
        if not (found - expected).abs().max() <= _AGREES * expected.abs().max().clamp_min(1e-6) + 1e-3:
            raise InputError("PyTorch's 4-bit kernels give wrong products on this device: use another drafter.")


def _packer(device: torch.device) -> tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]:
    """(packing of codes [outputs, depth] uint8, multiplication) of PyTorch for a device."""
    ops: Any = torch.ops.aten
    if device.type == "cpu":
        return lambda codes: ops._convert_weight_to_int4pack_for_cpu(codes.int(), 1), ops._weight_int4pack_mm_for_cpu
    if device.type == "cuda":
        return _pack_cuda, ops._weight_int4pack_mm
    raise InputError(f"lowbit on hf: runs on cpu and cuda, not on {device.type}: use another drafter.")


def _pack_cuda(codes: Tensor) -> Tensor:
    ops: Any = torch.ops.aten
    tiles = next((t for t in (8, 4, 2) if codes.shape[1] % (16 * t) == 0), 2)
    packed: Tensor = ops._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)
    return packed
