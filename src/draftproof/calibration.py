"""A low-bit copy as a drafter, calibrated on the project's own prompts and what the target writes behind them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftproof.drafters.children import Shape
from draftproof.drafters.lowbit import LowBitDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.files import cache_folder
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.prompts import bundled
from draftproof.types import InputError, SamplingParams
from draftproof.verify import TokenRule

_LONGEST_PROMPT = 512
_WRITTEN = 128
_STARTS = 32


def load_lowbit(
    model: Any, text: Any, options: Mapping[str, Any], shape: Shape, progress: Callable[[str, float], None]
) -> LowBitDrafter:
    """The target's low-bit copy as a drafter; options are those of `LowBit`."""
    settings = LowBit(**options)
    if "lowbit" not in model.can:
        raise InputError(f"{model.name} cannot be copied at fewer bits: use another drafter.")
    twin = model.lowbit(settings, calibration(model, text, progress))
    return LowBitDrafter(model, twin, shape)


def calibration(model: Any, text: Any, progress: Callable[[str, float], None]) -> Calibration:
    """For a target and its text, None where it has no tokenizer: then it writes from single random tokens on."""
    ends = () if text is None else tuple(text.eos_ids)
    return Calibration(lambda: written(model, text, progress), ends, cache_folder(), progress)


def written(model: Any, text: Any, progress: Callable[[str, float], None]) -> list[list[int]]:
    """Prompts with the target's own continuations, drawn at temperature 0.7, every one from its own seed."""
    prompts = _prompts(text) if text is not None else _random_starts(model.vocab_size)
    room = _WRITTEN + _LONGEST_PROMPT if model.max_context is None else model.max_context
    engine = Engine(model, NullDrafter(), TokenRule(), text)
    requests = [
        engine.submit(prompt[: max(1, room - _WRITTEN)], SamplingParams(temperature=0.7, max_tokens=_WRITTEN, seed=i))
        for i, prompt in enumerate(prompts)
    ]
    for step in range(_WRITTEN):
        progress("letting the target write texts to calibrate on", step / _WRITTEN)
        engine.step(requests)
    for request in requests:
        request.finish("cancelled")
    return [list(request.context) for request in requests]


def _prompts(text: Any) -> list[list[int]]:
    """The bundled prompts as the target is asked them."""
    first = [prompt.turns[0] for prompt in bundled() if prompt.turns]
    chats = bool(text.tokenizer.chat_template)
    return [(text.chat(prompt) if chats else text.encode(prompt))[:_LONGEST_PROMPT] for prompt in first]


def _random_starts(size: int) -> Sequence[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(size)] for _ in range(_STARTS)]
