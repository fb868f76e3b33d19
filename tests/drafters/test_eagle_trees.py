"""Trees of the likeliest paths of an eagle head."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle_engines import advanced, asked_for, engine, outputs, states_of, target
from models.hf_models import VOCABULARY, tokens

from draftproof import session as sessions
from draftproof import tree
from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.drafters.best_first import BestFirst
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle import EagleDrafter, EagleSession
from draftproof.engine import Engine
from draftproof.heads import load_eagle
from draftproof.request import Request
from draftproof.rng import PhiloxSource
from draftproof.sampling import Sampler
from draftproof.types import InputError, SamplingParams


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_tree_by_path_probability_holds_the_likeliest_paths(seed: int, greedy: bool, root: Path) -> None:
    """Against all paths of the tree's depth, each scored by rows of its own."""
    loaded = target("hf", root)
    made = load_eagle(str(root / "hf" / "eagle3"), loaded, BestFirst(nodes=9, gamma=3, width=40))
    params = SamplingParams(temperature=0.0 if greedy else 1.0, max_tokens=30, seed=seed)
    rule = Engine(loaded.model, made, load_rule("auto", made))
    request = advanced(rule, tokens(12, seed), params, 1)
    (proposal,) = made.propose([replace(asked_for(request, 3), policy=Sampler(params, 0), source=PhiloxSource(1))])
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
    fresh.observe(list(context), (), states_of(made, context))
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
