"""Methods whose answers are written down, and reports made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from draftproof.bench.compare import Item, Measured, Plan, Record, Trial, measure
from draftproof.bench.methods import Answer
from draftproof.bench.report import report

Log = list[tuple[str, tuple[int, ...]]]


class Scripted:
    """answer(prompt, call) for the n-th call; what it is asked for goes into the log."""

    def __init__(self, name: str, log: Log, answer: Callable[[Sequence[int], int], Answer]) -> None:
        self.name, self._log, self._answer, self._calls = name, log, answer, 0

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        self._log.append((self.name, tuple(prompt)))
        self._calls += 1
        return self._answer(prompt, self._calls - 1)

    def close(self) -> None:
        """Nothing to free."""


def items(**counts: int) -> list[Item]:
    """`items(chat=2, code=1)`: so many prompts of each category, all different."""
    made = [(category, number) for category, count in counts.items() for number in range(count)]
    return [Item(f"{category}-{n}", category, (n, len(category))) for category, n in made]


def answered(seconds: float, tokens: Sequence[int] = (1, 2, 3, 4), first: float | None = None) -> Answer:
    """An answer that took so long."""
    return Answer(tuple(tokens), seconds, first)


def trials(prompts: Sequence[Item], repeats: int, **answers: Answer) -> Measured:
    """Every prompt answered so, every time."""
    records = {name: Record.of(answer) for name, answer in answers.items()}
    return Measured(tuple(Trial(item, records) for _ in range(repeats) for item in prompts))


def reported(prompts: Sequence[Item], repeats: int = 5, **answers: Answer) -> dict[str, Any]:
    """The report of these; the first is the baseline."""
    return report(trials(prompts, repeats, **answers), list(answers))


def measured(prompts: Sequence[Item], repeats: int, **answers: Callable[[Sequence[int], int], Answer]) -> Measured:
    """The real loop over scripted methods."""
    return measure([Scripted(name, [], one) for name, one in answers.items()], prompts, Plan(repeats=repeats))
