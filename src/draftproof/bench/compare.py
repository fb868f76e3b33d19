"""Measuring several methods on the same prompts: who answers when, and what is kept of every answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from draftproof.bench.methods import Answer, Method
from draftproof.stats import Stats, ratio


@dataclass(frozen=True)
class Item:
    """A prompt as token ids, with its id and category."""

    id: str
    category: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """New tokens an answer at most, how often every prompt is answered, and the seed of the random numbers."""

    max_tokens: int = 128
    repeats: int = 5
    seed: int = 0


@dataclass(frozen=True)
class Record:
    """What is kept of an answer; its steps are folded at once, since a long run has millions.

    shapes          (draft tokens, depth) of every step behind the prompt -> steps
    target_seconds  median of the target calls without a draft; None where there are none
    """

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float | None = None
    stats: Stats | None = None
    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    target_seconds: float | None = None

    @classmethod
    def of(cls, answer: Answer) -> Record:
        """The record of an answer."""
        behind = [step for step in answer.steps if not step.prefill]
        plain = [step.timing.target for step in behind if not step.num_draft_tokens]
        return cls(
            answer.tokens,
            answer.seconds,
            answer.first_seconds,
            Stats.of(answer.steps) if answer.steps else None,
            Counter((step.num_draft_tokens, step.draft_depth) for step in behind),
            median(plain) if plain else None,
        )

    @property
    def tokens_per_s(self) -> float:
        """New tokens / seconds, the reading of the prompt included."""
        return ratio(len(self.tokens), self.seconds)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """The same behind the first token; None where that time is not known or nothing came behind it."""
        if self.first_seconds is None or len(self.tokens) < 2 or self.seconds <= self.first_seconds:
            return None
        return (len(self.tokens) - 1) / (self.seconds - self.first_seconds)


@dataclass(frozen=True)
class Trial:
    """One prompt, answered once by every method, one answer right after the other."""

    item: Item
    records: Mapping[str, Record]


@dataclass(frozen=True)
class Measured:
    """All complete trials. interrupted: Ctrl-C ended the run before its plan was fulfilled."""

    trials: tuple[Trial, ...]
    interrupted: bool = False

    def by_prompt(self) -> dict[Item, list[Trial]]:
        """The trials of every prompt, in the order of the prompts."""
        made: dict[Item, list[Trial]] = {}
        for one in self.trials:
            made.setdefault(one.item, []).append(one)
        return made


def order(methods: Sequence[Method], turn: int) -> list[Method]:
    """Who answers when in this turn: everyone comes at every place, forwards and backwards in turn."""
    start = turn // 2 % len(methods)
    turned = [*methods[start:], *methods[:start]]
    return turned[::-1] if turn % 2 else turned


def measure(
    methods: Sequence[Method], items: Sequence[Item], plan: Plan, progress: Callable[[int], None] = lambda done: None
) -> Measured:
    """Every prompt answered `repeats` times by every method; a whole pass over the prompts comes before the next.

    Each method's first answer is dropped. progress: trials done, of repeats x prompts. Ctrl-C ends it and keeps what
    is complete.
    """
    trials: list[Trial] = []
    try:
        for method in methods:
            method.answer(items[0].tokens, plan.max_tokens, plan.seed)
            progress(0)
        for repeat in range(plan.repeats):
            for number, item in enumerate(items):
                trials.append(_trial(order(methods, repeat + number), item, plan))
                progress(len(trials))
    except KeyboardInterrupt:
        return Measured(tuple(trials), interrupted=True)
    return Measured(tuple(trials))


def _trial(methods: Sequence[Method], item: Item, plan: Plan) -> Trial:
    return Trial(item, {one.name: Record.of(one.answer(item.tokens, plan.max_tokens, plan.seed)) for one in methods})
