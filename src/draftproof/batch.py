"""Many conversations at once: jobs that share the target's calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from draftproof.engine import Engine
from draftproof.prompts import Message, Prompt
from draftproof.run import Reply, Result, advance, encode, has_template, tokenizer
from draftproof.session import Session
from draftproof.text import Text
from draftproof.types import InputError, SamplingParams, Step


def generate(
    engine: Engine,
    prompts: Sequence[str | Sequence[Message] | Sequence[int]],
    params: SamplingParams,
    raw: bool = False,
    max_batch: int = 32,
) -> list[Result]:
    """All replies, in the order of the prompts; up to `max_batch` of them advance by one target call."""
    text = tokenizer(engine)
    jobs = [Job(partial(_encode_first, text, prompt, raw)) for prompt in prompts]
    return [results[0] for results in run_jobs(engine, jobs, params, max_batch)]


def run_jobs(
    engine: Engine,
    jobs: Sequence[Job],
    params: SamplingParams,
    max_batch: int = 32,
    on_step: Callable[[Step], None] | None = None,
) -> Iterator[list[Result]]:
    """The replies of each job, in the order of the jobs, as soon as they and those before them have ended.

    All are made before the first one runs: InputError for the first that cannot be used. A later reply that cannot be
    begun, as where a conversation has outgrown the context, is the last one of its job, with an error.
    """
    if max_batch < 1:
        raise InputError(f"at least one prompt must run at a time, not {max_batch}.")
    waiting = deque([_Conversation(engine, job, params) for job in jobs])
    live: list[_Conversation] = []
    unread: deque[_Conversation] = deque()
    while waiting or unread:
        while waiting and len(live) < max_batch:
            live.append(waiting.popleft())
            unread.append(live[-1])
        for step, _ in advance(engine, [conversation.reply for conversation in live]):
            if on_step is not None:
                on_step(step)
        live = [conversation for conversation in live if conversation.goes_on()]
        while unread and unread[0].ended:
            yield unread.popleft().results


@dataclass(frozen=True)
class Job:
    """`replies` replies of one conversation: `encode` makes the prompt's ids from the texts of those already given."""

    encode: Callable[[Sequence[str]], list[int]]
    replies: int = 1
    where: str = ""


class _Conversation:
    """A job under way; its session serves all its replies."""

    def __init__(self, engine: Engine, job: Job, params: SamplingParams) -> None:
        self.results: list[Result] = []
        self._engine, self._job, self._params = engine, job, params
        self._session: Session | None = Session(engine.target)
        self.reply = self._next()

    @property
    def ended(self) -> bool:
        """All replies are there, or one could not be finished."""
        return len(self.results) == self._job.replies or (bool(self.results) and self.results[-1].error is not None)

    def goes_on(self) -> bool:
        """Collect a reply that has ended and begin the next; False when that was the last one."""
        if self.reply.done:
            self.results.append(self.reply.result())
            if self.ended:
                self._session = None
                return False
            try:
                self.reply = self._next()
            except InputError as error:
                # Beside other jobs that go on, so it ends as a reply and not as an exception.
                self.results.append(Result.failed(str(error)))
                self._session = None
                return False
        return True

    def _next(self) -> Reply:
        try:
            prompt = self._job.encode([result.text for result in self.results])
            return Reply(self._engine, prompt, self._params, self._session)
        except InputError as error:
            raise InputError(f"{self._job.where}: {error}" if self._job.where else str(error)) from error


def job_of(text: Text, prompt: Prompt, raw: bool = False, system: str = "") -> Job:
    """A prompt of a file as a job; `system` is put before its messages. InputError for what does not go together."""
    if prompt.token_ids:
        if system:
            raise InputError(f"{prompt.where} holds token ids, which take no system message: give text.")
        return Job(lambda replies: list(prompt.token_ids), 1, prompt.where)
    if system and not has_template(text):
        raise InputError(f"{text.name} has no chat template, so it takes no system message: drop it.")
    if raw and (prompt.messages or prompt.replies > 1):
        raise InputError(f"{prompt.where} is a conversation, which needs the chat template: drop raw.")

    def encoded(replies: Sequence[str]) -> list[int]:
        if raw or not has_template(text):
            if prompt.messages or len(prompt.turns) > 1:
                raise InputError(f"{text.name} has no chat template, and this is a conversation: give single prompts.")
            return encode(text, prompt.turns[0], raw=True)
        messages = [{"role": "system", "content": system}] if system else []
        messages += prompt.messages
        for turn, reply in zip(prompt.turns, replies, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
        messages += [{"role": "user", "content": turn} for turn in prompt.turns[len(replies) :][:1]]
        return encode(text, messages)

    return Job(encoded, prompt.replies, prompt.where)


def _encode_first(
    text: Text, prompt: str | Sequence[Message] | Sequence[int], raw: bool, replies: Sequence[str]
) -> list[int]:
    return encode(text, prompt, raw)
