"""The cache is a memo of the token sequence: whatever was fed before, the rows are those of a fresh cache."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof import session as sessions
from draftproof import tree
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyCache, ToyModel
from draftproof.session import Session, score, shared_length
from draftproof.types import Proposal, SamplingParams, chain
from draftproof.verify import CoupledRule


def random_tree(rng: random.Random, size: int) -> Proposal:
    parents = tuple(rng.randint(-1, i - 1) for i in range(size))
    return Proposal(torch.tensor([rng.randrange(6) for _ in range(size)], dtype=torch.int64), parents)


def rows_of(model: ToyModel, context: list[int], proposal: Proposal) -> torch.Tensor:
    drafted = proposal.tokens.tolist()
    paths = [[drafted[i] for i in tree.path(proposal.parents, node)] for node in range(-1, len(proposal))]
    return torch.stack([model.row([*context, *path]) for path in paths])


@pytest.mark.parametrize("seed", range(30))
def test_any_history_gives_the_rows_of_a_fresh_cache(seed: int) -> None:
    rng, model = random.Random(seed), ToyModel(1, 6, order=0)
    session, context = Session(model), [0, 1, 2]
    for _ in range(25):
        proposal = random_tree(rng, rng.randrange(7))
        (output,) = score(model, [session], [context], [proposal])
        assert torch.equal(output.logits, rows_of(model, context, proposal))
        if rng.random() < 0.5:
            session.resolve(proposal.tokens.tolist())
        kind = rng.random()
        if kind < 0.7 and len(proposal):  # follow a path, then another token
            node = rng.randrange(len(proposal))
            context = [
                *context,
                *(int(proposal.tokens[i]) for i in tree.path(proposal.parents, node)),
                rng.randrange(6),
            ]
        elif kind < 0.85:
            context = [*context, rng.randrange(6), rng.randrange(6)]
        else:  # another text with a common beginning
            context = [*context[: rng.randint(1, len(context))], rng.randrange(6)]
        assert session.cache.tokens[: len(session)] == context[: len(session)] or len(context) <= len(session)


@pytest.mark.parametrize("seed", range(20))
def test_exit_calls_are_taken_up_or_dropped(seed: int) -> None:
    rng, model = random.Random(seed), ToyModel(1, 6, order=0)
    session, context = Session(model), [0, 1]
    for _ in range(12):
        proposal = random_tree(rng, rng.randint(1, 6))
        (root,) = model.forward([session.plan_exit(context)], exit_layer=2)
        assert torch.equal(root.logits[0], model.row(context, 2))
        part = Proposal(proposal.tokens[:-1], proposal.parents[:-1])
        if len(part):
            (more,) = model.forward([session.plan_more(part)], exit_layer=2)
            drafted = part.tokens.tolist()
            for node in range(len(part)):
                path = [drafted[i] for i in tree.path(part.parents, node)]
                assert torch.equal(more.logits[node], model.row([*context, *path], 2))
        final = proposal if rng.random() < 0.7 else random_tree(rng, 3)
        fed = model.fed
        (output,) = score(model, [session], [context], [final])
        assert torch.equal(output.logits, rows_of(model, context, final))
        assert model.fed - fed >= len(final)
        context = [*context, *(int(final.tokens[i]) for i in tree.path(final.parents, 0)), rng.randrange(6)]


def test_nothing_is_fed_twice_when_a_path_is_accepted() -> None:
    model, context = ToyModel(1, 6), [0, 1, 2]
    session = Session(model)
    score(model, [session], [context], [chain([3, 4, 5])])
    context += [3, 4, 5, 0]
    score(model, [session], [context], [chain([1])])
    assert model.fed == 3 + 3 + 1 + 1


def test_a_long_prompt_is_fed_in_bounded_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PREFILL_CHUNK", 16)
    model, context = ToyModel(1, 6), [i % 6 for i in range(100)]
    calls: list[int] = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda s, *a, **k: calls.append(len(s[0].tokens)) or forward(s, *a, **k))
    (output,) = score(model, [Session(model)], [context], [chain([1, 2])])
    assert sum(calls) == 102 and max(calls) <= 18
    assert torch.equal(output.logits, rows_of(model, context, chain([1, 2])))


def test_the_cache_holds_the_context_then_the_nodes() -> None:
    model = ToyModel(1, 6)
    session = Session(model)
    score(model, [session], [[0, 1]], [chain([2, 3])])
    assert isinstance(session.cache, ToyCache) and session.cache.tokens == [0, 1, 2, 3] and len(session) == 2
    session.go_back([0, 1, 2, 5])
    assert session.cache.tokens == [0, 1, 2] and len(session) == 3


def test_a_session_given_to_the_next_request_feeds_only_what_is_new() -> None:
    """R20.1: the second turn of a chat reads its own words alone, and its text is that of a fresh session."""
    target = ToyModel(7)
    made = Engine(target, NgramDrafter(4, min=1), CoupledRule())
    session = Session(target)
    first = made.submit([0, 1, 2, 0, 1], SamplingParams(max_tokens=20), session)
    while first.finish_reason is None:
        made.step([first])
    prompt, fed = [*first.context, 5, 6, 7], target.fed
    second = made.submit(prompt, SamplingParams(max_tokens=10), session)
    (step,) = made.step([second])
    assert step.prefill and step.num_draft_tokens == 0
    assert target.fed - fed <= 3 + 1 + 4  # the new words, the last token, at most one block that was cut
    while second.finish_reason is None:
        made.step([second])
    fresh = [token for step in made.generate(prompt, SamplingParams(max_tokens=10)) for token in step.tokens]
    assert second.output == fresh


@pytest.mark.parametrize(
    ("one", "other", "limit", "length"),
    [
        ([], [], None, 0),
        ([1, 2, 3], [1, 2, 3], None, 3),
        ([1, 2, 3], (1, 2), None, 2),
        ([1, 2, 3], [1, 5, 3], None, 1),
        ([4], [1, 4], None, 0),
        ([1, 2, 3], [1, 2, 3], 1, 1),
        ([1, 2], [1, 2, 3], 9, 2),
    ],
)
def test_the_shared_beginning(one: list[int], other: list[int], limit: int | None, length: int) -> None:
    assert shared_length(one, other, limit) == shared_length(other, one, limit) == length
