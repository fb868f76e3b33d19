"""Every drafter with every rule through the same promises, on toy models whose rows are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys import engine, pairs, run

from draftproof.models.toy import ToyCache, ToyModel
from draftproof.stats import Stats
from draftproof.types import SamplingParams

PAIRS = pairs()
GREEDY = SamplingParams(max_tokens=60)
CONTROLS = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.3},
    "bias": {"logit_bias": ((2, 3.0), (5, -100.0))},
    "min-tokens": {"min_tokens": 20, "stop_tokens": (3, 4)},
    "no-repeat": {"no_repeat_ngram": 3},
    "processor": {"processors": (lambda ids, scores: scores.roll(int(ids[0, -1]) % 3, -1),)},
}
EVERYTHING = {key: value for group in CONTROLS.values() for key, value in group.items()}


@pytest.mark.parametrize("drafter, rule", PAIRS)
@pytest.mark.parametrize("gamma", [1, 4, 16])
def test_greedy_is_plain_greedy(drafter: str, rule: str, gamma: int) -> None:
    assert run(engine(drafter, rule, gamma), GREEDY)[0] == run(engine("null", "token"), GREEDY)[0]


@pytest.mark.slow
@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_greedy_is_plain_greedy_for_every_gamma_and_long_texts(drafter: str, rule: str) -> None:
    params = replace(GREEDY, max_tokens=256)
    plain, _ = run(engine("null", "token"), params)
    for gamma in range(1, 17):
        assert run(engine(drafter, rule, gamma), params)[0] == plain


SEEDS = [pytest.param(range(6), id="few"), pytest.param(range(6, 106), id="hundred", marks=pytest.mark.slow)]


@pytest.mark.parametrize("drafter", sorted({drafter for drafter, _ in PAIRS}))
@pytest.mark.parametrize("seeds", SEEDS)
def test_coupled_text_is_plain_text_of_the_same_seed(drafter: str, seeds: range) -> None:
    for seed in seeds:
        params = SamplingParams(temperature=1, top_p=0.95, max_tokens=24, seed=seed)
        assert run(engine(drafter, "coupled"), params)[0] == run(engine("null", "coupled"), params)[0]


@pytest.mark.parametrize("drafter, rule", PAIRS)
@pytest.mark.parametrize("control", [*CONTROLS, "everything"])
def test_controls_keep_greedy_text(drafter: str, rule: str, control: str) -> None:
    params = replace(GREEDY, max_tokens=40, **(EVERYTHING if control == "everything" else CONTROLS[control]))
    assert run(engine(drafter, rule), params)[0] == run(engine("null", "token"), params)[0]


@pytest.mark.parametrize("drafter, rule", PAIRS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_counts_add_up_and_nothing_is_fed_twice(drafter: str, rule: str, temperature: float) -> None:
    target = ToyModel(7)
    made = engine(drafter, rule, target=target)
    tokens, steps = run(made, replace(GREEDY, temperature=temperature, seed=3))
    stats = Stats.of(steps)
    cut = sum(step.num_accepted_tokens + 1 - len(step.tokens) for step in steps)
    assert len(tokens) == stats.tokens == stats.accepted_tokens + stats.target_calls - cut
    assert target.fed == 3 + stats.draft_tokens + stats.steps
    assert sum(stats.histogram.values()) == stats.steps and stats.prefills == 1
    assert all(len(step.origins) == len(step.tokens) for step in steps)
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["length"]


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_the_cache_is_the_context_behind_every_step(drafter: str, rule: str) -> None:
    made = engine(drafter, rule)
    request = made.submit([0, 1, 0], SamplingParams(temperature=1, max_tokens=40, seed=1))
    while request.running is not None:
        session = request.running.session
        before = list(request.context)
        (step,) = made.step([request])
        assert isinstance(session.cache, ToyCache)
        assert session.cache.tokens == [*before, *step.draft_tokens] and not session.cache.shallow
        session.go_back(request.context)
        assert session.cache.tokens == request.context[: len(session.cache.tokens)]
        assert len(session.cache.tokens) >= len(before) + min(step.num_accepted_tokens, len(step.tokens) - 1)


@pytest.mark.parametrize("drafter, rule", PAIRS)
@pytest.mark.parametrize("limit", range(8))
def test_max_tokens_is_exact_for_every_length_of_a_block(drafter: str, rule: str, limit: int) -> None:
    plain, _ = run(engine("null", "token"), replace(GREEDY, max_tokens=20))
    tokens, steps = run(engine(drafter, rule), replace(GREEDY, max_tokens=limit))
    assert tokens == plain[:limit]
    assert sum(step.num_draft_tokens for step in steps) == 0 or limit > 2
    assert limit == 0 or steps[-1].finish_reason == "length"


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_an_end_token_stops_at_every_index_of_a_block(drafter: str, rule: str) -> None:
    plain, _ = run(engine("null", "token"), replace(GREEDY, max_tokens=30))
    for end in sorted(set(plain)):
        tokens, steps = run(engine(drafter, rule), replace(GREEDY, max_tokens=30, stop_tokens=(end,)))
        assert tokens == plain[: plain.index(end) + 1] and steps[-1].finish_reason == "stop"


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_the_earliest_event_wins(drafter: str, rule: str) -> None:
    plain, _ = run(engine("null", "token"), replace(GREEDY, max_tokens=5))
    at = plain.index(plain[2])
    params = replace(GREEDY, max_tokens=5, stop_tokens=(plain[2],))
    tokens, steps = run(engine(drafter, rule), params)
    assert (len(tokens), steps[-1].finish_reason) == (at + 1, "stop")
    last = replace(GREEDY, max_tokens=at + 1, stop_tokens=(plain[2],))
    assert run(engine(drafter, rule), last)[1][-1].finish_reason == "stop"


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_the_context_limit_is_usable_to_its_last_position(drafter: str, rule: str) -> None:
    plain, _ = run(engine("null", "token"), replace(GREEDY, max_tokens=17))
    tokens, steps = run(engine(drafter, rule, target=ToyModel(7, max_context=20)), replace(GREEDY, max_tokens=99))
    assert tokens == plain and steps[-1].finish_reason == "length"


@pytest.mark.parametrize("drafter, rule", PAIRS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_are_the_targets(drafter: str, rule: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=5, max_tokens=24, logprobs=3, seed=4)
    target = ToyModel(7)
    tokens, steps = run(engine(drafter, rule, target=target), params)
    entries = [entry for step in steps for entry in step.logprobs]
    assert [entry.token for entry in entries] == tokens
    for i, entry in enumerate(entries):
        row = target.row([0, 1, 0, *tokens[:i]]).log_softmax(-1)
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-5)
        assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_processed_log_probabilities_see_the_filters(rule: str) -> None:
    params = SamplingParams(temperature=0.8, top_k=2, max_tokens=12, logprobs=2, logprobs_stage="processed", seed=4)
    _, steps = run(engine("model", rule), params)
    for entry in (entry for step in steps for entry in step.logprobs):
        assert sum(2.718281828**value for _, value in entry.top) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_a_batch_of_unlike_requests_equals_solo_runs(drafter: str, rule: str) -> None:
    prompts = [[0, 1, 0], [5], [2, 3, 2, 3, 2], [7, 7], [9, 8, 7, 6], [1, 1, 1, 1], [4, 2], [0, 1, 0, 1]]
    params = [
        SamplingParams(
            temperature=(0.0, 1.0, 0.7)[i % 3],
            max_tokens=(40, 0, 3, 25)[i % 4],
            seed=i,
            top_k=(0, 4)[i % 2],
            gamma=(None, 2)[i % 2],
            stop_tokens=(i,) if i > 5 else (),
            speculative=i != 6,
            repetition_penalty=(1.0, 1.3)[i % 2],
        )
        for i in range(8)
    ]
    made = engine(drafter, rule)
    requests = [made.submit(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    while any(request.finish_reason is None for request in requests):
        made.step(requests)
    for request, prompt, one in zip(requests, prompts, params, strict=True):
        assert request.output == run(engine(drafter, rule), one, tuple(prompt))[0]
        assert request.running is None


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_speculative_off_drafts_nothing(drafter: str, rule: str) -> None:
    tokens, steps = run(engine(drafter, rule), replace(GREEDY, speculative=False))
    assert sum(step.num_draft_tokens for step in steps) == 0
    assert tokens == run(engine("null", "token"), GREEDY)[0]


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_a_closed_generator_frees_the_request(drafter: str, rule: str) -> None:
    made = engine(drafter, rule)
    for stop_after in range(4):
        steps = made.generate([0, 1, 0], GREEDY)
        for _ in range(stop_after):
            next(steps)
        steps.close()
    assert run(made, GREEDY)[0] == run(engine("null", "token"), GREEDY)[0]


@pytest.mark.parametrize("drafter, rule", PAIRS)
def test_seeds_repeat_and_differ(drafter: str, rule: str) -> None:
    texts = [run(engine(drafter, rule), SamplingParams(temperature=1, max_tokens=20, seed=s))[0] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_expected_acceptance_has_no_sampling_noise_but_the_same_mean() -> None:
    """Mean of A against its expectation over 60 texts: within five standard errors (false alarm below 1e-6)."""
    differences = []
    for seed in range(60):
        _, steps = run(engine("model", "block"), SamplingParams(temperature=1, max_tokens=40, seed=seed))
        differences += [step.num_accepted_tokens - step.expected_accepted for step in steps if step.num_draft_tokens]
    mean = sum(differences) / len(differences)
    spread = (sum((d - mean) ** 2 for d in differences) / len(differences) / len(differences)) ** 0.5
    assert abs(mean) < 5 * spread
