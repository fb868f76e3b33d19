"""Drafters that are wrong, models that misbehave, prompts at the edge: the text stays plain decoding's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import engine, near, pairs, run

from draftproof.contracts import Ask, DraftSession
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.null import Stateless
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.stats import Stats
from draftproof.types import InputError, Output, Proposal, SamplingParams, Segment, chain
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

GREEDY = SamplingParams(max_tokens=60)
RULES = [TokenRule(), BlockRule(), TreeRule(), CoupledRule()]


class AlwaysWrong:
    """Proposes what the target does not say."""

    name, layers, draws, branches, gamma = "wrong", (), False, False, 4

    def __init__(self, target: ToyModel) -> None:
        self._target = target

    def start(self, target: Any) -> DraftSession:
        return Stateless()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [chain([int(self._target.row(ask.context).argmin())] * ask.depth) for ask in asks]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_wrong_drafts_change_nothing_and_yield_one_token_a_call(rule: Any) -> None:
    target = ToyModel(7)
    tokens, steps = run(Engine(target, AlwaysWrong(target), rule), GREEDY)
    stats = Stats.of(steps)
    assert tokens == run(engine("null", "token"), GREEDY)[0]
    assert stats.accepted_tokens == 0 and stats.target_calls == 60 and stats.draft_tokens > 100


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_equal_to_the_target_is_accepted_whole(rule: Any, temperature: float) -> None:
    drafter = ModelDrafter(ToyModel(7), 16, Shape.of(4, "", "drawn"))
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=1)
    stats = Stats.of(run(Engine(ToyModel(7), drafter, rule), params)[1])
    assert stats.accepted_tokens == stats.draft_tokens > 0
    assert stats.alpha == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [5, 16, 40])
def test_padded_vocabularies_never_propose_what_the_target_lacks(size: int) -> None:
    target = ToyModel(7)
    drafter = ModelDrafter(ToyModel(9, size), target.vocab_size, Shape.of(4, "", "drawn"))
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=60, seed=2)
        tokens, steps = run(Engine(target, drafter, CoupledRule()), params)
        assert all(token < 16 for step in steps for token in step.draft_tokens)
        assert tokens == run(engine("null", "coupled"), params)[0]


def test_forbidden_ids_are_never_proposed() -> None:
    allowed = [token not in (2, 3) for token in range(16)]
    drafter = ModelDrafter(near(ToyModel(7)), 16, Shape.of(4, "2x2", "drawn"), allowed)
    tokens, steps = run(Engine(ToyModel(7), drafter, TreeRule()), SamplingParams(max_tokens=80))
    assert not {2, 3} & {token for step in steps for token in step.draft_tokens}
    assert tokens == run(engine("null", "token"), SamplingParams(max_tokens=80))[0]


@pytest.mark.parametrize("limit", [1, 2, 8, 30])
@pytest.mark.filterwarnings("ignore:the text has outgrown")
def test_a_short_draft_context_changes_nothing(limit: int) -> None:
    drafter = ModelDrafter(ToyModel(9, max_context=limit), 16, Shape.of(4, "", "drawn"))
    tokens, _ = run(Engine(ToyModel(7), drafter, BlockRule()), GREEDY)
    assert tokens == run(engine("null", "token"), GREEDY)[0]


def test_a_draft_context_that_is_outgrown_warns_once() -> None:
    drafter = ModelDrafter(ToyModel(9, max_context=16), 16, Shape.of(4, "", "drawn"))
    with pytest.warns(UserWarning, match="outgrown the draft model's context of 16") as caught:
        run(Engine(ToyModel(7), drafter, BlockRule()), GREEDY)
    assert len(caught) == 1


class Broken(ToyModel):
    """Returns NaN."""

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        return [Output(output.logits * float("nan")) for output in super().forward(segments, layers, exit_layer)]


class BrokenLater(ToyModel):
    """Returns NaN behind texts that hold more than `limit` tokens."""

    limit = 11

    def row(self, prefix: Sequence[int], exit_layer: int | None = None) -> Tensor:
        row = super().row(prefix, exit_layer)
        return row * float("nan") if len(prefix) > self.limit and exit_layer is None else row


@pytest.mark.parametrize("drafter, rule", pairs())
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"typical_p": 0.9}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_target_that_returns_nan_is_named_where_plain_decoding_names_it(
    drafter: str, rule: str, filters: dict[str, Any], temperature: float
) -> None:
    """The tokens before it stand: as many as plain decoding gives, and under the coupled rule the same ones."""
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=2, **filters)
    texts = []
    for made in (engine(drafter, rule, target=BrokenLater(7)), engine("null", rule, target=BrokenLater(7))):
        steps = made.generate([0, 1, 0], params)
        texts.append([])
        with pytest.raises(InputError, match="NaN"):
            for step in steps:
                texts[-1] += step.tokens
    assert len(texts[0]) == len(texts[1]) == BrokenLater.limit + 1 - 3
    if temperature == 0 or rule == "coupled":
        assert texts[0] == texts[1]


@pytest.mark.parametrize("scheme", ["drawn", "chosen", "mixed"])
@pytest.mark.parametrize("rule", [TokenRule(), TreeRule(), CoupledRule()], ids=lambda rule: rule.name)
def test_a_drafter_that_returns_nan_changes_nothing(rule: Any, scheme: str) -> None:
    drafter = ModelDrafter(Broken(9), 16, Shape.of(4, "2x1x1", scheme))
    tokens, _ = run(Engine(ToyModel(7), drafter, rule), GREEDY)
    assert tokens == run(engine("null", "token"), GREEDY)[0]
    params = SamplingParams(temperature=1.0, max_tokens=60, seed=3)
    assert len(run(Engine(ToyModel(7), drafter, rule), params)[0]) == 60


def test_low_temperature_trees_have_fewer_likely_tokens_than_children() -> None:
    drafter = ModelDrafter(near(ToyModel(7)), 16, Shape.of(3, "4x4x2", "drawn"))
    params = SamplingParams(temperature=1, top_k=2, max_tokens=60, seed=5)
    tokens, _ = run(Engine(ToyModel(7), drafter, TreeRule()), params)
    target = ToyModel(7)
    for i, token in enumerate(tokens):
        assert token in target.row([0, 1, 0, *tokens[:i]]).topk(2).indices


def test_histories_of_requests_are_their_own() -> None:
    """R2.7: a continuation seen in one request is not proposed in another."""
    drafter, target = NgramDrafter(4, min=2), ToyModel(7)
    made = Engine(target, drafter, CoupledRule())
    run(made, GREEDY, (1, 2, 3, 4, 5, 1, 2))
    request = made.submit([1, 2], SamplingParams(max_tokens=3))
    made.step([request])
    assert made.step([request])[0].draft_tokens == ()


class Strict(ToyModel):
    """Refuses ids it does not have and more entries than its context takes, as real models do."""

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        for segment in segments:
            assert int(segment.tokens.max()) < self.vocab_size
        outputs = super().forward(segments, layers, exit_layer)
        assert self.max_context is None or all(segment.cache.length <= self.max_context for segment in segments)
        return outputs


@pytest.mark.parametrize("size", [1, 5, 12])
@pytest.mark.parametrize("shape, scheme", [("", "drawn"), ("8x2", "drawn"), ("8x2", "chosen"), ("4x4", "mixed")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_smaller_draft_vocabulary_is_never_fed_what_it_lacks(
    size: int, shape: str, scheme: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=1)
    for rule in (TreeRule(), CoupledRule()):
        drafter = ModelDrafter(Strict(9, max(size, 2)), 16, Shape.of(4, shape, scheme), [True] * size)
        tokens, steps = run(Engine(ToyModel(7), drafter, rule), params, (15, 14, 13))
        assert all(token < max(size, 2) for step in steps for token in step.draft_tokens)
        if temperature == 0 or rule.name == "coupled":
            assert tokens == run(engine("null", "coupled"), params, (15, 14, 13))[0]


@pytest.mark.parametrize("scheme", ["drawn", "chosen", "mixed"])
@pytest.mark.parametrize("rule", [TreeRule(), CoupledRule()], ids=lambda rule: rule.name)
def test_a_node_has_no_more_children_than_tokens_that_may_follow(scheme: str, rule: Any) -> None:
    drafter = ModelDrafter(near(ToyModel(7)), 16, Shape.of(4, "3x2", scheme), [token in (5, 6) for token in range(16)])
    for temperature in (0.0, 1.0):
        _, steps = run(
            Engine(ToyModel(7), drafter, rule), SamplingParams(temperature=temperature, max_tokens=40, seed=2)
        )
        assert {token for step in steps for token in step.draft_tokens} <= {5, 6}


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
@pytest.mark.filterwarnings("ignore:the text has outgrown")
def test_a_draft_context_shorter_than_the_draft(limit: int) -> None:
    drafter = ModelDrafter(Strict(9, 16, max_context=limit), 16, Shape.of(16, "", "drawn"))
    assert run(Engine(ToyModel(7), drafter, BlockRule()), GREEDY)[0] == run(engine("null", "token"), GREEDY)[0]


class Careless:
    """Breaks a drafter's contract in one way."""

    name, layers, draws, branches, gamma = "careless", (), False, False, 3

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal

    def start(self, target: Any) -> DraftSession:
        return Stateless()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._proposal for _ in asks]


@pytest.mark.parametrize(
    "proposal, message",
    [
        (chain([16]), "not one of the target's 16"),
        (chain([-1]), "not one of the target's 16"),
        (chain([1, 2, 3, 4]), "asked for 3 tokens a path and proposed 4"),
        (chain([1], torch.full((1, 5), 0.2)), "rows of 5 tokens"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named(proposal: Proposal, message: str) -> None:
    made = Engine(ToyModel(7), Careless(proposal), TokenRule())
    with pytest.raises(ValueError, match=f"careless.*{message}"):
        run(made, GREEDY)
