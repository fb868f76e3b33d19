"""`model.generate(..., custom_generate=draftproof.hf_generate, drafter=…)`: transformers' users stay where they are.

Processors and stopping criteria are the ones transformers prepared; what comes back is what its own decoding returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    model: Any, input_ids: Tensor, drafter: Any = "ngram", rule: str = "auto", stream_to: Any = None, **prepared: Any
) -> Any:
    """Sequences [B, prompt + new] int64, or a GenerateDecoderOnlyOutput with `return_dict_in_generate`.

    drafter: a spec string, a `Drafter`, or a transformers model, whose ids are taken to mean the same tokens (sizes
    may differ: vocabularies are padded differently); rule: a rule's name. Rows may be left-padded. stream_to: a
    transformers streamer, given what `streamer=` is given in plain decoding; `streamer=` itself gets the prompt alone,
    since transformers hands it to no callable. prepared: what transformers passes; processors must depend on their
    arguments alone, and criteria see no scores. Sampling takes its seeds from torch's global generator, so
    `torch.manual_seed` repeats a call. InputError for beams, `guidance_scale`, masks other than left padding,
    encoder-decoder models and whatever the backend refuses. A text ends at the model's context, with a warning.
    """
    if stream_to is None:
        return _generate(model, input_ids, drafter, rule, _Silent(), prepared)
    if not (hasattr(stream_to, "put") and hasattr(stream_to, "end")):
        raise InputError(f"stream_to takes a transformers streamer (put and end), not {type(stream_to).__name__}.")
    try:
        return _generate(model, input_ids, drafter, rule, stream_to, prepared)
    finally:
        stream_to.end()  # also after an error: a reader in another thread would wait for ever


class _Silent:
    """The streamer of a call that has none."""

    def put(self, tokens: Tensor) -> None:
        """Nobody reads."""


def _generate(model: Any, input_ids: Tensor, drafter: Any, rule: str, streamer: Any, prepared: dict[str, Any]) -> Any:
    config, processors = prepared["generation_config"], prepared["logits_processor"]
    criteria = prepared["stopping_criteria"]
    _refuse(config, processors)
    split = _unpadded(input_ids, prepared.get("attention_mask"))
    target = HfModel.wrap(model, getattr(model, "name_or_path", "") or type(model).__name__)
    made = _drafter(drafter, catalog.Loaded(target, None))
    engine = Engine(target, made, catalog.load_rule(rule, made))
    rows = [_Row(number, len(split), *row, processors) for number, row in enumerate(split)]
    shared = _params(config, criteria, input_ids.shape[1], target.vocab_size)
    requests = [engine.submit(row.prompt, row.params(shared)) for row in rows]
    streamer.put(input_ids.cpu())
    decoding = _Decoding(engine, requests, input_ids, criteria, config, streamer)
    decoding.run()
    return _result(model, config, rows, decoding)


@dataclass(frozen=True)
class _Row:
    """One prompt: its padding, which processors and criteria see as transformers shows it to them, and its tokens."""

    number: int
    rows: int
    padding: list[int]
    prompt: list[int]
    processors: Any

    def params(self, shared: SamplingParams) -> SamplingParams:
        """With this row's processors and a seed of its own."""
        process = self.processor()
        own = () if process is None else (process,)
        return replace(shared, processors=own, seed=int(torch.randint(2**62, ())))

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


class _Decoding:
    """The batch as plain decoding sees it: column by column, and the criteria asked behind each with the whole batch.

    Rows run ahead of the column; what stands behind the last one is dropped. A row that has ended is padded where
    criteria know end tokens and goes on where none does, as in transformers' own loop.
    """

    def __init__(
        self, engine: Engine, requests: list[Request], prompt: Tensor, criteria: Any, config: Any, streamer: Any
    ) -> None:
        pad = getattr(config, "_pad_token_tensor", None)  # settled by transformers: the end token where none is named
        self.ids, self.prompt_columns = prompt, prompt.shape[1]
        self.lengths: list[int | None] = [None] * len(requests)
        self._engine, self._requests, self._criteria, self._streamer = engine, requests, criteria, streamer
        self._pad = 0 if pad is None else int(pad)
        self._padded = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._errors: dict[int, str] = {}
        self._warned = False

    @property
    def outputs(self) -> list[list[int]]:
        """New tokens of every row, without padding."""
        new = self.ids[:, self.prompt_columns :].tolist()
        lengths = self.lengths if self._padded else [len(request.output) for request in self._requests]
        return [row[:length] for row, length in zip(new, lengths, strict=True)]

    def run(self) -> None:
        """Until every row has ended. InputError where a row needs a token and none can follow."""
        while None in self.lengths:
            for row, step in enumerate(self._engine.step(self._requests)):
                if step.error is not None:
                    self._errors[row] = step.error
            while None in self.lengths and self._append():
                pass

    def _append(self) -> bool:
        """The next column, once every row has its token."""
        at = self.ids.shape[1] - self.prompt_columns
        tokens = [self._token(row, at) for row in range(len(self._requests))]
        if None in tokens or None not in self.lengths:
            return False
        column = torch.tensor(tokens, device=self.ids.device)
        self.ids = torch.cat([self.ids, column[:, None]], 1)
        for row, stopped in enumerate(self._criteria(self.ids, None).tolist()):
            if stopped and self.lengths[row] is None:
                self._close(row, at + 1)
        self._streamer.put(column.cpu())
        return True

    def _token(self, row: int, at: int) -> int | None:
        """The row's token of the new column `at`, None while it is not there yet."""
        request = self._requests[row]
        if self.lengths[row] is not None and self._padded:
            return self._pad
        if request.prompt_length + at < len(request.context):
            return request.context[request.prompt_length + at]
        if request.finish_reason is None:
            return None
        if request.finish_reason == "error" and self.lengths[row] is None:
            raise InputError(self._errors[row])
        if request.finish_reason != "error":
            self._warn()
        if self.lengths[row] is None:
            self._close(row, at)
        return self._pad

    def _close(self, row: int, length: int) -> None:
        self.lengths[row] = length
        if self._padded:
            self._requests[row].finish("stop")

    def _warn(self) -> None:
        """A row has ended where neither a criterion nor an end token stands: at the model's context."""
        if not self._warned:
            target, self._warned = self._engine.target, True
            warnings.warn(
                f"the text ends at {target.name}'s context of {target.max_context} tokens, which plain decoding runs "
                "past: ask for fewer new tokens or shorten the prompt.",
                stacklevel=2,
            )


def _refuse(config: Any, processors: Any) -> None:
    """What plain decoding would return and this cannot."""
    from transformers import SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor

    if (config.num_beams or 1) > 1:
        raise InputError("speculative decoding follows one text a row: use num_beams=1.")
    for wanted in ("output_hidden_states", "output_attentions"):
        if config.return_dict_in_generate and getattr(config, wanted, None):
            raise InputError(f"{wanted} is not kept while drafting: ask the model for it in a forward of the result.")
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor) and processor.guidance_scale != 1:
            raise InputError(
                "guidance_scale keeps a cache of one text, and drafting scores several: leave it out or decode plainly."
            )
        if isinstance(processor, SynthIDTextWatermarkLogitsProcessor):
            raise InputError(
                "the SynthID watermark counts its calls, and drafting makes others: use WatermarkingConfig instead."
            )


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[tuple[list[int], list[int]]]:
    """(padding, prompt) of every row."""
    rows = input_ids.tolist()
    if mask is None:
        return [([], row) for row in rows]
    ones = mask != 0
    if mask.shape != input_ids.shape or (ones[:, :-1] & ~ones[:, 1:]).any():
        raise InputError(
            "the attention mask must be zeros, then ones, in every row: pad on the left, and pass an attention_mask of "
            "ones if a prompt holds the padding token."
        )
    starts = (~ones).sum(1).tolist()
    return [(row[:start], row[start:]) for row, start in zip(rows, starts, strict=True)]


def _drafter(drafter: Any, target: catalog.Loaded) -> Drafter:
    if isinstance(drafter, str):
        return catalog.load_drafter(drafter, target)
    if isinstance(drafter, torch.nn.Module):
        from draftproof.drafters.children import Shape
        from draftproof.drafters.model import ModelDrafter

        return ModelDrafter(HfModel.wrap(drafter, type(drafter).__name__), target.model.vocab_size, Shape.of())
    parts = ("name", "layers", "draws", "branches", "gamma", "start", "propose")
    if isinstance(drafter, type) or not all(hasattr(drafter, part) for part in parts):
        raise InputError(
            f'drafter takes a spec such as "ngram" or "early-exit:layer=8", a transformers model or a Drafter, not '
            f"{drafter!r:.60}."
        )
    made: Drafter = drafter
    return made


def _params(config: Any, criteria: Any, prompt_columns: int, vocab_size: int) -> SamplingParams:
    """What all rows share. End tokens and length are those of the criteria: a user's own replace the configuration's.

    An end token outside the vocabulary never comes.
    """
    from transformers.generation.stopping_criteria import EosTokenCriteria

    ends = [token for one in criteria if type(one) is EosTokenCriteria for token in one.eos_token_id.flatten().tolist()]
    return SamplingParams(
        temperature=1.0 if config.do_sample else 0.0,
        max_tokens=max(1, criteria.max_length - prompt_columns),
        stop_tokens=tuple(token for token in ends if 0 <= token < vocab_size),
    )


def _result(model: Any, config: Any, rows: list[_Row], decoding: _Decoding) -> Any:
    """Right-padded sequences; scores and logits, if asked for, come from plain forwards over the finished texts."""
    if not config.return_dict_in_generate:
        return decoding.ids
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    longest = decoding.ids.shape[1] - decoding.prompt_columns
    logits = scores = None
    if config.output_logits or config.output_scores:
        forced = [_forced(model, *pair, longest) for pair in zip(rows, decoding.outputs, strict=True)]
        logits = tuple(torch.cat([steps[i][0] for steps in forced]) for i in range(longest))
        scores = tuple(torch.cat([steps[i][1] for steps in forced]) for i in range(longest))
    return GenerateDecoderOnlyOutput(
        sequences=decoding.ids,
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
