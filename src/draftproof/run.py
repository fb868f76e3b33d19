"""A prompt in, text out: what a program that generates needs beside the engine. Many prompts at once: `batch.py`.

engine = load_engine("hf:PATH", "ngram")
for piece in stream(engine, "Once upon a time", SamplingParams(max_tokens=64)):
    print(piece.text, end="")
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.engine import Engine
from draftproof.prompts import Message
from draftproof.request import Request
from draftproof.session import Session
from draftproof.stats import Stats, ratio
from draftproof.text import Stream, Text
from draftproof.types import FinishReason, InputError, Origin, SamplingParams, Step, TokenLogprob


@dataclass(frozen=True)
class Piece:
    """New text and the kind of token that made it certain."""

    text: str
    origin: Origin


@dataclass(frozen=True)
class Result:
    """One finished reply. `seconds` were spent in the engine, `first_token_seconds` of them before the first token.

    In a batch the seconds are those of every call it took part in, while `stats` has its share of them.
    error: why no token could follow, with the finish reason "error". seed: None where nothing could be begun.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    stats: Stats
    seed: int | None
    seconds: float
    first_token_seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None

    @classmethod
    def failed(cls, error: str) -> Result:
        """What there is of a reply that could not be begun."""
        return cls("", (), "error", 0, Stats(), None, 0.0, 0.0, error=error)

    @property
    def tokens_per_second(self) -> float:
        """New tokens / seconds, the reading of the prompt included."""
        return ratio(len(self.token_ids), self.seconds)

    def report(self, label: Callable[[int], str] | None = None) -> dict[str, Any]:
        """What `generate --json` prints. `label` spells a token of the log-probabilities for a reader."""
        new = len(self.token_ids)
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
        }
        wall = {"wall": self.seconds, "first_token": self.first_token_seconds, "tokens_per_s": self.tokens_per_second}
        report: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": usage,
            "speculation": self.stats.report(),
            "timing": {**self.stats.timing(), **wall},
            "seed": self.seed,
        }
        if self.error is not None:
            report["error"] = self.error
        if self.logprobs:
            report["logprobs"] = [_logprob(entry, label or str) for entry in self.logprobs]
        return report


class Reply:
    """A reply under way: the request, its text so far and its counts."""

    def __init__(self, engine: Engine, prompt: Sequence[int], params: SamplingParams, session: Session | None = None):
        """session: one that holds earlier text of the same conversation, whose shared beginning is not read again."""
        self.request: Request = engine.submit(prompt, params, session)
        self.stats = Stats()
        self.text = ""
        self.error: str | None = None
        self.seconds = self.first_token_seconds = 0.0
        self._logprobs: list[TokenLogprob] = []
        self._stream = Stream(tokenizer(engine), params.stop_strings)

    @property
    def done(self) -> bool:
        """No further token follows."""
        return self.request.finish_reason is not None

    def add(self, step: Step, seconds: float) -> list[Piece]:
        """Take over a step that took so long; the text that has become certain."""
        self.seconds += seconds
        self.error = step.error
        if step.tokens:
            if not self.stats.target_calls:
                self.first_token_seconds = self.seconds
            self.stats.add(step)
            self._logprobs += step.logprobs
        pieces = [Piece(self._stream.push(t)[0], o) for t, o in zip(step.tokens, step.origins, strict=True)]
        if step.finish_reason is not None:
            pieces.append(Piece(self._stream.flush(), step.origins[-1] if step.origins else "plain"))
        return self._take(pieces)

    def cancel(self) -> list[Piece]:
        """End it here; the text that was still held back."""
        if self.done:
            return []
        self.request.finish("cancelled")
        return self._take([Piece(self._stream.flush(), "plain")])

    def result(self) -> Result:
        """The finished reply."""
        if self.request.finish_reason is None:
            raise ValueError("the reply has not ended")
        return Result(
            text=self.text,
            token_ids=tuple(self.request.output),
            finish_reason=self.request.finish_reason,
            prompt_tokens=self.request.prompt_length,
            stats=self.stats,
            seed=self.request.source.seed,
            seconds=self.seconds,
            first_token_seconds=self.first_token_seconds,
            logprobs=tuple(self._logprobs),
            error=self.error,
        )

    def _take(self, pieces: Sequence[Piece]) -> list[Piece]:
        kept = [piece for piece in pieces if piece.text]
        self.text += "".join(piece.text for piece in kept)
        return kept


def advance(engine: Engine, replies: Sequence[Reply]) -> list[tuple[Step, list[Piece]]]:
    """One target call for all these replies; a step and the new text of each."""
    began = time.perf_counter()
    made = engine.step([reply.request for reply in replies])
    seconds = time.perf_counter() - began
    return [(step, reply.add(step, seconds)) for reply, step in zip(replies, made, strict=True)]


def steps(engine: Engine, reply: Reply) -> Iterator[tuple[Step, list[Piece]]]:
    """Its steps until the reply ends, each with the text it made certain. Who stops early cancels the reply."""
    while not reply.done:
        yield from advance(engine, [reply])


def stream(
    engine: Engine, prompt: str | Sequence[Message] | Sequence[int], params: SamplingParams, raw: bool = False
) -> Iterator[Piece]:
    """The text of one reply as it becomes certain; closing the iterator frees its caches.

    prompt: a text, a conversation, or token ids. A text is a user's message where the model has a chat template,
    unless `raw`. InputError for a prompt or parameters that cannot be used, and where no token can follow.
    """
    reply = Reply(engine, encode(tokenizer(engine), prompt, raw), params)
    try:
        for _, pieces in steps(engine, reply):
            yield from pieces
        if reply.error is not None:
            raise InputError(reply.error)
    finally:
        reply.cancel()


def encode(text: Text, prompt: str | Sequence[Message] | Sequence[int], raw: bool = False) -> list[int]:
    """Token ids of a prompt: a text or a conversation through the chat template, ids as they are."""
    if isinstance(prompt, str):
        if not prompt:
            raise InputError("the prompt is empty: write some text.")
        return text.encode(prompt) if raw or not has_template(text) else text.chat(prompt)
    if prompt and isinstance(prompt[0], dict):
        return text.chat(prompt)  # type: ignore[arg-type]
    return [int(token) for token in prompt]  # type: ignore[arg-type]


def has_template(text: Text) -> bool:
    """Does the model know conversations?"""
    return bool(text.tokenizer.chat_template)


def tokenizer(engine: Engine) -> Text:
    """The engine's text. InputError for a target without a tokenizer."""
    if not isinstance(engine.text, Text):
        raise InputError(f"{engine.target.name} has no tokenizer, so it reads and writes ids only.")
    return engine.text


def _logprob(entry: TokenLogprob, label: Callable[[int], str]) -> dict[str, Any]:
    top = [{"token": token, "text": label(token), "logprob": _finite(value)} for token, value in entry.top]
    return {"token": entry.token, "text": label(entry.token), "logprob": _finite(entry.logprob), "top": top}


def _finite(value: float) -> float | None:
    """JSON has no infinity; a token that the target forbids has no number."""
    return value if math.isfinite(value) else None
