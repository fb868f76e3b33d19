"""One generation: its parameters bound to a model, and everything that changes while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.contracts import DraftSession, Model, TextEnd
from draftproof.fast_sampling import FastSampler
from draftproof.rng import PhiloxSource
from draftproof.session import Session
from draftproof.stop import Stopper
from draftproof.types import FinishReason, InputError, SamplingParams


@dataclass(eq=False)
class Running:
    """What a request holds while it runs: its cache in the target and its state in the drafter."""

    session: Session
    draft: DraftSession


@dataclass(eq=False)
class Request:
    """context: prompt and committed tokens, only ever appended to. `running` is None once the request has ended."""

    context: list[int]
    prompt_length: int
    params: SamplingParams
    sampler: FastSampler
    source: PhiloxSource
    stopper: Stopper
    running: Running | None
    finish_reason: FinishReason | None = None

    @property
    def output(self) -> list[int]:
        """Tokens committed so far."""
        return self.context[self.prompt_length :]

    @property
    def drafts(self) -> bool:
        """False where the request is decoded plainly: it says so, or a processor keeps a state."""
        return self.params.speculative and not any(getattr(one, "stateful", False) for one in self.params.processors)

    def finish(self, reason: FinishReason) -> None:
        """End the request and free its caches at once; one that has ended stays as it is."""
        if self.finish_reason is None:
            self.finish_reason, self.running = reason, None


def new_request(
    target: Model, prompt: Sequence[int], params: SamplingParams, text: TextEnd | None, running: Running
) -> Request:
    """InputError, with what to do, where the prompt or a parameter cannot be used with this target."""
    _check(target, prompt, params, text)
    ends = tuple(text.eos_ids) if text is not None else ()
    room = params.max_tokens if target.max_context is None else target.max_context - len(prompt)
    watch = text.watch(params.stop_strings) if text is not None and params.stop_strings else None
    return Request(
        context=list(prompt),
        prompt_length=len(prompt),
        params=params,
        sampler=FastSampler(params, len(prompt), ends),
        source=PhiloxSource(params.seed),
        stopper=Stopper(params, ends, room, watch),
        running=running,
    )


def _check(target: Model, prompt: Sequence[int], params: SamplingParams, text: TextEnd | None) -> None:
    size, limit = target.vocab_size, target.max_context
    if not prompt:
        raise InputError("the prompt is empty: give at least one token.")
    named = [*prompt, *params.stop_tokens, *(token for token, _ in params.logit_bias)]
    if (bad := next((token for token in named if not 0 <= token < size), None)) is not None:
        raise InputError(f"token {bad} is not one of the target's {size} tokens.")
    if limit is not None and len(prompt) > limit:
        raise InputError(f"the prompt has {len(prompt)} tokens and the target's context {limit}: shorten the prompt.")
    if params.stop_strings and text is None:
        raise InputError("stop strings need a tokenizer: use a model that has one.")
