"""Stages of the distribution against transformers' own processors, the fast twin, and each node's own prefix."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from draftproof import tree
from draftproof.fast_sampling import FastSampler, nucleus_by_cut
from draftproof.sampling import Sampler, nucleus_by_sort
from draftproof.types import InputError, Proposal, SamplingParams, chain

V = 50
PROMPT = [3, 4, 5, 3, 4]
CONTEXT = [*PROMPT, 7, 8, 7]


def logits(rows: int = 1, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def ours(params: SamplingParams, rows: Tensor, context: list[int] = CONTEXT) -> Tensor:
    sampler = Sampler(params, len(PROMPT))
    return sampler.probabilities(sampler.scores(rows, context, chain([]), [tree.ROOT] * len(rows)))


CASES = {
    "temperature": (SamplingParams(temperature=0.6), [hf.TemperatureLogitsWarper(0.6)]),
    "top-k": (SamplingParams(temperature=1, top_k=7), [hf.TopKLogitsWarper(7)]),
    "top-p": (SamplingParams(temperature=1, top_p=0.8), [hf.TopPLogitsWarper(0.8)]),
    "min-p": (SamplingParams(temperature=1, min_p=0.1), [hf.MinPLogitsWarper(0.1)]),
    "typical-p": (SamplingParams(temperature=1, typical_p=0.7), [hf.TypicalLogitsWarper(0.7)]),
    "repetition": (SamplingParams(temperature=1, repetition_penalty=1.7), [hf.RepetitionPenaltyLogitsProcessor(1.7)]),
    "no-repeat": (SamplingParams(temperature=1, no_repeat_ngram=2), [hf.NoRepeatNGramLogitsProcessor(2)]),
    "all": (
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.3, no_repeat_ngram=3),
        [
            hf.RepetitionPenaltyLogitsProcessor(1.3),
            hf.NoRepeatNGramLogitsProcessor(3),
            hf.TemperatureLogitsWarper(0.7),
            hf.TopKLogitsWarper(20),
            hf.TopPLogitsWarper(0.9),
            hf.MinPLogitsWarper(0.01),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_stages_agree_with_transformers(name: str) -> None:
    params, processors = CASES[name]
    for seed in range(20):
        rows = logits(1, seed)
        theirs = rows.clone()
        for processor in processors:
            theirs = processor(torch.tensor([CONTEXT]), theirs)
        torch.testing.assert_close(ours(params, rows), torch.softmax(theirs, -1), rtol=1e-5, atol=1e-7)


def test_presence_and_frequency_count_the_output_alone() -> None:
    rows = torch.zeros(1, V)
    scores = Sampler(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), len(PROMPT)).scores(
        rows, CONTEXT, chain([]), [tree.ROOT]
    )[0]
    assert scores[7] == pytest.approx(-0.5 - 2 * 0.25) and scores[8] == pytest.approx(-0.75)
    assert scores[3] == 0 and scores[9] == 0


def test_bias_forbids_and_min_tokens_holds_back_every_end() -> None:
    params = SamplingParams(temperature=1, logit_bias=((5, -1e9), (6, 2.0)), min_tokens=4, stop_tokens=(9,))
    sampler = Sampler(params, len(PROMPT), (10,))
    row = sampler.probabilities(sampler.scores(torch.zeros(1, V), CONTEXT, chain([]), [tree.ROOT]))[0]
    assert row[5] == 0 and row[9] == 0 and row[10] == 0 and row[6] > row[7] > 0
    assert Sampler(params, len(PROMPT) - 1, (10,)).scores(torch.zeros(1, V), CONTEXT, chain([]), [-1])[0, 9] == 0


def test_greedy_is_a_one_hot_row_at_the_first_maximum() -> None:
    rows = torch.zeros(1, V)
    rows[0, [4, 9]] = 2
    assert ours(SamplingParams(), rows)[0].nonzero().tolist() == [[4]]


PARENTS = (-1, 0, 0, -1, 3)
DRAFTED = (7, 8, 20, 8, 8)
PREFIXED = {
    "repetition": SamplingParams(temperature=1, repetition_penalty=1.5),
    "presence": SamplingParams(temperature=1, presence_penalty=1.1),
    "frequency": SamplingParams(temperature=1, frequency_penalty=0.7),
    "no-repeat": SamplingParams(temperature=1, no_repeat_ngram=2),
    "min-tokens": SamplingParams(temperature=1, min_tokens=5, stop_tokens=(1,)),
    "processor": SamplingParams(temperature=1, processors=(lambda ids, scores: scores + ids.sum() * (scores > 0),)),
}


@pytest.mark.parametrize("name", PREFIXED)
def test_each_node_sees_its_own_prefix(name: str) -> None:
    """A node's row equals the row of a context that has its path committed."""
    params, proposal = PREFIXED[name], Proposal(torch.tensor(DRAFTED), PARENTS)
    rows = logits(6, 1)
    together = Sampler(params, len(PROMPT)).scores(rows, CONTEXT, proposal, range(-1, 5))
    for node in range(-1, 5):
        path = [DRAFTED[i] for i in tree.path(PARENTS, node)]
        alone = Sampler(params, len(PROMPT)).scores(rows[node + 1 :][:1], CONTEXT + path, chain([]), [tree.ROOT])
        torch.testing.assert_close(together[node + 1], alone[0])
    plain = Sampler(params, len(PROMPT)).scores(rows, CONTEXT, chain([]), [tree.ROOT] * 6)
    assert not torch.equal(plain, together)  # the case has teeth


def test_counts_follow_a_context_that_grows() -> None:
    params = SamplingParams(repetition_penalty=1.4, frequency_penalty=0.3)
    grown, context = Sampler(params, 2), [1, 2]
    for token in (3, 3, 4, 1):
        got = grown.scores(logits(), context, chain([]), [tree.ROOT])
        torch.testing.assert_close(got, Sampler(params, 2).scores(logits(), context, chain([]), [tree.ROOT]))
        context.append(token)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.999), st.floats(0.05, 4))
def test_the_fast_nucleus_keeps_what_the_sort_keeps(seed: int, top_p: float, temperature: float) -> None:
    rows = 4 * torch.randn(3, 3000, generator=torch.Generator().manual_seed(seed))
    rows[0] = rows[0].round()  # many ties
    probs = torch.softmax(rows / temperature, -1)
    assert torch.equal(nucleus_by_cut(probs, top_p), nucleus_by_sort(probs, top_p))


@pytest.mark.parametrize("name", CASES)
def test_the_fast_sampler_is_the_sampler(name: str) -> None:
    for seed in range(20):
        rows = logits(3, seed)
        one, other = (kind(CASES[name][0], 0).probabilities(rows) for kind in (Sampler, FastSampler))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.999), st.integers(1, 40), st.floats(0, 0.5), st.floats(0.1, 0.999))
def test_filters_keep_the_likeliest_and_a_distribution(seed: int, p: float, k: int, m: float, typical: float) -> None:
    row = logits(1, seed)
    for params in (
        SamplingParams(temperature=1, top_p=p, top_k=k, min_p=m),
        SamplingParams(temperature=1, typical_p=typical),
    ):
        out, full = ours(params, row)[0], torch.softmax(row, -1)[0]
        assert float(out.sum()) == pytest.approx(1, abs=1e-5)
        kept = out > 0
        torch.testing.assert_close(out[kept], full[kept] / full[kept].sum(), rtol=1e-4, atol=1e-7)
        if params.typical_p == 1:
            assert not (~kept).any() or full[kept].min() >= full[~kept].max()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": 1e-9},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"max_tokens": -1},
        {"seed": -1},
        {"stop_strings": ("",)},
        {"repetition_penalty": 0.0},
        {"temperature": float("nan")},
    ],
)
def test_parameters_out_of_range_are_one_sentence(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(bad)).split("_")[0]):
        replace(SamplingParams(), **bad)
