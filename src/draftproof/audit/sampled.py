"""The sampled audit: the joint law of the first tokens, drawn through the real engine, against teacher forcing.

The null hypothesis of a test is that the engine emits plain decoding's law. Draws carry distinct seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from draftproof import tree
from draftproof.audit.statistics import (
    POWER,
    Cells,
    Tokens,
    at_least,
    cells,
    detectable,
    holm,
    pearson,
)
from draftproof.contracts import Model
from draftproof.engine import Engine
from draftproof.sampling import Sampler
from draftproof.session import Session, score
from draftproof.stats import Stats
from draftproof.types import InputError, SamplingParams, chain

PAIRS = 32
_SLACK = 0.99


@dataclass(frozen=True)
class Plan:
    """Draws a combination, tokens whose law is tested, family-wise false-alarm rate, first seed, requests at once."""

    draws: int = 25_000
    tokens: int = 3
    alpha: float = 1e-4
    seed: int = 0
    batch: int = 256

    def __post_init__(self) -> None:
        if self.draws < 100 or not 1 <= self.tokens <= 8 or not 0 < self.alpha < 1 or self.batch < 1:
            raise InputError(
                "give at least 100 draws, 1 to 8 tokens, an alpha between 0 and 1 and a batch of at least 1."
            )


@dataclass(frozen=True)
class Tested:
    """One combination: the test, what it can see, and draws that plain decoding never gives."""

    name: str
    draws: int
    cells: int
    statistic: float
    p_value: float
    detectable: float
    outside: int
    accepted: float


@dataclass
class Report:
    """A family of tests under one false-alarm rate, the controls, and the independence of unseeded requests."""

    plan: Plan
    tests: list[Tested] = field(default_factory=list)
    controls: list[Tested] = field(default_factory=list)
    duplicates: int = 0
    independence: float = 1.0

    def defects(self) -> list[str]:
        """Names of what is wrong: Holm's correction over the tests and the independence of unseeded requests."""
        fallen = holm([*(test.p_value for test in self.tests), self.independence], self.plan.alpha)
        names = [test.name for test, down in zip(self.tests, fallen, strict=False) if down or test.outside]
        return [*names, *(["unseeded requests are not independent"] if fallen[-1] else [])]

    def caught(self, control: Tested) -> bool:
        """Was the mistake found?"""
        return control.p_value <= self.plan.alpha or control.outside > 0

    @property
    def passed(self) -> bool:
        """No defect, and every control found."""
        return not self.defects() and all(self.caught(control) for control in self.controls)

    def summary(self) -> dict[str, object]:
        """What `audit sampled --json` prints."""
        return {
            "combinations": [vars(test) for test in self.tests],
            "draws": self.plan.draws,
            "tokens": self.plan.tokens,
            "false_alarm_rate": self.plan.alpha,
            "power": POWER,
            "defects": self.defects(),
            "independence": {"pairs": PAIRS, "duplicates": self.duplicates, "p_value": self.independence},
            "controls": [{**vars(control), "caught": self.caught(control)} for control in self.controls],
            "passed": self.passed,
        }


def examine(name: str, engine: Engine, prompt: Sequence[int], params: SamplingParams, plan: Plan, tick: Tick) -> Tested:
    """Draw, pool, compare. `tick(n)` is called behind every n draws."""
    if params.temperature == 0:
        raise InputError("a law is tested at a temperature above 0; for greedy decoding use audit paths.")
    truth = Truth(engine, prompt, params)
    law = cells(truth.rows, plan.draws, plan.tokens, truth.ends)
    counts, stats = Counter[Tokens](), Stats()
    for start in range(0, plan.draws, plan.batch):
        seeds = range(plan.seed + start, plan.seed + min(start + plan.batch, plan.draws))
        texts = drawn(engine, prompt, [replace(params, seed=seed) for seed in seeds], plan.tokens, stats)
        counts.update(texts)
        tick(len(texts))
    result = pearson(law, counts)
    power = detectable(plan.draws, result.cells, plan.alpha)
    outside = truth.outside(counts)
    accepted = stats.mean_accepted_length
    return Tested(name, plan.draws, result.cells, result.statistic, result.p_value, power, outside, accepted)


Tick = Callable[[int], None]


@torch.inference_mode()
def drawn(
    engine: Engine, prompt: Sequence[int], params: Sequence[SamplingParams], tokens: int, stats: Stats | None = None
) -> list[Tokens]:
    """The first tokens of one request a parameter set, advanced together.

    The budget leaves room for a whole block behind them, so that drafts have their full length.
    `stats` counts the steps.
    """
    room = tokens + engine.drafter.gamma + 1
    requests = [engine.submit(prompt, replace(one, max_tokens=room)) for one in params]
    while live := [one for one in requests if one.finish_reason is None and len(one.output) < tokens]:
        for step in engine.step(live):
            if step.error is not None:
                raise InputError(step.error)
            if stats is not None:
                stats.add(step)
    for one in requests:
        one.finish("cancelled")
    return [tuple(one.output[:tokens]) for one in requests]


class Truth:
    """Plain decoding's distribution behind any prefix, by teacher forcing in fresh caches; nothing is drafted."""

    def __init__(self, engine: Engine, prompt: Sequence[int], params: SamplingParams, batch: int = 64) -> None:
        self._model: Model = engine.target
        own = tuple(engine.text.eos_ids) if engine.text is not None else ()
        self.ends = frozenset({*own, *params.stop_tokens})
        self._prompt, self._params, self._own, self._batch = list(prompt), params, own, batch
        self._supports: dict[Tokens, Tensor] = {}

    def rows(self, prefixes: Sequence[Tokens]) -> list[list[float]]:
        """One distribution a prefix."""
        return [probs.double().tolist() for _, probs in self._computed(prefixes)]

    @torch.inference_mode()
    def _computed(self, prefixes: Sequence[Tokens]) -> Iterator[tuple[Tokens, Tensor]]:
        """(prefix, distribution), a batch a model call; only the supports are kept."""
        nothing = chain([], device=self._model.device)
        for start in range(0, len(prefixes), self._batch):
            part = prefixes[start : start + self._batch]
            contexts = [[*self._prompt, *prefix] for prefix in part]
            outputs = score(self._model, [Session(self._model) for _ in part], contexts, [nothing] * len(part))
            for prefix, context, output in zip(part, contexts, outputs, strict=True):
                sampler = Sampler(self._params, len(self._prompt), self._own)
                scores = sampler.scores(output.logits, context, nothing, [tree.ROOT])
                probs = sampler.probabilities(scores)[0]
                self._supports[prefix] = self._support(scores[0], probs).cpu()
                yield prefix, probs

    def _support(self, scores: Tensor, probs: Tensor) -> Tensor:
        """[V] bool. Where rows differ in their last bits, a token at the very edge of a filter counts as inside."""
        support = probs > 0
        if "invariant" not in self._model.can:
            loose = torch.softmax(scores / self._params.temperature, -1)
            support |= loose >= _SLACK * loose[support].min()
        return support

    def outside(self, counts: Counter[Tokens]) -> int:
        """Draws with a token of probability zero."""
        met = {text[:i] for text in counts for i in range(len(text))}
        for _ in self._computed(sorted(met - set(self._supports))):
            pass
        return sum(
            count
            for text, count in counts.items()
            if not all(bool(self._supports[text[:i]][token]) for i, token in enumerate(text))
        )


def independence(engine: Engine, prompt: Sequence[int], params: SamplingParams, plan: Plan) -> tuple[int, float]:
    """(duplicates, p-value) of pairs of unseeded requests, one after the other.

    Two independent texts are equal with the chance sum of p^2; pooled cells only make it larger, so the exact
    binomial errs on the safe side.
    """
    truth = Truth(engine, prompt, params)
    law: Cells = cells(truth.rows, plan.draws, plan.tokens, truth.ends)
    chance = sum(p * p for p in law.probabilities.values())
    free = replace(params, seed=None)
    texts = [drawn(engine, prompt, [free], plan.tokens)[0] for _ in range(2 * PAIRS)]
    duplicates = sum(a == b for a, b in zip(texts[::2], texts[1::2], strict=True))
    return duplicates, at_least(duplicates, PAIRS, chance)
