"""Verdicts and chains on a CPU against the forms for all devices and the reference rules, under the same uniforms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftproof import fast, kernels, on_cpu, rng, verify
from draftproof.contracts import Ask
from draftproof.drafters.chains import GrowingChain
from draftproof.drafters.children import Growing, Shape
from draftproof.fast_sampling import FastSampler
from draftproof.on_cpu import Judgement
from draftproof.rng import PhiloxSource
from draftproof.sampling import Sampler
from draftproof.types import Proposal, SamplingParams, chain

pytestmark = pytest.mark.skipif(not kernels.usable(torch.zeros(1)), reason="the kernels are not compiled here")
RULES = {
    "token": verify.TokenRule(),
    "block": verify.BlockRule(),
    "tree": verify.TreeRule(),
    "coupled": verify.CoupledRule(),
}
PARAMS = {
    "plain": SamplingParams(temperature=1),
    "filtered": SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01),
    "greedy": SamplingParams(),
}
TREE = (-1, -1, 0, 0, 1)
NAN, NEVER = float("nan"), float("-inf")


def case(
    seed: int, parents: tuple[int, ...], drawn: bool, size: int, params: SamplingParams
) -> tuple[Proposal, Tensor]:
    """A proposal near the target's scores; its rows are filtered as the request says."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(parents) + 1, size, generator=generator)
    near = scores[[parent + 1 for parent in parents]] + torch.randn(len(parents), size, generator=generator)
    q = Sampler(params, 0).probabilities(near) if parents else near
    if not drawn or not parents:
        return Proposal(q.argmax(-1) if parents else torch.empty(0, dtype=torch.int64), parents), scores
    tokens = torch.multinomial(q, 1, generator=generator)[:, 0]
    return Proposal(tokens, parents, q), scores


def judged(sampler: Sampler, rule: str, proposal: Proposal, scores: Tensor, seed: int) -> Judgement:
    pending = fast.judge(RULES[rule], proposal, scores, sampler, PhiloxSource(seed), 11)
    ((judgement, tokens),) = fast.fetch([pending], [proposal])
    assert tokens == proposal.tokens.tolist()
    return judgement


def both(rule: str, proposal: Proposal, scores: Tensor, params: SamplingParams, seed: int) -> Judgement:
    """The judgement on a CPU, once it has been found equal to that of the form for all devices."""
    quick = on_cpu.judge(RULES[rule], proposal, scores, FastSampler(params, 0), PhiloxSource(seed), 11)
    assert quick is not None
    slow = judged(Sampler(params, 0), rule, proposal, scores, seed)
    assert quick.verdict == slow.verdict and quick.overlap_positions == slow.overlap_positions
    assert quick.expected_accepted == pytest.approx(slow.expected_accepted, abs=1e-5)
    assert quick.overlap == pytest.approx(slow.overlap, abs=1e-5)
    return quick


@pytest.mark.parametrize("parents", [(), (-1,), (-1, 0, 1), tuple(range(-1, 7)), TREE])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("drawn", [True, False])
def test_the_verdict_is_the_one_for_all_devices(rule: str, params: str, drawn: bool, parents: tuple[int, ...]) -> None:
    """Rounding moves a stop or a token once in about a million draws; these seeds are met once and for all."""
    if parents == TREE and rule != "coupled" and params != "greedy":
        return
    for seed in range(40):
        size = (1, 2, 5, 16, 17, 60, 257)[seed % 7]
        proposal, scores = case(seed, parents, drawn and params != "greedy", size, PARAMS[params])
        both(rule, proposal, scores, PARAMS[params], seed)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_verdict_is_the_references(rule: str) -> None:
    for seed in range(200):
        proposal, scores = case(seed, (-1, 0, 1, 2), True, 60, PARAMS["plain"])
        outcomes = RULES[rule].outcomes(proposal, torch.softmax(scores.double(), -1))  # type: ignore[union-attr]
        stop = int(rng.draw(outcomes.stops, rng.uniform(seed, 11, "stop")))
        token = int(rng.draw(outcomes.after(stop), rng.uniform(seed, 11, "next")))
        quick = both(rule, proposal, scores, PARAMS["plain"], seed)
        assert quick.verdict == verify.Verdict(tuple(range(stop)), token)
        assert quick.expected_accepted == pytest.approx(
            float(verify.expected_accepted(proposal, outcomes.stops)), abs=1e-5
        )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", ["plain", "filtered", "greedy"])
@pytest.mark.parametrize("bad", [[NAN] * 20, [NEVER] * 20])
@pytest.mark.parametrize("at", range(4))
def test_the_path_ends_where_no_token_can_follow(rule: str, params: str, bad: list[float], at: int) -> None:
    ended = set()
    for seed in range(20):
        proposal, scores = case(seed, (-1, 0, 1), params != "greedy", 20, PARAMS[params])
        scores[at] = torch.tensor(bad)
        quick = on_cpu.judge(RULES[rule], proposal, scores, FastSampler(PARAMS[params], 0), PhiloxSource(seed), 11)
        slow = judged(Sampler(PARAMS[params], 0), rule, proposal, scores, seed)
        assert quick is not None and quick.verdict == slow.verdict
        ended.add((len(quick.verdict.path), quick.verdict.next_token))
    assert all(length < at or token == -1 for length, token in ended) and all(length <= at for length, _ in ended)


def test_children_that_cover_the_support_leave_a_row_that_can_be_drawn_from() -> None:
    scores = torch.full((2, 20), NEVER)
    scores[:, 3] = 0
    proposal = chain([3], torch.nn.functional.one_hot(torch.tensor([3]), 20).float())
    for rule in ("token", "block"):
        assert both(rule, proposal, scores, PARAMS["plain"], 1).verdict == verify.Verdict((0,), 3)
    rejected = chain([4], torch.nn.functional.one_hot(torch.tensor([4]), 20).float())
    assert both("block", rejected, scores, PARAMS["plain"], 1).verdict == verify.Verdict((), 3)


def test_what_has_no_form_on_a_cpu_is_left_to_the_others() -> None:
    proposal, scores = case(1, (-1, 0), True, 20, PARAMS["plain"])
    fast_sampler, source = FastSampler(PARAMS["plain"], 0), PhiloxSource(1)

    class Own(FastSampler):
        pass

    class OwnSource(PhiloxSource):
        pass

    class OwnRule(verify.TokenRule):
        pass

    for rule, rows, sampler, noise in (
        (OwnRule(), scores, fast_sampler, source),
        (RULES["token"], scores.double(), fast_sampler, source),
        (RULES["token"], scores, Own(PARAMS["plain"], 0), source),
        (RULES["token"], scores, Sampler(PARAMS["plain"], 0), source),
        (RULES["token"], scores, FastSampler(SamplingParams(temperature=1, top_k=3), 0), source),
        (RULES["token"], scores, fast_sampler, OwnSource(1)),
    ):
        assert on_cpu.judge(rule, proposal, rows, sampler, noise, 11) is None
    siblings, rows = case(1, TREE, True, 20, PARAMS["plain"])
    assert on_cpu.judge(RULES["tree"], siblings, rows, fast_sampler, source, 11) is None


@pytest.mark.parametrize("scheme", ["drawn", "chosen", "mixed"])
@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("params", PARAMS)
def test_a_chain_on_a_cpu_is_the_chain_of_all_devices(scheme: str, coupled: bool, params: str) -> None:
    for seed in range(20):
        size = (1, 5, 16, 60, 257)[seed % 5]
        shape = Shape.of(4, "", scheme)
        greedy = PARAMS[params].temperature == 0
        slow_ask, quick_ask = (
            Ask(None, [1, 2, 3], 3, kind(PARAMS[params], 3), PhiloxSource(seed), coupled)  # type: ignore[arg-type]
            for kind in (Sampler, FastSampler)
        )
        slow = Growing(slow_ask, shape, torch.device("cpu"))
        quick = GrowingChain(quick_ask, 3, greedy or (scheme == "chosen" and not coupled))
        generator = torch.Generator().manual_seed(seed)
        while not slow.done:
            logits = 3 * torch.randn(1, size, generator=generator)
            slow.grow(logits)
            quick.grow(logits)
            assert quick.done == slow.done and torch.equal(quick.proposal.tokens, slow.proposal.tokens)
        made, expected = quick.proposal, slow.proposal
        assert (made.parents, made.coupled) == (expected.parents, expected.coupled) == ((-1, 0, 1), coupled)
        assert (made.probs is None) == (expected.probs is None)
        if made.probs is not None and expected.probs is not None:
            torch.testing.assert_close(made.probs, expected.probs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("by_score, coupled", [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("bad", [NAN, NEVER])
def test_a_chain_ends_where_no_token_may_follow(by_score: bool, coupled: bool, bad: float) -> None:
    params = PARAMS["greedy" if by_score else "plain"]
    ask = Ask(None, [1], 3, FastSampler(params, 1), PhiloxSource(1), coupled)  # type: ignore[arg-type]
    growing = GrowingChain(ask, 3, by_score)
    growing.grow(torch.randn(1, 20, generator=torch.Generator().manual_seed(0)))
    growing.grow(torch.full((1, 20), bad))
    assert growing.done and len(growing.proposal) == 1
    assert by_score or (growing.proposal.probs is not None and growing.proposal.probs.shape == (1, 20))


def test_a_drawn_token_is_one_of_the_row_that_is_reported() -> None:
    for seed in range(50):
        ask = Ask(None, [1], 4, FastSampler(PARAMS["filtered"], 1), PhiloxSource(seed))  # type: ignore[arg-type]
        growing = GrowingChain(ask, 4, False)
        while not growing.done:
            growing.grow(3 * torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)))
        proposal = growing.proposal
        assert proposal.probs is not None and proposal.parents == (-1, 0, 1, 2)
        assert all(proposal.probs[i, token] > 0 for i, token in enumerate(proposal.tokens.tolist()))
