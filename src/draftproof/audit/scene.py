"""The real pieces around one combination: what a drafter proposes behind a context, and how the target scores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from draftproof import tree
from draftproof.audit.branching import Noise, explore
from draftproof.contracts import Ask, Drafter, Model, Source
from draftproof.fast_sampling import FastSampler
from draftproof.request import Running
from draftproof.sampling import Sampler
from draftproof.session import Session
from draftproof.stop import Stopper
from draftproof.types import Proposal, SamplingParams, chain

Wrap = Callable[[Source], Source]
Law = dict[tuple[int, ...], float]


def unchanged(source: Source) -> Source:
    """The source itself; a control puts a broken one in its place."""
    return source


@dataclass(frozen=True, eq=False)
class Draft:
    """A proposal with its probability, the target's scores [N + 1, V] behind it and what is known of the noise."""

    weight: float
    proposal: Proposal
    scores: Tensor
    noise: Noise


class Scene:
    """A target, a drafter, sampling parameters and a prompt. The sessions are kept, so that every context is reached
    by rolling back from another one. `sampler` and `wrap` are there for the controls.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        params: SamplingParams,
        prompt: Sequence[int],
        sampler: type[Sampler] = FastSampler,
        wrap: Wrap = unchanged,
    ) -> None:
        self.target, self.drafter, self.params, self.prompt = target, drafter, params, tuple(prompt)
        self.wrap, self._sampler = wrap, sampler
        session = Session(target)
        self.running = Running(session, drafter.start(session))
        self._kept: dict[tuple[tuple[int, ...], bool], list[Draft]] = {}

    def sampler(self) -> Sampler:
        """Fresh, since one follows a context only as it grows."""
        return self._sampler(self.params, len(self.prompt))

    def stopper(self, context: Sequence[int]) -> Stopper:
        """As it stands once the context has been committed."""
        stopper = Stopper(self.params, (), self.params.max_tokens)
        stopper.cut(context[len(self.prompt) :])
        return stopper

    def renew(self) -> None:
        """An n-gram history only grows, so another context needs another one; the other drafters go back themselves."""
        if self.drafter.name == "ngram":
            self.running.draft = self.drafter.start(self.running.session)

    def drafts(self, context: tuple[int, ...], noise: Noise, coupled: bool) -> Iterator[Draft]:
        """Every proposal the drafter can make behind the context, scored by one target call each.

        Without noise from earlier steps they depend on the context alone, and the next rule uses them again.
        """
        if noise != Noise():
            return self._explore(context, noise, coupled)
        key = (context, coupled)
        if key not in self._kept:
            self._kept[key] = list(self._explore(context, noise, coupled))
        return iter(self._kept[key])

    def _explore(self, context: tuple[int, ...], noise: Noise, coupled: bool) -> Iterator[Draft]:
        text, depth = list(context), min(self.drafter.gamma, self.stopper(context).left - 1)
        if depth <= 0:
            nothing = chain([])
            yield Draft(1.0, nothing, self.score(text, nothing), noise)
            return
        self.renew()

        def propose(source: Source) -> Proposal:
            ask = Ask(self.running.draft, text, depth, self.sampler(), self.wrap(source), coupled)
            return self.drafter.propose([ask])[0]

        for weight, proposal, known in explore(propose, noise):
            yield Draft(weight, proposal, self.score(text, proposal), known)
            self.running.draft.observe(text, proposal.tokens.tolist(), None)

    def score(self, context: list[int], proposal: Proposal) -> Tensor:
        """[N + 1, V] of the target through its session, with every stage before temperature applied."""
        segment = self.running.session.plan(context, proposal)
        logits = self.target.forward([segment])[0].logits
        return self.sampler().scores(logits, context, proposal, range(tree.ROOT, len(proposal)))
