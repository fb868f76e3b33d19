"""The eagle drafter on both backends that give states: plain decoding's text, its own cache, trees, long prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafters import heads
from drafters.eagle_engines import (
    BACKENDS,
    GREEDY,
    PROMPTS,
    SHAPES,
    D,
    advanced,
    asked_for,
    engine,
    outputs,
    read_at_once,
    row_behind,
    states_of,
)
from models.hf_models import tokens

from draftproof import session as sessions
from draftproof.bench.compare import Item
from draftproof.bench.replay import Told, Writing, record, replay
from draftproof.drafters.eagle import EagleSession
from draftproof.session import Session
from draftproof.types import SamplingParams


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["eagle1", "eagle3"])
@pytest.mark.parametrize("options", SHAPES)
def test_greedy_and_coupled_text_is_plain_decodings(backend: str, layout: str, options: str, root: Path) -> None:
    for params in (GREEDY, SamplingParams(temperature=1, top_k=30, max_tokens=20, seed=3)):
        rule = "coupled" if params.temperature else "auto"
        found = outputs(engine(backend, root, options, rule, layout), params)
        assert found == outputs(engine(backend, root, "", rule), params)


@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_text_for_every_gamma(backend: str, root: Path) -> None:
    params = replace(GREEDY, max_tokens=20)
    plain = outputs(engine(backend, root, ""), params, PROMPTS[:2])
    for gamma in range(1, 17):
        assert outputs(engine(backend, root, f"gamma={gamma}"), params, PROMPTS[:2]) == plain


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", SHAPES)
def test_long_texts_and_many_seeds(backend: str, options: str, root: Path) -> None:
    params = replace(GREEDY, max_tokens=256)
    assert outputs(engine(backend, root, options), params) == outputs(engine(backend, root, ""), params)
    for seed in range(100):
        params = SamplingParams(temperature=1, max_tokens=16, seed=seed)
        made = outputs(engine(backend, root, options, "coupled"), params, PROMPTS[:1])
        assert made == outputs(engine(backend, root, "", "coupled"), params, PROMPTS[:1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["token", "block", "tree"])
def test_a_batch_equals_solo_runs_under_every_rule(backend: str, rule: str, root: Path) -> None:
    options = "shape=2x2x1" if rule == "tree" else "gamma=4"
    params = SamplingParams(temperature=1, max_tokens=20, seed=5, repetition_penalty=1.2)
    made = engine(backend, root, options, rule)
    together = outputs(made, params)
    assert together == [outputs(made, params, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_drawn_row_is_over_the_targets_vocabulary_and_zero_where_the_head_has_no_token(
    backend: str, root: Path
) -> None:
    made = engine(backend, root, "gamma=4")
    request = advanced(made, PROMPTS[0], SamplingParams(temperature=1, max_tokens=30, seed=1), 3)
    (proposal,) = made.drafter.propose([asked_for(request, 4)])
    assert proposal.probs is not None and proposal.probs.shape == (4, made.target.vocab_size)
    assert torch.allclose(proposal.probs.sum(1), torch.ones(4), atol=1e-5)
    ids = heads.maps(made.target.vocab_size, D)[1].tolist()
    assert set(proposal.tokens.tolist()) <= set(ids)
    outside = [i for i in range(made.target.vocab_size) if i not in ids]
    assert (proposal.probs[:, outside] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("layout", ["eagle1", "eagle3"])
def test_the_heads_cache_is_that_of_the_committed_text_alone(
    backend: str, options: str, layout: str, root: Path
) -> None:
    made = engine(backend, root, options, layout=layout)
    request = made.submit(PROMPTS[0], SamplingParams(temperature=1, max_tokens=40, seed=2))
    for _ in range(9):
        made.step([request])
        assert request.running is not None and isinstance(request.running.draft, EagleSession)
        state = request.running.draft
        made.drafter.propose([asked_for(request, 3)])
        state.cache.cut(len(request.context))
        assert state.cache.positions == list(range(len(request.context) - 1))
        fresh = read_at_once(made, request.context)
        found, expected = (row_behind(made, one, request.context) for one in (state, fresh))
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
        # The entries were read for the comparison, so the states of the last one are given again.
        state.observe(request.context, (), states_of(made, request.context)[-1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_prompt_reaches_the_head_in_bounded_chunks(
    backend: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 16)
    monkeypatch.setattr("draftproof.drafters.eagle._PENDING", 8)
    made, prompt = engine(backend, root, "gamma=3"), tokens(100, 9)
    request = made.submit(prompt, GREEDY)
    assert request.running is not None and isinstance(request.running.draft, EagleSession)
    state, waiting = request.running.draft, []
    observe = state.observe
    state.observe = lambda *given: (observe(*given), waiting.append(sum(len(p.states) for p in state._pending)))[0]  # type: ignore[method-assign]
    made.step([request])
    assert len(waiting) == 7 and max(waiting) <= 8
    (proposal,) = made.drafter.propose([asked_for(request, 3)])
    assert state.cache.positions == list(range(len(request.context) - 1))
    whole = read_at_once(made, request.context)
    found, expected = (row_behind(made, one, request.context) for one in (state, whole))
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert len(proposal) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_that_goes_on_with_a_session_keeps_the_heads_entries(backend: str, root: Path) -> None:
    made = engine(backend, root, "gamma=4")
    session = Session(made.target)
    first = made.submit(PROMPTS[0], SamplingParams(max_tokens=13), session)
    while first.finish_reason is None:
        made.step([first])
    prompt = [*first.context, *tokens(5, 8)]
    second = made.submit(prompt, GREEDY, session)
    made.step([second])
    made.drafter.propose([asked_for(second, 4)])
    assert second.running is not None and isinstance(second.running.draft, EagleSession)
    held = second.running.draft.cache.positions
    # The target may have read the last accepted token of a block that was cut; its state was never handed over.
    assert held == sorted(set(held)) and len(held) >= len(second.context) - 2
    second = made.submit(prompt, GREEDY, session)
    while second.finish_reason is None:
        made.step([second])
    assert second.output == outputs(engine(backend, root, ""), GREEDY, [prompt])[0]
    other = made.submit([*prompt[:20], *tokens(9, 7)], GREEDY, session)
    while other.finish_reason is None:
        made.step([other])
    assert other.output == outputs(engine(backend, root, ""), GREEDY, [other.context[: other.prompt_length]])[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replay_of_a_head_has_the_steps_of_the_real_run(backend: str, root: Path) -> None:
    """Beside a run that takes nothing of it, a head sees the states that it sees in a run of its own."""
    made = engine(backend, root, "gamma=4", "coupled")
    for number, prompt in enumerate(PROMPTS):
        item = Item(str(number), "x", tuple(prompt))
        (one,) = record(made.target, [item], Writing(GREEDY), [(made.drafter, lambda rate: 4)])
        real = list(made.generate(prompt, replace(GREEDY, seed=0)))
        told = replay(one, Told(made.drafter.name, 4, one))
        assert [(s.num_draft_tokens, s.num_accepted_tokens) for s in told] == [
            (s.num_draft_tokens, s.num_accepted_tokens) for s in real
        ]
