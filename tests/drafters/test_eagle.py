"""The eagle drafter on both backends that give states: plain decoding's text, its own cache, trees, long prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import heads
from models import native_models
from models.hf_models import VOCABULARY, build, tokens

from draftproof import session as sessions
from draftproof import tree
from draftproof.bench.compare import Item
from draftproof.bench.replay import Told, Writing, record, replay
from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.contracts import Ask
from draftproof.drafters.best_first import BestFirst
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle import EagleDrafter, EagleSession
from draftproof.engine import Engine
from draftproof.heads import load_eagle
from draftproof.models import native
from draftproof.models.hf import HfModel
from draftproof.request import Request
from draftproof.rng import PhiloxSource
from draftproof.sampling import Sampler
from draftproof.session import Session
from draftproof.types import InputError, SamplingParams

D = 40
BACKENDS = ["hf", *(["native"] if native.available() else [])]
SHAPES = ["gamma=5", "shape=3x2x1", "shape=3x2x1,children=mixed", "gamma=4,children=chosen", "nodes=12,gamma=4,width=3"]
PROMPTS = (tokens(40, 1), tokens(1, 2), tokens(7, 3) * 4)
GREEDY = SamplingParams(max_tokens=30)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets and a head of either layout for each."""
    folder = tmp_path_factory.mktemp("eagle")
    native_models.make("llama", folder / "native")
    for backend, vocab, hidden in (("hf", VOCABULARY, 32), ("native", 203, 64)):
        made, _ = heads.maps(vocab, D)
        three = {**heads.random_tensors(heads.eagle3(vocab, hidden, D)), **made}
        heads.write(folder / backend / "eagle3", three, heads.config(vocab, hidden, draft_vocab_size=D))
        one = heads.random_tensors(heads.eagle1(vocab, hidden))
        heads.write(folder / backend / "eagle1", one, heads.config(vocab, hidden))
    return folder


@cache
def _hf() -> HfModel:
    return HfModel.wrap(build("llama"), "llama")


@cache
def _native(folder: Path) -> Any:
    return native.load_native(folder, weights="f32", threads=1)


def target(backend: str, root: Path) -> Loaded:
    return Loaded(_hf() if backend == "hf" else _native(root / "native"), None)


def engine(backend: str, root: Path, options: str, rule: str = "auto", layout: str = "eagle3") -> Engine:
    loaded = target(backend, root)
    spec = f"eagle:{root / backend / layout},{options}" if options else "null"
    made = load_drafter(spec, loaded)
    return Engine(loaded.model, made, load_rule(rule, made))


def outputs(made: Engine, params: SamplingParams, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    """All prompts as one batch."""
    requests = [made.submit(prompt, params) for prompt in prompts]
    while any(request.finish_reason is None for request in requests):
        made.step(requests)
    return [request.output for request in requests]


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
    request = _advanced(made, PROMPTS[0], SamplingParams(temperature=1, max_tokens=30, seed=1), 3)
    (proposal,) = made.drafter.propose([_ask(request, 4)])
    assert proposal.probs is not None and proposal.probs.shape == (4, made.target.vocab_size)
    assert torch.allclose(proposal.probs.sum(1), torch.ones(4), atol=1e-5)
    ids = heads.maps(made.target.vocab_size, D)[1].tolist()
    assert set(proposal.tokens.tolist()) <= set(ids)
    outside = [i for i in range(made.target.vocab_size) if i not in ids]
    assert (proposal.probs[:, outside] == 0).all()


def _ask(request: Request, depth: int, coupled: bool = False) -> Ask:
    assert request.running is not None
    return Ask(request.running.draft, request.context, depth, request.sampler, request.source, coupled)


def _advanced(made: Engine, prompt: Sequence[int], params: SamplingParams, steps: int) -> Request:
    request = made.submit(prompt, params)
    for _ in range(steps):
        made.step([request])
    return request


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
        made.drafter.propose([_ask(request, 3)])
        state.cache.cut(len(request.context))
        assert state.cache.positions == list(range(len(request.context) - 1))
        fresh = _read_at_once(made, request.context)
        for found, expected in zip(state.cache.entries(), fresh.cache.entries(), strict=True):
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
        # The entries were read for the comparison, so the states of the last one are given again.
        state.observe(request.context, (), _states(made, request.context)[-1:])


def _states(made: Engine, context: Sequence[int]) -> torch.Tensor:
    (output,) = made.target.forward([Session(made.target).plan(context[:-1])], made.drafter.layers)
    assert output.hidden is not None
    return output.hidden


def _read_at_once(made: Engine, context: Sequence[int]) -> EagleSession:
    assert isinstance(made.drafter, EagleDrafter)
    fresh = EagleSession(made.drafter)
    fresh.observe(list(context), (), _states(made, context))
    made.drafter.call([fresh.plan(list(context))])
    fresh.cache.cut(len(context))
    return fresh


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
    (proposal,) = made.drafter.propose([_ask(request, 3)])
    assert state.cache.positions == list(range(len(request.context) - 1))
    whole = _read_at_once(made, request.context)
    whole.cache.cut(len(request.context))
    for found, expected in zip(state.cache.entries(), whole.cache.entries(), strict=True):
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
    made.drafter.propose([_ask(second, 4)])
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


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_tree_by_path_probability_holds_the_likeliest_paths(seed: int, greedy: bool, root: Path) -> None:
    """Against all paths of the tree's depth, each scored by rows of its own."""
    loaded = target("hf", root)
    made = load_eagle(str(root / "hf" / "eagle3"), loaded, BestFirst(nodes=9, gamma=3, width=40))
    params = SamplingParams(temperature=0.0 if greedy else 1.0, max_tokens=30, seed=seed)
    rule = Engine(loaded.model, made, load_rule("auto", made))
    request = _advanced(rule, tokens(12, seed), params, 1)
    (proposal,) = made.propose([replace(_ask(request, 3), policy=Sampler(params, 0), source=PhiloxSource(1))])
    assert proposal.probs is None and len(proposal) == 9 and max(tree.depths(proposal.parents)) <= 3
    drafted = proposal.tokens.tolist()
    scored = {
        tuple(drafted[i] for i in tree.path(proposal.parents, node)): _chance(rule, request, proposal, node)
        for node in range(9)
    }
    assert len(scored) == 9
    worst = min(scored.values())
    for path in [(), *scored]:
        if len(path) < 3:
            row = _row(rule, request, path)
            mass = scored.get(path, 1.0)
            better = {(*path, t) for t in range(len(row)) if mass * float(row[t]) > worst * 1.001}
            assert better <= set(scored)


def _row(made: Engine, request: Request, path: tuple[int, ...]) -> torch.Tensor:
    """What the head says behind a path, along a chain of its own."""
    state = _read_with_root(made, request.context)
    assert isinstance(made.drafter, EagleDrafter)
    row = state[1]
    for i in range(len(path)):
        proposal = sessions.chain(path[: i + 1])
        row = made.drafter.call([state[0].plan_more(proposal)])[0]
    return row[-1].softmax(-1)


def _read_with_root(made: Engine, context: Sequence[int]) -> tuple[EagleSession, torch.Tensor]:
    assert isinstance(made.drafter, EagleDrafter)
    fresh = EagleSession(made.drafter)
    fresh.observe(list(context), (), _states(made, context))
    return fresh, made.drafter.call([fresh.plan(list(context))])[0]


def _chance(made: Engine, request: Request, proposal: Any, node: int) -> float:
    drafted, chance = proposal.tokens.tolist(), 1.0
    path = tuple(drafted[i] for i in tree.path(proposal.parents, node))
    for i, token in enumerate(path):
        chance *= float(_row(made, request, path[:i])[token])
    return chance


def test_ranking_stays_sound_when_tokens_are_forbidden(root: Path) -> None:
    rng = random.Random(1)
    bias = tuple((token, -1e9) for token in rng.sample(range(VOCABULARY), 80))
    for params in (
        SamplingParams(max_tokens=30, logit_bias=bias),
        SamplingParams(temperature=1, max_tokens=30, logit_bias=bias, top_k=3, seed=1),
    ):
        made, plain = engine("hf", root, "nodes=20,gamma=3,width=6", "coupled"), engine("hf", root, "", "coupled")
        assert outputs(made, params) == outputs(plain, params)


def test_what_a_tree_cannot_be_is_refused(root: Path) -> None:
    for options in ("nodes=0", "nodes=4,width=0", "nodes=5000"):
        with pytest.raises(InputError, match="nodes"):
            engine("hf", root, options)
    with pytest.raises(InputError, match="hidden states"):
        load_drafter(f"eagle:{root / 'hf' / 'eagle3'}", _toy())
    with pytest.raises(ValueError, match="observe"):
        made = load_eagle(str(root / "hf" / "eagle3"), target("hf", root), Shape.of(3))
        EagleSession(made).plan([1, 2, 3])


def _toy() -> Loaded:
    from draftproof.models.toy import ToyModel

    return Loaded(ToyModel(1), None)


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
