"""Laws of whole sequences: of plain decoding, and of speculative decoding by three ways through the real code.

A law maps a sequence of emitted tokens to its probability. The continuation is enumerated once per context and noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof import tree
from draftproof.audit.branching import Branching, Fixed, Noise, explore
from draftproof.audit.scene import Draft, Law, Scene, unchanged
from draftproof.contracts import Rule
from draftproof.engine import Engine
from draftproof.fast import Judgement, fetch, judge
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import Step, Verdict, chain
from draftproof.verify import CoupledRule

AnyRule = Rule | CoupledRule
Outcome = tuple[float, tuple[int, ...], Noise]
Ways = Callable[[Scene, AnyRule, tuple[int, ...], Noise], Iterator[Outcome]]


def plain_law(scene: Scene) -> Law:
    """Plain decoding, row by row of the target's table; nothing of sessions, drafters, rules or fast twins."""
    law: Law = {}
    nothing, ends = chain([]), set(scene.params.stop_tokens)

    def grow(emitted: tuple[int, ...], weight: float) -> None:
        if len(emitted) == scene.params.max_tokens or (emitted and emitted[-1] in ends):
            law[emitted] = weight
            return
        context = [*scene.prompt, *emitted]
        sampler = Sampler(scene.params, len(scene.prompt))
        row: Any = scene.target.row(context)  # type: ignore[attr-defined]
        probs = sampler.probabilities(sampler.scores(row[None], context, nothing, [tree.ROOT]))[0]
        for token, p in enumerate(probs.tolist()):
            if p > 0:
                grow((*emitted, token), weight * p)

    grow((), 1.0)
    return law


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of absolute differences."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2


def law_of(ways: Ways, scene: Scene, rule: AnyRule) -> Law:
    """The law of what is emitted behind the prompt, step by step, cut by the real stopper."""
    known: dict[tuple[tuple[int, ...], Noise], Law] = {}

    def behind(context: tuple[int, ...], noise: Noise) -> Law:
        if (context, noise) not in known:
            law = known[context, noise] = {}
            for weight, new, later in ways(scene, rule, context, noise):
                kept, reason = scene.stopper(context).cut(new)
                tokens = new[:kept]
                longer = (*context, *tokens)
                rest = {(): 1.0} if reason else behind(longer, later.behind(len(longer)))
                for text, p in rest.items():
                    law[(*tokens, *text)] = law.get((*tokens, *text), 0.0) + weight * p
        return known[context, noise]

    return behind(scene.prompt, Noise())


def reference(scene: Scene, rule: AnyRule, context: tuple[int, ...], noise: Noise) -> Iterator[Outcome]:
    """verify.py: sums over stops and rows; the coupled rule by the cells of its noise."""
    for draft in scene.drafts(context, noise, isinstance(rule, CoupledRule)):
        probs = Sampler.probabilities(scene.sampler(), draft.scores)
        if isinstance(rule, CoupledRule):
            for weight, verdict, known in cells(rule, draft, probs, len(context)):
                yield draft.weight * weight, spelled(draft, verdict), known
            continue
        result = rule.outcomes(draft.proposal, probs)
        for stop, s in enumerate(result.stops.tolist()):
            if s > 0:
                for token, p in enumerate(result.after(stop).tolist()):
                    if p > 0:
                        path = tree.path(draft.proposal.parents, stop - 1)
                        yield draft.weight * s * p, spelled(draft, Verdict(path, token)), draft.noise


def cells(rule: CoupledRule, draft: Draft, probs: Any, length: int) -> Iterator[tuple[float, Verdict, Noise]]:
    """(probability, verdict, noise) of every part of the noise on which the coupled rule decides alike."""
    return explore(lambda source: rule.verdict(draft.proposal, probs, source, length), draft.noise)


def spelled(draft: Draft, verdict: Verdict) -> tuple[int, ...]:
    """Tokens of the accepted path and the next token."""
    return (*(int(draft.proposal.tokens[node]) for node in verdict.path), verdict.next_token)


@dataclass
class Fast:
    """fast.py through `judge`, as the engine calls it.

    expected_gap  largest difference between the expected accepted length that `judge` reports for a proposal and
                  the mean over all its outcomes
    accepted      mean accepted length of the first step
    """

    expected_gap: float = 0.0
    accepted: float = 0.0

    def __call__(self, scene: Scene, rule: AnyRule, context: tuple[int, ...], noise: Noise) -> Iterator[Outcome]:
        """A coupled rule is asked at one point of every cell that the reference has found."""
        for draft in scene.drafts(context, noise, isinstance(rule, CoupledRule)):
            mean = expected = 0.0
            for weight, judged, known in self._judge(scene, rule, draft, len(context)):
                mean += weight * len(judged.verdict.path)
                expected += weight * judged.expected_accepted
                yield draft.weight * weight, spelled(draft, judged.verdict), known
            self.expected_gap = max(self.expected_gap, abs(mean - expected))
            self.accepted += draft.weight * mean if context == scene.prompt else 0.0

    def _judge(
        self, scene: Scene, rule: AnyRule, draft: Draft, length: int
    ) -> Iterator[tuple[float, Judgement, Noise]]:
        sampler = scene.sampler()

        def once(source: Any) -> Judgement:
            pending = judge(rule, draft.proposal, draft.scores, sampler, scene.wrap(source), length)
            return fetch([pending], [draft.proposal])[0][0]

        if isinstance(rule, CoupledRule) and scene.wrap is unchanged:
            for weight, _, known in cells(rule, draft, sampler.probabilities(draft.scores), length):
                yield weight, once(Fixed(known)), known
        else:
            yield from explore(once, draft.noise)


def whole_engine(scene: Scene, rule: AnyRule, context: tuple[int, ...], noise: Noise) -> Iterator[Outcome]:
    """`Engine.step` itself, with a request that stands at the context."""
    engine = Engine(scene.target, scene.drafter, rule)
    for weight, step, known in explore(lambda source: _step(engine, scene, context, source), noise):
        yield weight, step.tokens, known


def _step(engine: Engine, scene: Scene, context: Sequence[int], source: Branching) -> Step:
    scene.renew()
    request = Request(
        context=list(context),
        prompt_length=len(scene.prompt),
        params=scene.params,
        sampler=scene.sampler(),  # type: ignore[arg-type]
        source=source,  # type: ignore[arg-type]
        stopper=scene.stopper(context),
        running=scene.running,
    )
    return engine.step([request])[0]
