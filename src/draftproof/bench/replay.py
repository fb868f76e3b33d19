"""One plain run of the target, written down with what a drafter proposes at every place; and runs made of it again.

Without a draft the target's text is the same whatever proposes, so one run says what became of every draft of it: under
greedy decoding, and under the coupled rule, a draft token is taken if and only if the text goes on with it. A replay is
the real loop with the real choice of lengths, its target and its drafters read from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from draftproof.bench.compare import Item
from draftproof.contracts import Ask, Drafter, DraftSession, Model, TextEnd
from draftproof.drafters.patience import always
from draftproof.engine import Engine
from draftproof.session import Session, shared_length
from draftproof.types import Output, Proposal, SamplingParams, Segment, Step, chain
from draftproof.verify import CoupledRule

_HOPE = 20  # so many first tokens count as right before any was seen
Depth = Callable[[float], int]
"""How many tokens a drafter is asked for, by the share of its first tokens that were right so far."""


@dataclass(frozen=True)
class Transcript:
    """A prompt and what the target wrote behind it.

    text     ids of both, numbered anew in the order of their first appearance, so that a replay's rows are short
    start    tokens of the prompt
    taken    drafter -> length of the context -> how many tokens of its chain there the text goes on with; nothing of
             a drafter that is asked again in a replay
    sure     drafter -> length of the context -> how sure it was of each token of that chain, if it says so
    drawn    drafters whose tokens were drawn, if any are at this temperature
    """

    item: Item
    text: tuple[int, ...]
    start: int
    taken: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    sure: Mapping[str, Mapping[int, tuple[float, ...]]] = field(default_factory=dict)
    drawn: frozenset[str] = frozenset()
    temperature: float = 0.0

    @property
    def vocab_size(self) -> int:
        """One more than the text has different tokens: the last stands for whatever is not its next token."""
        return max(self.text) + 2

    @property
    def written(self) -> int:
        """Tokens that the target wrote."""
        return len(self.text) - self.start


@dataclass(frozen=True)
class Writing:
    """How the target writes: the parameters of every text, in which the seed is counted up, and its ends."""

    params: SamplingParams
    text: TextEnd | None = None
    progress: Callable[[float], None] = lambda share: None


def record(
    target: Model, items: Sequence[Item], writing: Writing, parts: Sequence[tuple[Drafter, Depth]] = ()
) -> list[Transcript]:
    """The target's texts, written as one batch. parts: drafters, and how many tokens each is asked for.

    Tokens that a drafter was not asked for count as not taken, so ask for few only where few are right.
    """
    listener = _Listener(parts)
    engine = Engine(target, listener, CoupledRule(), writing.text)
    requests = [engine.submit(item.tokens, replace(writing.params, seed=seed)) for seed, item in enumerate(items)]
    for done in range(writing.params.max_tokens):
        writing.progress(done / writing.params.max_tokens)
        engine.step(requests)
    contexts = [tuple(request.context) for request in requests]
    drawn, temperature = frozenset(part.name for part, _ in parts if part.draws), writing.params.temperature
    return [
        Transcript(item, _numbered(text), len(item.tokens), heard.taken(text), heard.sure(), drawn, temperature)
        for item, text, heard in zip(items, contexts, listener.sessions, strict=True)
    ]


def replay(transcript: Transcript, drafter: Drafter) -> list[Step]:
    """The steps in which a request with this drafter writes the text. Told drafters: see `Told`."""
    engine = Engine(_Script(transcript), drafter, CoupledRule())
    params = SamplingParams(temperature=transcript.temperature, max_tokens=transcript.written, seed=0)
    return list(engine.generate(transcript.text[: transcript.start], params))


class Told:
    """Proposes what a drafter proposed at the same place of the record, as far as right and wrong go."""

    layers: tuple[int, ...] = ()
    branches = False

    def __init__(self, name: str, gamma: int, transcript: Transcript) -> None:
        self.name, self.gamma, self.draws = name, gamma, name in transcript.drawn
        self._transcript, self._taken = transcript, transcript.taken[name]
        self._sure = transcript.sure.get(name, {})

    def start(self, target: Any) -> DraftSession:
        """All is known already."""
        return self

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Nothing to learn."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The tokens of the text that were right, then tokens that are none of it."""
        return [self._one(ask, len(ask.context), min(ask.depth, self.gamma)) for ask in asks]

    def _one(self, ask: Ask, at: int, depth: int) -> Proposal:
        sure = self._sure.get(at, ())[:depth]
        if ask.go_on is not None and sure:
            sure = sure[: next((i for i, one in enumerate(sure, 1) if not ask.go_on(one)), len(sure))]
            depth = len(sure)
        right = self._transcript.text[at : at + min(self._taken.get(at, 0), depth)]
        made = chain([*right, *[self._transcript.vocab_size - 1] * (depth - len(right))])
        return replace(made, confidence=sure if ask.go_on is not None else ())


class _Listener:
    """Drafters that are asked in every step, and of which only a note is taken: the target goes on alone."""

    name = "listener"
    draws = branches = False

    def __init__(self, parts: Sequence[tuple[Drafter, Depth]]) -> None:
        self.parts = tuple(parts)
        self.layers = tuple(sorted({layer for part, _ in parts for layer in part.layers}))
        self.gamma = max((part.gamma for part, _ in parts), default=0)
        self.seen = [(0, 0) for _ in parts]  # (first tokens that were right, first tokens)
        self.sessions: list[_Heard] = []

    def start(self, target: Any) -> DraftSession:
        """The drafters' own states, and the record of one text."""
        self.sessions.append(_Heard(self, target))
        return self.sessions[-1]

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Nothing, once all have been asked."""
        own = [ask.session for ask in asks if isinstance(ask.session, _Heard)]
        for number, (part, depth_at) in enumerate(self.parts):
            right, tried = self.seen[number]
            depth = depth_at((right + _HOPE) / (tried + _HOPE))
            inner = [(ask, heard.inner[number], min(ask.depth, depth)) for ask, heard in zip(asks, own, strict=True)]
            asked = [replace(ask, session=session, depth=most, go_on=always) for ask, session, most in inner]
            for ask, heard, proposal in zip(asks, own, part.propose(asked), strict=True):
                heard.last[number] = heard.said[number][len(ask.context)] = proposal.tokens.tolist()
                heard.certain[number][len(ask.context)] = proposal.confidence
        return [heard.nothing for heard in own]


class _Heard:
    """One text: the drafters' sessions, and for each the length of the context -> what was proposed there."""

    def __init__(self, listener: _Listener, target: Session) -> None:
        self.inner = [part.start(target) for part, _ in listener.parts]
        self.said: list[dict[int, list[int]]] = [{} for _ in listener.parts]
        self.certain: list[dict[int, tuple[float, ...]]] = [{} for _ in listener.parts]
        self.last: list[list[int]] = [[] for _ in listener.parts]
        self.nothing = chain([], device=target.model.device)
        self._listener = listener

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """To each drafter this was a step that verified what it had proposed."""
        layers = self._listener.layers
        for number, (part, _) in enumerate(self._listener.parts):
            states = None
            if hidden is not None and part.layers:
                states = hidden[:, [layers.index(layer) for layer in part.layers]]
            last, self.last[number] = self.last[number], []
            self.inner[number].observe(context, last, states)
            if last:
                right, tried = self._listener.seen[number]
                self._listener.seen[number] = right + (last[0] == context[-1]), tried + 1

    def taken(self, context: Sequence[int]) -> dict[str, dict[int, int]]:
        """By drafter, now that the whole text is known."""
        return {
            part.name: {at: shared_length(tokens, context[at:]) for at, tokens in said.items()}
            for (part, _), said in zip(self._listener.parts, self.said, strict=True)
        }

    def sure(self) -> dict[str, dict[int, tuple[float, ...]]]:
        """By drafter, as it said."""
        return {part.name: said for (part, _), said in zip(self._listener.parts, self.certain, strict=True)}


class _Script:
    """A model that writes the record once more: behind every token of the text its next one is certain."""

    name, dtype, device = "replay", "float32", torch.device("cpu")
    can = frozenset({"rollback"})
    num_layers = 1
    max_context: int | None = None

    def __init__(self, transcript: Transcript) -> None:
        self.vocab_size = transcript.vocab_size
        self._next = torch.tensor([*transcript.text[1:], 0])

    def new_cache(self) -> _Entries:
        """No entries yet."""
        return _Entries()

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        """Rows of chains: the place in the text says all."""
        return [self._one(segment) for segment in segments]

    def _one(self, segment: Segment) -> Output:
        cache = segment.cache
        assert isinstance(cache, _Entries)
        cache.length += len(segment.tokens)
        following = self._next[cache.length - segment.rows : cache.length]
        return Output(torch.nn.functional.one_hot(following, self.vocab_size).float().log())

    def reusable(self, cache: Any, length: int) -> int:
        """Any prefix can be gone back to."""
        return min(length, int(cache.length))

    def rollback(self, cache: Any, length: int, keep: Sequence[int] = ()) -> None:
        """Entries are places alone."""
        cache.length = length + len(keep)


@dataclass
class _Entries:
    """How many."""

    length: int = 0


def _numbered(context: Sequence[int]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(token, len(numbers)) for token in context)
