"""What the parts promise each other: target model, drafter, rule, randomness, sampling parameters, text.

N draft nodes, V vocabulary of the target, T tokens fed, L layers asked for, H hidden width, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from draftproof.types import Cache, Output, Proposal, Segment


class Model(Protocol):
    """Weights, shared and read-only. Every state of a request lies in its `Cache`."""

    name: str
    vocab_size: int
    max_context: int | None
    device: torch.device
    dtype: str
    """Precision it computes in, such as "bfloat16"."""
    can: frozenset[str]
    """Of {"rollback", "tree", "hidden", "early_exit", "invariant"}."""
    num_layers: int

    def new_cache(self) -> Cache:
        """An empty cache."""

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        """One call for all requests: append every segment's tokens to its cache, return logits and states.

        With `exit_layer` = L only the first L layers run, then the norm and the head; the tokens become shallow
        entries behind `cache.length`, and a later full call takes them up by `Segment.resume`.
        """

    def reusable(self, cache: Cache, length: int) -> int:
        """The longest length <= `length` to which `rollback` can go (a sliding window may have lost entries)."""

    def rollback(self, cache: Cache, length: int, keep: Sequence[int] = ()) -> None:
        """Afterwards: entries [0, length), then the entries `keep` (absolute, ascending); no shallow ones."""


Product = Callable[[Tensor], Tensor]
"""[n, depth] -> [n, outputs] float32, a weight applied to rows."""


class Shared(Protocol):
    """What a trained head takes from its target instead of having it itself. Rows come and go in float32."""

    width: int
    """H, the width of the target's states."""

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the input embedding, as stored."""

    def head_rows(self, tokens: Tensor) -> Tensor:
        """[n, H]: rows of the output head, as stored."""

    def head(self) -> Product:
        """The output head: states behind the final norm to logits [n, V]."""

    def final_norm(self, states: Tensor) -> Tensor:
        """[n, H] states behind the last layer to what the output head reads."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """The backend's own product with a weight [outputs, depth]; it may round the weight to its own format."""


@runtime_checkable
class SharesWeights(Protocol):
    """A model whose weights a trained head may share."""

    def shared(self) -> Shared:
        """InputError where this model does not have them in the usual places."""


@dataclass(frozen=True, eq=False)
class HeadParts:
    """A trained head of EAGLE-3's form, for a backend that computes its step as a whole.

    H its width, F = L times the target's width. tensors by the names of `drafters.eagle_head.EagleHead`: fc [H, F],
    qkv [heads * d + 2 kv_heads * d, 2 H] over [norm(embedding), norm(state)], out, gate_up, down, lm_head [K, H],
    norms; `embedding.weight` where it has its own, biases of qkv and out.
    normed_residual: the residual starts from the normed state.
    """

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    frequencies: Tensor
    rope_scale: float
    normed_residual: bool
    tensors: Mapping[str, Tensor]


class HeadForward(Protocol):
    """A trained head as a backend computes it, with caches of its own."""

    def new_cache(self) -> Any:
        """An empty cache."""

    def forward(self, segments: Sequence[Segment], states: Sequence[Tensor], own: bool) -> list[tuple[Tensor, Tensor]]:
        """One call: append every segment's tokens to its cache; (logits [rows, K], the head's own states [rows, H]).

        states: of every segment's tokens, the target's [n, L, target_hidden], or with `own` the head's [n, H].
        """

    def rollback(self, cache: Any, length: int) -> None:
        """Keep entries [0, length)."""


@runtime_checkable
class RunsHeads(Protocol):
    """A backend's `Shared` that computes a head's step in one call."""

    def whole_head(self, parts: HeadParts) -> HeadForward | None:
        """None where its kernels do not take these sizes."""


@dataclass(frozen=True, eq=False)
class Twin:
    """A model that approximates another and shares its caches, for drafts.

    Its calls name its last layer as their exit, so that what they write stays behind the other's entries.
    ids    [K] int64, ascending: the tokens its head knows; None: all
    bytes  of its weights, those it shares with the other left out
    ahead  guessed tokens that a call may carry at a small part of its cost, in trees; 0: none
    whole  (segments, for each (ids [E], rows [E, H] float32 of the other's head) or None) -> logits [R, V] of one call,
           -inf for tokens that neither has; None: the logits of `model` stand for `ids` alone
    """

    model: Model
    ids: Tensor | None
    bytes: int
    whole: Callable[[Sequence[Segment], Sequence[tuple[Tensor, Tensor] | None]], list[Tensor]] | None = None
    ahead: int = 0


@dataclass(frozen=True)
class Key:
    """Where a random number belongs: the context length when its step began, the use, and an index within it.

    A step commits at least one token, so the context length never repeats within a request: no number is used twice.
    """

    position: int
    use: Literal["draft", "stop", "next"]
    index: int = 0


class Source(Protocol):
    """All randomness of one request."""

    def draw(self, row: Tensor, key: Key) -> Tensor:
        """A token from the row [V]; int64 scalar on the row's device, never one of probability zero."""

    def ranked(self, row: Tensor, k: int, position: int) -> Tensor:
        """The min(k, V) best tokens of log(row) + Gumbel noise of that position, best first; the first has row > 0."""


class Policy(Protocol):
    """The request's sampling parameters as a function: logits of a node and its own prefix -> distribution."""

    greedy: bool

    def scores(self, logits: Tensor, context: Sequence[int], proposal: Proposal, nodes: Sequence[int]) -> Tensor:
        """[R, V] float: bias, penalties and masks applied; row r stands behind node nodes[r], -1 the context's end."""

    def probabilities(self, scores: Tensor) -> Tensor:
        """[R, V]: temperature and filters applied; greedy is one-hot."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What a drafter is asked for by one request: at most `depth` tokens on every path.

    policy and source are the request's own: a drafter uses them so that its rows pass the same stages as the
    target's. With `coupled` it offers the best tokens under the noise of each position. With `go_on` a drafter that can
    says how sure it is (`Proposal.confidence`): behind each token of a chain it asks with the draft's own chance of
    it, and at the first False the chain ends there, that token kept.
    """

    session: DraftSession
    context: Sequence[int]
    depth: int
    policy: Policy
    source: Source
    coupled: bool = False
    go_on: Callable[[float], bool] | None = None


class DraftSession(Protocol):
    """One request's state in a drafter."""

    def observe(self, context: Sequence[int], drafted: Sequence[int], hidden: Tensor | None) -> None:
        """Called after every step, also after an empty proposal.

        context: all committed tokens; drafted: the step's draft tokens as host integers (nothing needs to be
        fetched again); hidden [n, L, H]: the target's states of the tokens fed that are now committed, up to the last
        but one of the context. A drafter that wants states is also called for each chunk of a long prompt, with the
        context up to the token behind the chunk.
        """


class Drafter(Protocol):
    """Weights, shared and read-only, of anything that proposes."""

    name: str
    layers: tuple[int, ...]
    """Target layers whose states it wants."""
    draws: bool
    """True: its tokens are drawn and carry rows; False: they are chosen."""
    branches: bool
    """True: it may propose trees."""
    gamma: int
    """Draft tokens asked for a step: the longest path it proposes."""

    def start(self, target: Any) -> DraftSession:
        """State for a new request; `target` is the request's `session.Session`, which early exit shares."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """One proposal a request, batched. A drawn token is never withdrawn because of what it is."""


class Outcomes(Protocol):
    """A verification rule applied to one proposal: a distribution over what happens. No randomness inside."""

    @property
    def stops(self) -> Tensor:
        """[N + 1] float64, sums to 1: where the accepted path ends; 0 is the root, i + 1 node i."""

    def after(self, stop: int) -> Tensor:
        """[V]: distribution of the token emitted at that stop."""


class Rule(Protocol):
    """A pure function of (proposal, target rows [N + 1, V])."""

    name: str

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """Row 0 of target_probs follows the last committed token, row i + 1 node i."""


class TextEnd(Protocol):
    """What the engine knows of text: where it ends."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """The model's end tokens."""

    def watch(self, stop_strings: Sequence[str]) -> Callable[[int], bool]:
        """A function to be given every new token; True once the text holds a stop string."""
