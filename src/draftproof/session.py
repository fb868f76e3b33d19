"""Context in, logits out. The cache is a memo of the token sequence: keep the longest cached path that is a prefix of
the context, feed the rest. That one rule is prefill, catch-up, rollback, tree paths and prefix reuse.

The only caller of `Model.rollback`. Behind every call the cache holds the context, then the nodes of the last proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof import tree
from draftproof.contracts import Model
from draftproof.device import upload
from draftproof.types import Output, Proposal, Segment, chain

PREFILL_CHUNK = 1024


class Session:
    """One request's cache in one model. A `plan_…` must be followed by the model call it plans (see `score`)."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.cache = model.new_cache()
        self._linear: list[int] = []  # tokens of the cache's linear part
        self._context: Sequence[int] | None = None
        self._nodes = self._nothing = chain([], device=model.device)
        self._node_tokens: Sequence[int] | None = None
        self.fed = 0  # tokens that went through every layer, in all calls so far
        self.beside: dict[object, Any] = {}  # what drafters keep of this text from one request to the next
        self._shallow = 0  # context tokens that went through the first layers only; the nodes behind them likewise
        self._borrowed = False  # the shallow entries are another model's, so they are never taken up

    def __len__(self) -> int:
        """Tokens of the linear part: what a prefix can reuse."""
        return len(self._linear)

    def lacks(self, context: Sequence[int]) -> int:
        """Tokens of the context that a plan would feed, once the cache has gone back to what both share."""
        self.go_back(context)
        return len(context) - len(self._linear)

    def resolve(self, tokens: Sequence[int]) -> None:
        """The last proposal's tokens as host integers, so that they need not cross from the device a second time.

        Fewer than its nodes are those of another proposal, and say nothing.
        """
        if len(tokens) >= len(self._nodes):
            self._node_tokens = tokens[: len(self._nodes)]

    def plan(self, context: Sequence[int], proposal: Proposal | None = None) -> Segment:
        """Go back to what context and cache share, then feed the rest and the proposal; rows: context end, every node.

        A context passed as the same object as before may only have grown.
        """
        proposal = self._nothing if proposal is None else proposal
        resume = self._shallow + len(self._nodes) if self._grew_from_exit(context, proposal) else 0
        if not resume:
            self.go_back(context)
        fresh, parents = self._fresh(context), _behind(len(context) - len(self._linear), proposal.parents)
        tokens = torch.cat([fresh, proposal.tokens]) if len(proposal) else fresh
        segment = Segment(self.cache, tokens, parents, 1 + len(proposal), resume)
        self._linear += context[len(self._linear) :]
        self.fed += len(parents)
        self._remember(proposal, 0)
        return segment

    def plan_exit(self, context: Sequence[int], proposal: Proposal | None = None) -> Segment:
        """For a call with `exit_layer`: what is fed becomes shallow entries; rows as in `plan`."""
        proposal = self._nothing if proposal is None else proposal
        self.go_back(context)
        fresh = self._fresh(context)
        self._remember(proposal, len(fresh))
        tokens = torch.cat([fresh, proposal.tokens]) if len(proposal) else fresh
        return Segment(self.cache, tokens, _behind(len(fresh), proposal.parents), 1 + len(proposal))

    def plan_borrowed(self, context: Sequence[int], proposal: Proposal | None = None) -> Segment:
        """As `plan_exit`, for a call of another model with the same caches, whose exit is its last layer.

        What it writes stands behind the target's own entries and is dropped by the next plan, never taken up: only
        what the target computed counts as text. Feed all but the context's last token beforehand (`catch_up`).
        """
        segment = self.plan_exit(context, proposal)
        self._borrowed = True
        return segment

    def plan_more(self, proposal: Proposal) -> Segment:
        """Feed the nodes the proposal has gained since the last plan; rows are those of the new nodes.

        The earlier nodes must be the same. Behind `plan_exit` and `plan_borrowed` the new nodes are shallow too.
        """
        new = proposal.tokens[len(self._nodes) :]
        self.fed += 0 if self._shallow else len(new)
        self._nodes, self._node_tokens = proposal, None
        return Segment(self.cache, new, _behind(self._shallow, proposal.parents), len(new))

    def go_back(self, context: Sequence[int]) -> None:
        """Drop what is no prefix of context[:-1]: the last token is always fed, so that a row follows it."""
        linear, limit = len(self._linear), len(context) - 1
        same = linear if context is self._context and linear <= limit else shared_length(self._linear, context, limit)
        keep: tuple[int, ...] = ()
        if same == linear and len(self._nodes) and not self._shallow:
            tokens = self._nodes.tokens.tolist() if self._node_tokens is None else self._node_tokens
            keep = tree.follow(self._nodes.parents, tokens, context[linear:limit])
        stays = self.model.reusable(self.cache, same)
        if stays < same:
            keep = ()
        if self._shallow or self.cache.length != stays + len(keep) or keep != tuple(range(len(keep))):
            self.model.rollback(self.cache, stays, [linear + node for node in keep])
        del self._linear[stays:]
        self._linear += context[stays : stays + len(keep)]
        self._context = context
        self._remember(self._nothing, 0)

    def _fresh(self, context: Sequence[int]) -> torch.Tensor:
        return upload(context[len(self._linear) :], self.model.device)

    def _remember(self, nodes: Proposal, shallow: int) -> None:
        self._nodes, self._node_tokens, self._shallow, self._borrowed = nodes, None, shallow, False

    def _grew_from_exit(self, context: Sequence[int], proposal: Proposal) -> bool:
        """Are the shallow entries the beginning of what is to be fed? Tokens are compared where that is free."""
        fed = len(self._nodes)
        if self._borrowed or not self._shallow or len(context) - len(self._linear) != self._shallow:
            return False
        if context is not self._context or proposal.parents[:fed] != self._nodes.parents:
            return False
        return proposal.tokens.device.type != "cpu" or torch.equal(proposal.tokens[:fed], self._nodes.tokens)


def score(
    model: Model,
    sessions: Sequence[Session],
    contexts: Sequence[Sequence[int]],
    proposals: Sequence[Proposal],
    layers: Sequence[int] = (),
) -> list[Output]:
    """One model call for all: each context's end and every node of its proposal, [N + 1, V] a request."""
    prefill(model, sessions, contexts)
    segments = [s.plan(c, p) for s, c, p in zip(sessions, contexts, proposals, strict=True)]
    return model.forward(segments, layers)


OnChunk = Callable[[int, Sequence[int], Tensor], None]
"""(number of the request, its context up to the token behind the chunk, states [n, L, H] of the chunk)"""


def prefill(
    model: Model,
    sessions: Sequence[Session],
    contexts: Sequence[Sequence[int]],
    layers: Sequence[int] = (),
    on_chunk: OnChunk | None = None,
) -> None:
    """Feed long contexts in chunks up to the last one, so that a call's memory stays bounded.

    The states behind `layers` are handed on chunk by chunk and not kept.
    """
    for number, (session, context) in enumerate(zip(sessions, contexts, strict=True)):
        if len(context) - len(session) > PREFILL_CHUNK:
            session.go_back(context)
        while len(context) - len(session) > PREFILL_CHUNK:
            segment = session.plan(context[: len(session) + PREFILL_CHUNK])
            wanted = layers if on_chunk is not None else ()
            (output,) = model.forward([Segment(segment.cache, segment.tokens, segment.parents, 0)], wanted)
            if on_chunk is not None and output.hidden is not None:
                on_chunk(number, context[: len(session) + 1], output.hidden)


def catch_up(model: Model, sessions: Sequence[Session], contexts: Sequence[Sequence[int]]) -> None:
    """The target reads whatever it has not read of all but the last token: nothing where the last step was its own."""
    prefill(model, sessions, contexts)
    behind = [(s, c) for s, c in zip(sessions, contexts, strict=True) if s.lacks(c) > 1]
    if behind:
        segments = [s.plan(c[:-1]) for s, c in behind]
        model.forward([Segment(segment.cache, segment.tokens, segment.parents, 0) for segment in segments])


def _behind(shift: int, parents: Sequence[int]) -> tuple[int, ...]:
    """Parents of `shift` tokens in a row and of the nodes below the last of them."""
    return (*range(-1, shift - 1), *(parent + shift for parent in parents)) if shift else tuple(parents)


def shared_length(one: Sequence[int], other: Sequence[int], limit: int | None = None) -> int:
    """Length of the beginning that two token sequences share, `limit` at most."""
    length = min(len(one), len(other)) if limit is None else min(len(one), len(other), limit)
    if list(one[:length]) == list(other[:length]):
        return length
    return next(i for i in range(length) if one[i] != other[i])
