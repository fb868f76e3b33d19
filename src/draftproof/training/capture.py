"""Texts that the target writes or reads, with the states of the very calls that wrote or read them.

A drafter that proposes nothing is handed the states of every committed token by the one loop, so extraction, batches
and long prompts are those of serving.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.backends import Loaded
from draftproof.batch import Job
from draftproof.contracts import Ask, DraftSession
from draftproof.engine import Engine
from draftproof.prompts import Prompt
from draftproof.request import Request
from draftproof.run import encode
from draftproof.text import Text
from draftproof.training.samples import Sample
from draftproof.types import InputError, Proposal, SamplingParams
from draftproof.verify import TokenRule


class CaptureDrafter:
    """Proposes nothing and keeps the states behind `layers`, each in `dtype`."""

    name, draws, branches, gamma = "capture", False, False, 0

    def __init__(self, layers: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> None:
        self.layers, self.dtype = tuple(layers), dtype

    def start(self, target: Any) -> DraftSession:
        """States of one request."""
        return CaptureSession(self.dtype)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The engine asks for no drafts of length 0."""
        raise ValueError("a drafter that captures is not asked for drafts")


class CaptureSession:
    """What was observed, in the order of the text."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self._parts = dtype, list[Tensor]()

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Keep the states [n, L, H] on the host."""
        if hidden is not None and len(hidden):
            self._parts.append(hidden.to("cpu", self._dtype))

    def states(self) -> Tensor:
        """[n, L, H] of all tokens so far."""
        return torch.cat(self._parts)


@dataclass(frozen=True)
class Plan:
    """How answers are written: temperatures in turn, new tokens at most, requests at once, the first seed."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_tokens: int = 256
    max_batch: int = 64
    seed: int = 0


@dataclass(eq=False)
class _Live:
    name: str
    request: Request
    capture: CaptureSession
    job: Job
    replies: list[str] = field(default_factory=list)


class Writer:
    """An endless source of samples: prompts in turn, each time at the next temperature and with another seed."""

    def __init__(self, target: Loaded, layers: Sequence[int], jobs: Sequence[Job], plan: Plan, begun: int = 0) -> None:
        """begun: prompts that an earlier run has begun with. InputError without a prompt."""
        if not jobs:
            raise InputError("there is no prompt to write answers to: give a file with more of them.")
        self._engine = Engine(target.model, CaptureDrafter(layers), TokenRule(), target.text)
        self._jobs, self._plan, self.begun = jobs, plan, begun
        self._text = target.text
        self._live: list[_Live] = []
        self._next: deque[_Live] = deque()

    def write(self, tokens: int) -> list[Sample]:
        """Go on until so many new tokens stand in answers that have ended."""
        made: list[Sample] = []
        written = 0
        while written < tokens:
            ended = self._step()
            made += ended
            written += sum(len(sample.tokens) - sample.answer for sample in ended)
        return made

    def once(self) -> list[Sample]:
        """The first answer to every prompt, in the order in which they end; the writer is used up."""
        made: list[Sample] = []
        while self.begun < len(self._jobs) or self._live:
            made += self._step(len(self._jobs))
        return made

    def _step(self, most: float = float("inf")) -> list[Sample]:
        """One call of the target, with `most` prompts begun at most; the answers that it ended."""
        refused = 0
        while len(self._live) < self._plan.max_batch and (self._next or self.begun < most):
            try:
                self._live.append(self._next.popleft() if self._next else self._begin())
            except InputError:
                # One prompt too long for the context is left out; if all are, that is an error.
                refused += 1
                if refused >= len(self._jobs):
                    raise
        self._engine.step([live.request for live in self._live])
        ended = [live for live in self._live if live.request.finish_reason is not None]
        self._live = [live for live in self._live if live.request.finish_reason is None]
        for live in ended:
            self._go_on(live)
        return [made for live in ended if (made := _sample(live)) is not None]

    def _begin(self) -> _Live:
        number, plan = self.begun, self._plan
        self.begun += 1
        job = self._jobs[number % len(self._jobs)]
        turn = number // len(self._jobs) + number % len(self._jobs)
        temperature = plan.temperatures[turn % len(plan.temperatures)]
        return self._submit(f"{job.where}, answer {number}", job, [], temperature, plan.seed + number)

    def _go_on(self, live: _Live) -> None:
        """The next turn of a conversation, beside whatever else runs; one that has outgrown the context ends."""
        if len(live.replies) + 1 >= live.job.replies or live.request.finish_reason == "error":
            return
        params = live.request.params
        replies = [*live.replies, self._text.decode(live.request.output)]
        name = f"{live.name}, turn {len(replies) + 1}"
        try:
            self._next.append(self._submit(name, live.job, replies, params.temperature, params.seed or 0))
        except InputError:
            return

    def _submit(self, name: str, job: Job, replies: list[str], temperature: float, seed: int) -> _Live:
        params = SamplingParams(max_tokens=self._plan.max_tokens, temperature=temperature, seed=seed)
        request = self._engine.submit(job.encode(replies), params)
        return _Live(name, request, _capture(request), job, replies)


def _capture(request: Request) -> CaptureSession:
    draft = None if request.running is None else request.running.draft
    if not isinstance(draft, CaptureSession):
        raise ValueError("the request does not capture")
    return draft


def _sample(live: _Live) -> Sample | None:
    """None where no token was written behind the first."""
    request = live.request
    if len(request.output) < 2:
        return None
    tokens = torch.tensor(request.context, dtype=torch.int32)
    return Sample(live.name, tokens, request.prompt_length, live.capture.states())


@dataclass(frozen=True)
class Given:
    """A text that is read, not written; what is learned begins at `answer`."""

    name: str
    tokens: tuple[int, ...]
    answer: int


def given(text: Text, prompt: Prompt) -> Given:
    """A conversation that ends with the assistant's message, or a text or ids that are learned from as a whole.

    InputError for a conversation that ends otherwise.
    """
    if prompt.token_ids:
        return Given(prompt.where, prompt.token_ids, 1)
    if not prompt.messages:
        return Given(prompt.where, tuple(encode(text, "\n".join(prompt.turns), raw=True)), 1)
    *before, last = prompt.messages
    if last["role"] != "assistant" or not before:
        raise InputError(f"{prompt.where}: a conversation to learn from ends with a message of the assistant.")
    head = encode(text, before)
    return Given(prompt.where, (*head, *text.encode(last["content"], special=False), *text.eos_ids[:1]), len(head))


class Reader:
    """An endless source of samples that reads given texts in turn, the longest part that the target's context takes."""

    def __init__(
        self, target: Loaded, layers: Sequence[int], texts: Sequence[Given], dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._engine = Engine(target.model, CaptureDrafter(layers, dtype), TokenRule(), target.text)
        limit = target.model.max_context
        self._texts = [text for text in texts if len(text.tokens) > text.answer + 1]
        self._most = None if limit is None else limit - 1
        self.begun = 0
        if not self._texts:
            raise InputError("there is no text to learn from: give some with more than two tokens of answer.")

    def write(self, tokens: int) -> list[Sample]:
        """The next texts, until so many tokens of answers are read."""
        made: list[Sample] = []
        read = 0
        while read < tokens:
            text = self._texts[self.begun % len(self._texts)]
            self.begun += 1
            made.append(self.read(text))
            read += len(text.tokens) - text.answer
        return made

    def once(self) -> list[Sample]:
        """Every text once."""
        return [self.read(text) for text in self._texts]

    def read(self, text: Given) -> Sample:
        """One text with its states."""
        ids = list(text.tokens[: self._most])
        # The states of all of it are handed on once a further token stands behind it.
        request = self._engine.submit(ids, SamplingParams(max_tokens=1))
        capture = _capture(request)
        self._engine.step([request])
        states = capture.states()[: len(ids) - 1]
        return Sample(text.name, torch.tensor(ids, dtype=torch.int32), text.answer, states)
