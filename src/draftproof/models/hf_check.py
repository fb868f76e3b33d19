"""What is asked of a model before it is used: refuse early, with one sentence that says why.

A configuration and a class are judged without weights; then one token goes through the model and every layer
writes down what its attention was given; an architecture that is not in `VERIFIED` must also reproduce its own forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof.models.hf_attention import KWARG, Probe
from draftproof.models.hf_cache import Layout
from draftproof.types import InputError

# Compared with transformers' own forward in tests/models/test_hf.py: chunked, ragged, in trees, through exits.
VERIFIED = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"}
    | {"Gemma3ForCausalLM", "Phi3ForCausalLM", "Olmo2ForCausalLM", "GPTNeoXForCausalLM"}
)

_POSITIONAL = ("full_attention", "sliding_attention")
_RECURRENT = re.compile(r"Mamba|Recurrent|DeltaNet|ShortConv|LightningAttention|Rwkv|LSTM|SSM|Mixer$")
_SPARSE = re.compile(r"Indexer")
_FAILURES = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model."""
    return config.get_text_config(decoder=True)


def refuse_config(config: Any, name: str) -> None:
    """Refuse what a configuration alone rules out."""
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{name} is an encoder-decoder model ({config.model_type}): use a decoder-only language model."
        )
    text = text_config(config)
    for layer_type in getattr(text, "layer_types", None) or ():
        if layer_type not in _POSITIONAL and layer_type not in ("sparse", "dense"):
            raise InputError(f"{name} {_no_way_back(layer_type)}")
    if getattr(text, "attention_chunk_size", None) and "chunked_attention" in str(getattr(text, "layer_types", "")):
        raise InputError(f"{name} {_no_way_back('chunked_attention')}")


def refuse_class(cls: Any, name: str) -> None:
    """Refuse an architecture whose attention cannot be replaced, or whose state is no list of entries."""
    if getattr(cls, "_is_stateful", False):
        raise InputError(f"{name} {_no_way_back(cls.__name__)}")
    if not cls._can_set_attn_implementation():
        raise InputError(
            f"{name}: {cls.__name__} does not use transformers' attention interface, through which draftproof keeps its"
            " caches; use an architecture that does, such as Llama, Qwen, Mistral, Gemma, Phi or OLMo."
        )


def refuse_modules(model: Any, name: str) -> None:
    """Refuse layers that keep a recurrent state or choose their entries themselves."""
    for module in model.modules():
        kind = type(module).__name__
        if _RECURRENT.search(kind) or _SPARSE.search(kind):
            raise InputError(f"{name} {_no_way_back(kind)}")


def refuse_state(model: Any, name: str) -> None:
    """Refuse a model object that cannot be shared as it stands."""
    if model.training:
        raise InputError(f"{name} is in training mode, where dropout makes every call differ: call model.eval() first.")
    devices = {str(tensor.device) for tensor in model.parameters()}
    if len(devices) != 1 or "meta" in devices:
        raise InputError(f"{name} has its weights on {', '.join(sorted(devices))}: load it on one device.")


def context_limit(config: Any) -> int | None:
    """Most positions of a request, None if the configuration names no limit.

    Frequencies that change beyond a length ("longrope") end there: behind it cached keys would belong to other
    frequencies than the new ones, and one request's length would change another's.
    """
    text = text_config(config)
    limits = [getattr(text, "max_position_embeddings", None)]
    rope = getattr(text, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            limits.append(parameters.get("original_max_position_embeddings"))
    known = [int(limit) for limit in limits if limit]
    return min(known) if known else None


def probe(net: Any, count: int, name: str) -> tuple[Layout, int, bool]:
    """One token through the prepared modules: layout of its caches, columns of its logits, do layers return tuples."""
    notes = Probe()
    device = next(net.parameters()).device
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    try:
        logits = net(token, position_ids=token, use_cache=False, **{KWARG: notes}).logits
    except _FAILURES as error:
        raise InputError(f"{name} does not run through the attention interface: {first_line(error)}.") from error
    if notes.problems:
        raise InputError(f"{name} {notes.problems[0]}, which draftproof does not support.")
    if sorted(notes.kinds) != list(range(count)) or notes.tapped != count:
        raise InputError(f"{name} does not hand every one of its {count} layers' attention to the attention interface.")
    _compare_windows(net.config, notes, name)
    if not torch.isfinite(logits).all():
        raise InputError(
            f"{name} gives logits that are not finite: its weights are damaged or overflow in {logits.dtype}."
        )
    kinds = [notes.kinds[layer] for layer in range(count)]
    return Layout.of(kinds, device, context_limit(net.config)), logits.shape[-1], notes.tuples


def self_test(own: Any, forward: Callable[[Sequence[Sequence[int]]], list[Tensor]], vocabulary: int, name: str) -> None:
    """`forward` feeds two sequences in two calls; its logits must be those of the model's own forward."""
    draw = torch.Generator().manual_seed(0)
    sequences = [torch.randint(vocabulary, (size,), generator=draw).tolist() for size in (5, 3)]
    try:
        results = forward(sequences)
        for tokens, logits in zip(sequences, results, strict=True):
            ids = torch.tensor([tokens], device=logits.device)
            expected = own(ids, use_cache=False).logits[0]
            if not close(logits, expected):
                raise InputError(
                    f"{name}: {type(own).__name__} gives other logits through draftproof's attention than by itself,"
                    " so it cannot be used; please report the architecture."
                )
    except _FAILURES as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} does not run with draftproof's caches: {first_line(error)}.") from error


def agrees(first: Callable[[], Tensor], second: Callable[[], Tensor]) -> bool:
    """Do two ways to compute logits run, and to the same result?"""
    try:
        return close(first(), second())
    except _FAILURES:
        return False


def close(logits: Tensor, expected: Tensor) -> bool:
    """Mean difference against the spread of the logits: a wrong mask moves all rows, rounding does not."""
    tolerance = 1e-3 if expected.dtype == torch.float32 else 0.1
    difference = (logits.float() - expected.float()).abs().mean()
    return bool(difference <= tolerance * expected.float().std())


def _compare_windows(config: Any, notes: Probe, name: str) -> None:
    """A window that a layer has but does not pass on would be ignored, so it is a refusal."""
    types = getattr(text_config(config), "layer_types", None)
    for layer, layer_type in enumerate(types or ()):
        window = notes.kinds[layer].sight.window
        if layer_type in _POSITIONAL and (layer_type == "sliding_attention") != (window is not None):
            raise InputError(
                f"{name}: layer {layer} is {layer_type} but passes the window {window} to its attention,"
                " so draftproof cannot tell what it may see."
            )


def _no_way_back(layer_type: str) -> str:
    return (
        f'has layers of type "{layer_type}", whose state cannot be rolled back to a shorter text:'
        " use a model with full or sliding-window attention only."
    )


def first_line(error: Exception) -> str:
    """What an error says, as part of a sentence."""
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
