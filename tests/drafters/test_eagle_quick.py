"""The head's step in numpy is that of torch: same drafts, same rows, same cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle_engines import BACKENDS, PROMPTS, advanced, asked_for, engine

from draftproof.drafters.eagle import EagleDrafter, EagleSession
from draftproof.drafters.eagle_quick import fits
from draftproof.types import Proposal, SamplingParams


def drafted(backend: str, root: Path, prompt: int, params: SamplingParams, quick: bool) -> tuple[Proposal, Any]:
    """A proposal of four tokens behind some steps, and the head's cache."""
    made = engine(backend, root, "gamma=4")
    drafter = made.drafter
    assert isinstance(drafter, EagleDrafter) and drafter._quick is not None
    if not quick:
        drafter._quick = None
    request = advanced(made, PROMPTS[prompt], params, 6)
    (proposal,) = drafter.propose([asked_for(request, 4)])
    assert request.running is not None and isinstance(request.running.draft, EagleSession)
    return proposal, request.running.draft.cache


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_quick_drafts_are_those_of_the_reference(backend: str, root: Path, prompt: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=4)
    (one, cache), (other, plain) = (drafted(backend, root, prompt, params, quick) for quick in (True, False))
    assert len(one) == 4 and torch.equal(one.tokens, other.tokens)
    if temperature:
        assert one.probs is not None and other.probs is not None
        assert torch.allclose(one.probs, other.probs, atol=1e-4)
    assert cache.positions == plain.positions and cache.drafted == plain.drafted
    for a, b in zip((*cache.held(), cache.own), (*plain.held(), plain.own), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_what_does_not_fit_is_left_to_torch(root: Path) -> None:
    made = engine("hf", root, "shape=3x2x1")
    drafter = made.drafter
    assert isinstance(drafter, EagleDrafter)
    request = advanced(made, PROMPTS[0], SamplingParams(max_tokens=60), 3)
    assert request.running is not None and isinstance(request.running.draft, EagleSession)
    segment = request.running.draft.plan(request.context)
    assert fits(drafter.head, [segment]) and not fits(drafter.head, [segment, segment])
    (tree,) = drafter.propose([asked_for(advanced(made, PROMPTS[0], SamplingParams(max_tokens=60), 3), 3)])
    assert len(tree) > 3
