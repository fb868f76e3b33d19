"""The one loop: propose, score, judge, cut, commit. Any number of requests advance by one target call.

A single generation is this loop with one request; plain decoding is this loop with the null drafter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from draftproof import tree
from draftproof.contracts import Ask, Drafter, Model, Rule, TextEnd
from draftproof.device import upload
from draftproof.fast import Judgement, fetch, judge
from draftproof.request import Request, Running, new_request
from draftproof.sampling import log_probabilities
from draftproof.session import Session, prefill
from draftproof.stats import Clock
from draftproof.types import InputError, Origin, Output, Proposal, SamplingParams, Step, TokenLogprob, chain
from draftproof.verify import CoupledRule

_NO_TOKEN = (
    "no token can follow here, since all are forbidden or the model returned NaN: "
    "loosen logit_bias, no_repeat_ngram or the processors, or use another dtype."
)


class Engine:
    """One target, one drafter, one rule. They are shared and read-only: state lies in the requests alone."""

    def __init__(self, target: Model, drafter: Drafter, rule: Rule | CoupledRule, text: TextEnd | None = None) -> None:
        """text: knows the model's end tokens and watches for stop strings."""
        self.target, self.drafter, self.rule, self.text = target, drafter, rule, text
        self._nothing = chain([], device=target.device)

    def submit(self, prompt: Sequence[int], params: SamplingParams, session: Session | None = None) -> Request:
        """A request that has not run yet. InputError where the prompt or a parameter cannot be used.

        session: of an earlier request that has ended; what its cache shares with the prompt is not fed again.
        """
        session = Session(self.target) if session is None else session
        return new_request(self.target, prompt, params, self.text, Running(session, self.drafter.start(session)))

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Iterator[Step]:
        """Steps of one request until it ends, or InputError where no token can follow; closing it frees the caches."""
        request = self.submit(prompt, params)
        try:
            while request.finish_reason is None:
                (step,) = self.step([request])
                if step.tokens or step.error is None:
                    yield step
                if step.error is not None:
                    raise InputError(step.error)
        finally:
            request.finish("cancelled")

    def step(self, requests: Sequence[Request]) -> list[Step]:
        """Advance every unfinished request by one target call; one Step a request, empty for those that have ended."""
        for request in requests:
            if request.stopper.left <= 0:
                request.finish("length")
        live = [(request, request.running) for request in requests if request.running is not None]
        steps = dict(zip((request for request, _ in live), self._advance(live) if live else [], strict=True))
        ended = {request: Step((), (), finish_reason=request.finish_reason) for request in requests}
        return [steps.get(request, ended[request]) for request in requests]

    def _advance(self, live: Sequence[tuple[Request, Running]]) -> list[Step]:
        clock = Clock(len(live))
        proposals = self._propose(live)
        clock.mark("draft")
        sessions, contexts = [running.session for _, running in live], [request.context for request, _ in live]
        prefill(self.target, sessions, contexts)
        clock.mark("target")
        segments = [s.plan(context, p) for s, context, p in zip(sessions, contexts, proposals, strict=True)]
        clock.mark("rollback")
        outputs = self.target.forward(segments, self.drafter.layers)
        clock.mark("target")
        scored, pending = [], []
        for (request, _), proposal, output in zip(live, proposals, outputs, strict=True):
            nodes = range(tree.ROOT, len(proposal))
            scores = request.sampler.scores(output.logits, request.context, proposal, nodes)
            scored.append(_Scored(proposal, output, scores))
            at = len(request.context)
            pending.append(judge(self.rule, proposal, scores, request.sampler, request.source, at))
        clock.mark("sampling")
        judged = fetch(pending, proposals)
        clock.mark("verify")
        steps = [self._commit(*who, one, *what) for who, one, what in zip(live, scored, judged, strict=True)]
        clock.mark("other")
        return [replace(step, timing=clock.timing()) for step in steps]

    def _propose(self, live: Sequence[tuple[Request, Running]]) -> list[Proposal]:
        """Nothing before the first token has been delivered, nor where one more token is all that is left."""
        asks: dict[int, Ask] = {}
        for i, (request, running) in enumerate(live):
            params, gamma = request.params, self.drafter.gamma
            depth = min(gamma if params.gamma is None else min(gamma, params.gamma), request.stopper.left - 1)
            if depth > 0 and request.drafts and len(request.context) > request.prompt_length:
                coupled = isinstance(self.rule, CoupledRule)
                asks[i] = Ask(running.draft, request.context, depth, request.sampler, request.source, coupled)
        proposed = self.drafter.propose(list(asks.values())) if asks else []
        for ask, proposal in zip(asks.values(), proposed, strict=True):
            self._check(ask, proposal)
        made = dict(zip(asks, proposed, strict=True))
        return [made.get(i, self._nothing) for i in range(len(live))]

    def _check(self, ask: Ask, proposal: Proposal) -> None:
        """A drafter that breaks its contract is named before anything was changed; ids are read where that is free."""
        depth = max(tree.depths(proposal.parents), default=0)
        if depth > ask.depth:
            raise ValueError(
                f"drafter {self.drafter.name} was asked for {ask.depth} tokens a path and proposed {depth}"
            )
        tokens, size = proposal.tokens, self.target.vocab_size
        if tokens.device.type == "cpu" and len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < size):
            raise ValueError(
                f"drafter {self.drafter.name} proposed an id that is not one of the target's {size} tokens"
            )
        if proposal.probs is not None and proposal.probs.shape[1] != size:
            raise ValueError(f"drafter {self.drafter.name} gave rows of {proposal.probs.shape[1]} tokens, not {size}")

    def _commit(
        self, request: Request, running: Running, scored: _Scored, judgement: Judgement, drafted: list[int]
    ) -> Step:
        """Cut, append, tell session and drafter. Without a next token the accepted ones stand and the request ends."""
        proposal = scored.proposal
        path, token = judgement.verdict.path, judgement.verdict.next_token
        new = [*(drafted[node] for node in path), *([token] if token >= 0 else [])]
        kept, reason = request.stopper.cut(new)
        if token < 0 and reason is None:
            reason = "error"
        logprobs = _logprobs(request, scored, [tree.ROOT, *path][:kept], new[:kept])
        prefilled = len(request.context) == request.prompt_length
        request.context += new[:kept]
        running.session.resolve(drafted)
        running.draft.observe(request.context, drafted, _committed_states(scored.output, proposal, path))
        if reason is not None:
            request.finish(reason)
        return Step(
            tokens=tuple(new[:kept]),
            origins=_origins(proposal, path)[:kept],
            logprobs=logprobs,
            draft_tokens=tuple(drafted),
            num_draft_tokens=len(proposal),
            num_accepted_tokens=len(path),
            draft_depth=max(tree.depths(proposal.parents), default=0),
            expected_accepted=judgement.expected_accepted,
            overlap=judgement.overlap,
            overlap_positions=judgement.overlap_positions,
            drafter=proposal.drafter or self.drafter.name,
            prefill=prefilled,
            finish_reason=reason,
            error=_NO_TOKEN if reason == "error" else None,
        )


@dataclass(frozen=True, eq=False)
class _Scored:
    """A proposal with what the target says of it: its output, and the scores [N + 1, V] before temperature."""

    proposal: Proposal
    output: Output
    scores: torch.Tensor


def _origins(proposal: Proposal, path: Sequence[int]) -> tuple[Origin, ...]:
    """One a token of accepted path and next token."""
    if not len(proposal):
        return ("plain",)
    last = path[-1] if path else tree.ROOT
    accepted: list[Origin] = ["accepted" for _ in path]
    return *accepted, "correction" if last in proposal.parents else "bonus"


def _committed_states(output: Output, proposal: Proposal, path: Sequence[int]) -> torch.Tensor | None:
    """[n, L, H] states of the fed tokens that are committed now: the fresh ones, then the accepted path."""
    if output.hidden is None:
        return None
    fresh = len(output.hidden) - len(proposal)
    rows = [*range(fresh), *(fresh + node for node in path)]
    return output.hidden.index_select(0, upload(rows, output.hidden.device))


def _logprobs(request: Request, scored: _Scored, nodes: Sequence[int], kept: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """The target's log-probability of every kept token, from the row of the node it follows."""
    wanted = request.params.logprobs
    if wanted is None or not kept:
        return ()
    rows = upload([node + 1 for node in nodes], scored.scores.device)
    logits, scores = scored.output.logits.index_select(0, rows), scored.scores.index_select(0, rows)
    logs = log_probabilities(logits, scores, request.sampler)
    best = logs.topk(min(wanted, logs.shape[-1]))
    tops = [tuple(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    own = logs.gather(1, upload(kept, logs.device)[:, None])[:, 0].tolist()
    return tuple(TokenLogprob(*row) for row in zip(kept, own, tops, strict=True))
