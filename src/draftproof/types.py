"""The data that passes between the parts. No behaviour beyond shape checks; the parts themselves: contracts.py.

N draft nodes, V vocabulary of the target, T tokens fed, L layers asked for, H hidden width, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

FinishReason = Literal["stop", "length", "cancelled", "error"]
Origin = Literal["accepted", "correction", "bonus", "plain"]


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what to do."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """The draft tokens of one step, a tree below the last committed token, with the rows they came from.

    tokens   [N] int64, on the target's device
    parents  N integers on the host, parents[i] < i; -1 is the last committed token. A chain is (-1, 0, 1, ...)
    probs    [N, V] float32: row i is what tokens[i] was drawn from given its elder siblings; a chosen token
             among drawn ones has a one-hot row. None: every token was chosen, so every row is one-hot
    coupled  tokens are the best under the noise of their position, so only the coupled rule may verify them;
             `probs`, if given, then serves statistics alone
    drafter  who made it, where that is not the engine's drafter itself
    confidence  of a chain, if its drafter can say: its own chance of token i. Chosen tokens may be cut for it,
             drawn ones never
    guessed  so many of the tokens needed no call of the drafter's model, since look-up had guessed them
    """

    tokens: Tensor
    parents: tuple[int, ...]
    probs: Tensor | None = None
    coupled: bool = False
    drafter: str = ""
    confidence: tuple[float, ...] = ()
    guessed: int = 0

    def __post_init__(self) -> None:
        n = len(self.parents)
        if self.tokens.shape != (n,) or self.tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 of shape [{n}], not {self.tokens.dtype} {list(self.tokens.shape)}")
        if any(not -1 <= parent < i for i, parent in enumerate(self.parents)):
            raise ValueError("parents[i] must be -1 or an earlier node")
        if self.probs is not None and (self.probs.dim() != 2 or self.probs.shape[0] != n):
            raise ValueError(f"probs must have {n} rows, not shape {list(self.probs.shape)}")

    def __len__(self) -> int:
        return len(self.parents)


def chain(tokens: Sequence[int], probs: Tensor | None = None, device: torch.device | str = "cpu") -> Proposal:
    """A proposal without branches; `chain([])` proposes nothing."""
    ids = torch.tensor(list(tokens), dtype=torch.int64).to(device, non_blocking=True)
    return Proposal(ids, tuple(range(-1, len(tokens) - 1)), probs)


class Cache(Protocol):
    """One request's entries in a model: position-addressed, owned by the model that made it."""

    @property
    def length(self) -> int:
        """Entries that went through every layer."""


@dataclass(frozen=True, eq=False)
class Segment:
    """One request's share of a model call.

    cache    entries already computed; the new ones are appended to it
    tokens   [T] int64 to feed
    parents  of the last entries, the T new ones included: parents[i] counts from the first entry described,
             -1 is the entry before it. So the linear part of the cache is its first
             `cache.length - (len(parents) - T)` entries, and a plain continuation has parents (-1, 0, ..., T - 2).
             In a call with `exit_layer` the shallow entries count as entries of the cache
    rows     logits are wanted for the last `rows` tokens
    resume   the first `resume` of the tokens went through the first layers before (a call with `exit_layer`),
             so the call goes on from there
    """

    cache: Cache
    tokens: Tensor
    parents: tuple[int, ...]
    rows: int
    resume: int = 0

    def __post_init__(self) -> None:
        fed = self.tokens.shape[0]
        if len(self.parents) < fed:
            raise ValueError(f"{fed} tokens need as many parents, not {len(self.parents)}")
        if not 0 <= self.rows <= fed:
            raise ValueError(f"rows must lie in 0..{fed}, not {self.rows}")


@dataclass(frozen=True, eq=False)
class Output:
    """What a model call returns for one segment.

    logits  [rows, V] in the model's own dtype or float32; row i follows the i-th of the last `rows` tokens
    hidden  [T, L, H] states behind the layers asked for, or None
    """

    logits: Tensor
    hidden: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """path: accepted node ids from the root down (its length is the accepted length A).

    next_token: the correction token, or the bonus token when the path ends at a leaf.
    """

    path: tuple[int, ...]
    next_token: int


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of an emitted token under the target, with the `top` most likely (token, logprob) pairs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Timing:
    """Seconds of one step. A call for several requests is shared equally among them."""

    draft: float = 0.0
    target: float = 0.0
    sampling: float = 0.0
    verify: float = 0.0
    rollback: float = 0.0
    other: float = 0.0


@dataclass(frozen=True)
class Step:
    """All that the engine yields for one request and one target call.

    tokens                committed now, after stops: 1 ... A + 1 (0 only for a request that ends at once)
    origins               one a token: "accepted" draft token, "correction" behind a rejection, "bonus" behind a whole
                          accepted path, "plain" where nothing was drafted
    num_draft_tokens      nodes verified
    num_accepted_tokens   A, before stops cut anything
    prefill               this call read the prompt, so nothing was drafted yet
    error                 why no token could follow, with finish_reason "error"; other requests of the call go on
    expected_accepted     mean of A over the rule's own randomness, given the rows; no sampling noise
    overlap               sum of min(p, q) over the positions reached, `overlap_positions` of them
    draft_tokens          the nodes' tokens, in node order; draft_depth: length of the longest path
    drafter               the name of the drafter that made the proposal
    """

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    draft_tokens: tuple[int, ...] = ()
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_depth: int = 0
    expected_accepted: float = 0.0
    overlap: float = 0.0
    overlap_positions: int = 0
    drafter: str = "null"
    prefill: bool = False
    timing: Timing = Timing()
    finish_reason: FinishReason | None = None
    error: str | None = None


class Processor(Protocol):
    """A user's logits processor: (prefix token ids [1, n], scores [1, V]) -> scores [1, V], as in transformers.

    It must depend on its arguments alone: draft positions are shown to it that may come to nothing. One that keeps
    a state says so with an attribute `stateful = True`; the request is then decoded plainly, once a position.
    """

    def __call__(self, input_ids: Any, scores: Any, /) -> Any: ...


@dataclass(frozen=True)
class SamplingParams:
    """What one request asks for. The order of the stages is that of `sampling.scores` and `sampling.probabilities`.

    temperature 0 is greedy. `logprobs` = n asks for the target's log-probability of every emitted token and the n
    most likely ones, before ("raw") or after ("processed") bias, penalties, temperature and filters.
    `seed` None draws a fresh one. `speculative` False decodes plainly; `gamma` caps the draft depth of this request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    min_tokens: int = 0
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    processors: tuple[Processor, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    logprobs_stage: Literal["raw", "processed"] = "raw"
    speculative: bool = True
    gamma: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name} must lie between {low} and {high}, not {value}.")
        if 0 < self.temperature < 1e-6:
            raise InputError(f"temperature must be 0 (greedy) or at least 1e-6, not {self.temperature}.")
        if any(not value < float("inf") for _, value in self.logit_bias):
            raise InputError("logit_bias takes numbers below infinity (and -inf, which forbids a token).")
        if any(not text for text in self.stop_strings):
            raise InputError("a stop string must not be empty.")


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 1e4),
    ("top_k", 0, 2**31),
    ("top_p", 1e-9, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 1e-9, 1.0),
    ("repetition_penalty", 1e-6, 1e6),
    ("presence_penalty", -1e3, 1e3),
    ("frequency_penalty", -1e3, 1e3),
    ("no_repeat_ngram", 0, 2**31),
    ("min_tokens", 0, 2**31),
    ("max_tokens", 0, 2**31),
    ("seed", 0, 2**63 - 1),
    ("logprobs", 0, 1000),
    ("gamma", 0, 1024),
)
