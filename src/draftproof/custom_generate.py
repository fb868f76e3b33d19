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
    _refuse(config)
    target = HfModel.wrap(model, getattr(model, "name_or_path", "") or type(model).__name__)
    loaded = catalog.Loaded(target, None)
    made = _drafter(drafter, loaded)
    engine = Engine(target, made, catalog.load_rule(rule, made))
    split = _unpadded(input_ids, model_kwargs.get("attention_mask"))
    rows = [_Row(number, len(split), *row, logits_processor) for number, row in enumerate(split)]
    limit = config.max_length - input_ids.shape[1]
    requests = [engine.submit(row.prompt, _params(config, row.processor(), limit)) for row in rows]
    _run(engine, requests, rows, stopping_criteria, model_kwargs.get("streamer"))
    return _result(model, config, input_ids, rows, [request.output for request in requests])


@dataclass(frozen=True)
class _Row:
    """One prompt: its padding, which processors and criteria see as transformers shows it to them, and its tokens."""

    number: int
    rows: int
    padding: list[int]
    prompt: list[int]
    processors: Any

    def ids(self, text: Sequence[int], device: Any) -> Tensor:
        """[1, n] padding and text."""
        return torch.tensor([[*self.padding, *text]], device=device)

    def processor(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The processors of the call for this row; some know rows by number, so it stands where they expect it."""
        if not self.processors:
            return None
        front, row = torch.tensor([self.padding], dtype=torch.int64), slice(self.number, self.number + 1)

        def process(ids: Tensor, scores: Tensor) -> Tensor:
            whole = torch.cat([front.to(ids.device), ids], 1).expand(self.rows, -1)
            processed: Tensor = self.processors(whole, scores.expand(self.rows, -1).clone())[row]
            return processed

        return process


def _refuse(config: Any) -> None:
    """What plain decoding would return and this cannot."""
    if (config.num_beams or 1) > 1:
        raise InputError("speculative decoding follows one text a row: use num_beams=1.")
    for wanted in ("output_hidden_states", "output_attentions"):
        if config.return_dict_in_generate and getattr(config, wanted, None):
            raise InputError(f"{wanted} is not kept while drafting: ask the model for it in a forward of the result.")


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
        if draft.vocab_size != target.model.vocab_size:
            raise InputError(
                f"the draft model has {draft.vocab_size} tokens, the target {target.model.vocab_size}: ids are "
                "taken as equal, so pass a spec such as model:hf:FOLDER to the command, which compares the vocabularies."
            )
        return ModelDrafter(draft, target.model.vocab_size, Shape.of())
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
            if step.error is not None:
                raise InputError(step.error)
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


def _result(model: Any, config: Any, input_ids: Tensor, rows: list[_Row], outputs: list[list[int]]) -> Any:
    """Right-padded sequences; scores and logits, if asked for, come from plain forwards over the finished texts."""
    longest = max(map(len, outputs))
    pad = getattr(config, "_pad_token_tensor", None)  # settled by transformers: the end token where none is named
    padding = [0 if pad is None else int(pad)] * longest
    new = torch.tensor([[*output, *padding[len(output) :]] for output in outputs], dtype=torch.int64)
    sequences = torch.cat([input_ids, new.to(input_ids.device)], 1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    logits = scores = None
    if config.output_logits or config.output_scores:
        forced = [_forced(model, row, output, longest) for row, output in zip(rows, outputs, strict=True)]
        logits = tuple(torch.cat([steps[i][0] for steps in forced]) for i in range(longest))
        scores = tuple(torch.cat([steps[i][1] for steps in forced]) for i in range(longest))
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=scores if config.output_scores else None,
        logits=logits if config.output_logits else None,
    )


def _forced(model: Any, row: _Row, output: list[int], longest: int) -> list[tuple[Tensor, Tensor]]:
    """(raw logits, processed scores), [1, V] float32 each, that every new token was chosen from.

    Behind the end of a text that others outlast both are zero.
    """
    text = [*row.prompt, *output]
    with torch.no_grad():
        rows = model(torch.tensor([text[:-1]], device=model.device), use_cache=False).logits[0, len(row.prompt) - 1 :]
    process, steps = row.processor(), []
    for i in range(longest):
        raw = rows[i : i + 1].float() if i < len(output) else rows.new_zeros(1, rows.shape[1], dtype=torch.float32)
        ids = torch.tensor([text[: len(row.prompt) + i]], device=model.device)
        steps.append((raw, process(ids, raw.clone()) if process is not None and i < len(output) else raw))
    return steps
