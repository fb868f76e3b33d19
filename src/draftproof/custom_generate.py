"""`model.generate(..., custom_generate=draftproof.hf_generate, drafter=…)`: transformers' users stay where they are.

Processors and stopping criteria are the ones transformers prepared; what comes back is what its own decoding returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof import catalog
from draftproof.contracts import Drafter
from draftproof.engine import Engine
from draftproof.models.hf import HfModel
from draftproof.request import Request
from draftproof.types import InputError, SamplingParams


def hf_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    drafter: Any = "ngram",
    rule: str = "auto",
    **model_kwargs: Any,
) -> Any:
    """Sequences [B, prompt + new] int64, or a GenerateDecoderOnlyOutput with `return_dict_in_generate`.

    drafter: a spec string, a transformers model of the same vocabulary, or a `Drafter`; rule: a rule's name. Rows may
    be left-padded. Sampling takes its seeds from torch's global generator, so `torch.manual_seed` repeats a call.
    InputError for beams, encoder-decoder models and whatever the backend refuses.
    """
    config = generation_config
    if (config.num_beams or 1) > 1:
        raise InputError("speculative decoding follows one text a row: use num_beams=1.")
    target = HfModel.wrap(model, getattr(model, "name_or_path", "") or type(model).__name__)
    loaded = catalog.Loaded(target, None)
    made = _drafter(drafter, loaded)
    engine = Engine(target, made, catalog.load_rule(rule, made))
    split = _unpadded(input_ids, model_kwargs.get("attention_mask"))
    rows = [_Row(number, len(split), *row) for number, row in enumerate(split)]
    limit = config.max_length - input_ids.shape[1]
    requests = [engine.submit(row.prompt, _params(config, row.see(logits_processor), limit)) for row in rows]
    _run(engine, requests, rows, stopping_criteria, model_kwargs.get("streamer"))
    return _result(model, config, input_ids, [request.output for request in requests], logits_processor)


@dataclass(frozen=True)
class _Row:
    """One prompt: its padding, which processors and criteria see as transformers shows it to them, and its tokens."""

    number: int
    rows: int
    padding: list[int]
    prompt: list[int]

    def ids(self, text: Sequence[int], device: Any) -> Tensor:
        """[1, n] padding and text."""
        return torch.tensor([[*self.padding, *text]], device=device)

    def see(self, processor: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The processors of the call for this row; some know rows by number, so it stands where they expect it."""
        if not processor:
            return None
        front, row = torch.tensor([self.padding], dtype=torch.int64), slice(self.number, self.number + 1)

        def process(ids: Tensor, scores: Tensor) -> Tensor:
            whole = torch.cat([front.to(ids.device), ids], 1).expand(self.rows, -1)
            processed: Tensor = processor(whole, scores.expand(self.rows, -1).clone())[row]
            return processed

        return process


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[tuple[list[int], list[int]]]:
    rows = input_ids.tolist()
    starts = [0] * len(rows) if mask is None else [row.index(1) if 1 in row else len(row) for row in mask.tolist()]
    return [(row[:start], row[start:]) for row, start in zip(rows, starts, strict=True)]


def _drafter(drafter: Any, target: catalog.Loaded) -> Drafter:
    if isinstance(drafter, str):
        return catalog.load_drafter(drafter, target)
    if isinstance(drafter, torch.nn.Module):
        from draftproof.drafters.children import Shape
        from draftproof.drafters.model import ModelDrafter

        draft = HfModel.wrap(drafter, type(drafter).__name__)
        return ModelDrafter(draft, target.model.vocab_size, Shape.of(5, "", "drawn"))
    made: Drafter = drafter
    return made


def _params(config: Any, processor: Any, limit: int) -> SamplingParams:
    ends = config.eos_token_id
    return SamplingParams(
        temperature=1.0 if config.do_sample else 0.0,
        max_tokens=max(0, limit),
        stop_tokens=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,),
        processors=() if processor is None else (processor,),
        seed=int(torch.randint(2**62, ())),
    )


def _run(engine: Engine, requests: list[Request], rows: list[_Row], criteria: Any, streamer: Any) -> None:
    """Criteria are asked behind every token, as in plain decoding; what stands behind a stop is taken back."""
    device = engine.target.device
    while any(request.finish_reason is None for request in requests):
        steps = engine.step(requests)
        for request, row, step in zip(requests, rows, steps, strict=True):
            first = len(request.context) - len(step.tokens)
            for kept in range(1, len(step.tokens) + 1 if criteria else 0):
                if bool(criteria(row.ids(request.context[: first + kept], device), None).all()):
                    del request.context[first + kept :]
                    request.finish("stop")
                    break
            if streamer is not None and step.tokens:
                streamer.put(torch.tensor(request.context[first:]))
    if streamer is not None:
        streamer.end()


def _result(model: Any, config: Any, input_ids: Tensor, outputs: list[list[int]], processor: Any) -> Any:
    """Right-padded sequences; scores and logits, if asked for, come from one plain forward over the finished text."""
    longest = max(map(len, outputs))
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    new = [[*output, *[pad] * (longest - len(output))] for output in outputs]
    sequences = torch.cat([input_ids, torch.tensor(new, dtype=torch.int64, device=input_ids.device)], 1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    logits = scores = None
    if config.output_logits or config.output_scores:
        logits = _teacher_forced(model, sequences, input_ids)
        steps = range(longest)
        at = input_ids.shape[1]
        scores = tuple(processor(sequences[:, : at + i], logits[i].clone()) if processor else logits[i] for i in steps)
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=scores if config.output_scores else None,
        logits=logits if config.output_logits else None,
    )


def _teacher_forced(model: Any, sequences: Tensor, input_ids: Tensor) -> tuple[Tensor, ...]:
    """The raw logits [B, V] float32 each new token was chosen from."""
    with torch.no_grad():
        rows = model(sequences[:, :-1], use_cache=False).logits[:, input_ids.shape[1] - 1 :].float()
    return tuple(rows.unbind(1))
