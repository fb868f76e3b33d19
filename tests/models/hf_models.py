"""Small random models of every architecture the transformers backend must run, and how they are fed and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from draftproof.models.hf import HfModel
from draftproof.types import Output, Segment

VOCABULARY = 97
WINDOW = 6
CLOSE = 1e-5
LONG = 5e-5  # over 1,300 entries transformers' own two attention functions differ by 1.2e-5
SHAPE = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED = ["sliding_attention", "full_attention"] * 2


def config(family: str, **changes: Any) -> PreTrainedConfig:
    """A small configuration of the family; `mistral`, `gemma2` and `gemma3` have sliding windows."""
    builders: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
        "llama": (LlamaConfig, {}),
        "mistral": (MistralConfig, {"sliding_window": WINDOW}),
        "qwen2": (Qwen2Config, {}),
        "qwen3": (Qwen3Config, {"head_dim": 8}),
        "gemma2": (
            Gemma2Config,
            {"sliding_window": WINDOW, "head_dim": 8, "layer_types": _MIXED, "attn_logit_softcapping": 5.0},
        ),
        "gemma3": (Gemma3TextConfig, {"sliding_window": WINDOW, "head_dim": 8, "layer_types": _MIXED}),
        "phi3": (Phi3Config, {}),
        "olmo2": (Olmo2Config, {}),
        "gpt_neox": (GPTNeoXConfig, {}),
    }
    kind, extra = builders[family]
    return kind(**{**_SHAPE, **extra, **changes})


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "gpt_neox")
WINDOWED = ("mistral", "gemma3")


def build(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random model in float32 whose logits are far from flat, with transformers' own eager attention."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(family, **changes), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norm weights of one and biases of zero would hide a norm or a bias that is left out.
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn(weight.shape))
            elif "lm_head" in name or "embed" in name:
                weight.mul_(1.5)
    return model


def tokens(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def plain(model: Any, ids: Sequence[int]) -> Tensor:
    """[n, V]: the model's own forward over one text."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def straight(cache: Any, ids: Sequence[int], rows: int | None = None, resume: int = 0) -> Segment:
    """A plain continuation."""
    parents = tuple(range(-1, len(ids) - 1))
    return Segment(
        cache, torch.tensor(list(ids), dtype=torch.int64), parents, len(ids) if rows is None else rows, resume
    )


def largest(found: Tensor, expected: Tensor) -> float:
    """Largest difference in units of the largest logit."""
    assert found.shape == expected.shape
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


@dataclass
class Pair:
    """A model and the same weights behind our interface."""

    own: Any
    ours: HfModel

    def rows(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """[len(paths), V]: the row behind each text."""
        return torch.stack([plain(self.own, path)[-1] for path in paths])


def pair_of(family: str) -> Pair:
    """A random model of the family, wrapped."""
    own = build(family)
    return Pair(own, HfModel.wrap(own))


def feed(model: HfModel, cache: Any, ids: Sequence[int], **options: Any) -> Output:
    return model.forward([straight(cache, ids)], **options)[0]


def branch(cache: Any, ids: Sequence[int], parents: Sequence[int], rows: int | None = None, resume: int = 0) -> Segment:
    ids = list(ids)
    return Segment(cache, torch.tensor(ids), tuple(parents), len(ids) if rows is None else rows, resume)


def entries(cache: Any) -> Iterator[tuple[Tensor, int]]:
    """Keys and values [layers, heads, entries, dim] that are held, with the number of the first."""
    for store in cache.stores:
        for tensor in (store.keys, store.values):
            yield tensor[:, :, : cache.length - store.start], store.start


def assert_same_cache(found: Any, expected: Any) -> None:
    """R6.1: what is held is what feeding the same text to an empty cache holds."""
    assert found.length == expected.length and found.shallow == expected.shallow == 0
    for (ours, start), (theirs, origin) in zip(entries(found), entries(expected), strict=True):
        first = max(start, origin)
        ours, theirs = ours[:, :, first - start :], theirs[:, :, first - origin :]
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max()))


class NoHostReads(TorchDispatchMode):
    """Fails on every operation that on a device would wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default")), name
        return func(*args, **(kwargs or {}))


def of(kind: type[PreTrainedConfig], **changes: Any) -> Any:
    """A small model of another architecture."""
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    return AutoModelForCausalLM.from_config(kind(**{**shape, **changes}), attn_implementation="eager").eval()
