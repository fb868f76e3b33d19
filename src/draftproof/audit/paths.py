"""The path audit: token by token against plain decoding, the null drafter in the same engine.

Greedy decoding, and the coupled rule at any temperature, must give plain decoding's tokens. Where they do not, teacher
forcing tells a numeric tie from a defect: only a margin within the noise between call shapes excuses a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from draftproof import tree
from draftproof.catalog import Loaded
from draftproof.contracts import Model
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.rng import exponentials
from draftproof.sampling import Sampler
from draftproof.session import Session, score, shared_length
from draftproof.stats import Stats
from draftproof.types import Cache, InputError, SamplingParams, Step, chain
from draftproof.verify import CoupledRule

Class = Literal["identical", "numeric tie", "defect"]
ALLOWED = 4.0
_CONTENDERS = 16


@dataclass(frozen=True)
class Difference:
    """Where two texts part, and whether rounding explains it. Scores are logits, at a temperature those of the race.

    position            index of the first token that differs; both texts share what is before it
    plain_margin        best minus second best score in the one-row shape
    speculative_margin  the same in the shape of a verification
    gap                 how far the two tokens lie behind the best one, the larger over both tokens and shapes
    noise               largest change between the shapes among the best scores; rounding excuses gap <= 4 * noise
    """

    position: int
    plain_token: int | None
    speculative_token: int | None
    plain_margin: float
    speculative_margin: float
    gap: float
    noise: float


@dataclass(frozen=True)
class Comparison:
    """One prompt under one seed."""

    prompt: int
    seed: int | None
    finding: Class
    tokens: int
    draft_tokens: int
    accepted_tokens: int
    difference: Difference | None = None


@dataclass
class Report:
    """All comparisons of a run."""

    prompts: int
    comparisons: list[Comparison] = field(default_factory=list)

    def count(self, finding: Class) -> int:
        """How many comparisons ended so."""
        return sum(one.finding == finding for one in self.comparisons)

    @property
    def passed(self) -> bool:
        """No defect."""
        return self.count("defect") == 0

    def summary(self) -> dict[str, object]:
        """What `audit paths --json` prints."""
        return {
            "prompts": self.prompts,
            "runs": len(self.comparisons),
            "identical": self.count("identical"),
            "numeric_ties": self.count("numeric tie"),
            "defects": self.count("defect"),
            "tokens": sum(one.tokens for one in self.comparisons),
            "draft_tokens": sum(one.draft_tokens for one in self.comparisons),
            "accepted_tokens": sum(one.accepted_tokens for one in self.comparisons),
            "details": [asdict(one) for one in self.comparisons if one.finding != "identical"],
            "passed": self.passed,
        }


def runs(temperature: float, seeds: int, max_tokens: int) -> list[SamplingParams]:
    """One parameter set a seed; greedy decoding needs a single one."""
    count = seeds if temperature > 0 else 1
    return [SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed) for seed in range(count)]


def without_rollback(target: Loaded) -> Loaded:
    """A target that keeps rejected entries: this audit's self-test."""
    return replace(target, model=KeepsRejected(target.model))


def audit(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    runs: Sequence[SamplingParams],
    plain_target: Model | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Report:
    """Every prompt with every parameter set of `runs`; `plain_target` if the engine's is broken on purpose."""
    for params in runs:
        if params.temperature > 0 and not isinstance(engine.rule, CoupledRule):
            raise InputError(
                "above temperature 0 only the coupled rule gives plain decoding's tokens: "
                "use --rule coupled, or audit sampled for the law of another rule."
            )
    plain = Engine(plain_target or engine.target, NullDrafter(), CoupledRule(), engine.text)
    report = Report(len(prompts))
    for number, prompt in enumerate(prompts):
        for params in runs:
            report.comparisons.append(compare(plain, engine, prompt, params, number))
            tick()
    return report


@torch.inference_mode()
def compare(
    plain: Engine, speculative: Engine, prompt: Sequence[int], params: SamplingParams, number: int = 0
) -> Comparison:
    """Both engines on one prompt. At a temperature the parameters must hold a seed."""
    expected, steps = list(plain.generate(prompt, params)), list(speculative.generate(prompt, params))
    one, other = _tokens(expected), _tokens(steps)
    seed = params.seed if params.temperature > 0 else None
    stats = Stats.of(steps)
    counts = stats.tokens, stats.draft_tokens, stats.accepted_tokens
    same = one == other and expected[-1:] and expected[-1].finish_reason == steps[-1].finish_reason
    if same or not (one or other):
        return Comparison(number, seed, "identical", *counts)
    difference = explain(plain.target, prompt, one, steps, params)
    finding: Class = "numeric tie" if difference.gap <= ALLOWED * difference.noise else "defect"
    return Comparison(number, seed, finding, *counts, difference)


def _tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def explain(
    model: Model, prompt: Sequence[int], plain: list[int], steps: Sequence[Step], params: SamplingParams
) -> Difference:
    """Measure the first difference in fresh caches that were never rolled back, so that no broken one is trusted."""
    other = _tokens(steps)
    at = shared_length(plain, other)
    if at == min(len(plain), len(other)):  # one text is the beginning of the other: no rounding does that
        pair = [text[at] if at < len(text) else None for text in (plain, other)]
        return Difference(at, pair[0], pair[1], 0.0, 0.0, float("inf"), 0.0)
    start, drafted = _verification(steps, at)
    one = _race(model, prompt, plain[:at], _row(model, prompt, plain, at, at, 0), params)
    many = _race(model, prompt, plain[:at], _row(model, prompt, plain, at, start, drafted), params)
    contenders = one.topk(min(_CONTENDERS, len(one))).indices
    picks = torch.tensor([plain[at], other[at]], device=one.device)
    behind = [float((row.max() - row[picks]).max()) for row in (one, many)]
    margins = [float(row.topk(2).values.diff().abs()) for row in (one, many)]
    noise = float((one - many)[torch.cat([contenders, picks])].abs().max())
    return Difference(at, plain[at], other[at], margins[0], margins[1], max(behind), noise)


def _verification(steps: Sequence[Step], at: int) -> tuple[int, int]:
    """(tokens committed before the step that emitted token `at`, draft tokens it verified)."""
    begin = 0
    for step in steps:
        if at < begin + len(step.tokens):
            return begin, max(step.num_draft_tokens, at - begin)
        begin += len(step.tokens)
    raise ValueError(f"no step emitted token {at}")


def _row(model: Model, prompt: Sequence[int], text: list[int], at: int, start: int, drafted: int) -> Tensor:
    """[V] logits behind prompt + text[:at], from calls of `drafted` + 1 rows that end with one beginning at `start`.

    All but the last call accept everything, so nothing is ever rolled back.
    """
    session, width = Session(model), drafted + 1
    first = start - (start - 1) // width * width if start > 0 else 0
    nothing = chain([], device=model.device)
    output = score(model, [session], [list(prompt)], [nothing])[0]
    context = [*prompt, *text[:first]]
    for begin in range(first, start + 1, width):
        if begin > 0:
            context = [*prompt, *text[:begin]]
            ahead = [*text[begin : begin + drafted], *[0] * drafted][:drafted]
            output = score(model, [session], [context], [chain(ahead, device=model.device)])[0]
    return output.logits[at - start].double()


def _race(model: Model, prompt: Sequence[int], text: list[int], logits: Tensor, params: SamplingParams) -> Tensor:
    """[V] what the argmax is taken of: processed scores; at a temperature their quotient plus the position's noise."""
    context = [*prompt, *text]
    sampler = Sampler(params, len(prompt))
    scores = sampler.scores(logits[None], context, chain([], device=logits.device), [tree.ROOT])[0]
    if params.temperature == 0:
        return scores
    if params.seed is None:
        raise InputError("paths at a temperature are compared under a seed: give one.")
    noise = -torch.from_numpy(exponentials(params.seed, len(context), len(scores))).log()
    return scores / params.temperature + noise.to(scores.device)


class KeepsRejected:
    """A model that forgets to drop rejected entries: the self-test of this audit. All else is the model's own."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def rollback(self, cache: Cache, length: int, keep: Sequence[int] = ()) -> None:
        """Does nothing where entries would be lost."""
        if length + len(keep) >= cache.length:
            self._model.rollback(cache, length, keep)
