"""A head's step in one compiled call beside the same step in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftproof.contracts import RunsHeads, Shared
from draftproof.drafters.eagle_bodies import Body, HeadEntries, TorchBody, WholeBody, body_of
from draftproof.drafters.eagle_head import EagleHead, HeadConfig
from draftproof.models import native
from draftproof.types import Segment

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled kernels")
V, K, TARGET = 203, 40, 64
PLAIN = HeadConfig(
    layout="eagle3",
    hidden=64,
    intermediate=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    eps=1e-5,
    vocab=V,
    draft_vocab=K,
    target_hidden=TARGET,
    layers=(1, 2, 3),
)
FORMS = {
    "plain": {},
    "normed residual": {"norm_before_residual": True},
    "norms of input, queries and keys": {"input_norm": True, "qk_norm": True},
    "biases": {"qkv_bias": True, "out_bias": True},
    "own embedding, wider": {"own_embedding": True, "hidden": 96},
    "the target's head": {"own_head": False},
    "whole vocabulary": {"draft_vocab": V},
    "rotary scaling": {"rope": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}


def made_head(**changes: Any) -> EagleHead:
    """Random weights, all of them of weight."""
    torch.manual_seed(1)
    config = replace(PLAIN, **changes)
    ids = None if config.draft_vocab == V else torch.randperm(V)[:K].sort().values
    head = EagleHead(config, ids)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 1.5 * noise / parameter.shape[-1] ** 0.5)
    return head


@pytest.fixture(scope="module", params=["f32", "int8"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    from models import native_models

    folder = tmp_path_factory.mktemp("target")
    native_models.make("llama", folder / "llama")
    weights = "f32" if request.param == "f32" else "bf16"
    made: Shared = native.load_native(folder / "llama", weights=weights, threads=2).shared()
    return made


class Text:
    """One request fed to a body: true entries, then drafts."""

    def __init__(self, body: Body, seed: int) -> None:
        self.body, self.cache = body, body.new_cache()
        self._random = torch.Generator().manual_seed(seed)

    def true(self, count: int, rows: int = 1) -> Segment:
        """So many more true entries."""
        first = self.cache.length
        self.cache.cut(first)
        self.cache.incoming = torch.randn(count, 3, TARGET, generator=self._random)
        self.cache.coming = list(range(first, first + count))
        return Segment(self.cache, self._tokens(count), tuple(range(-1, count - 1)), rows)

    def drafted(self, parents: tuple[int, ...], new: int) -> Segment:
        """The last `new` nodes of a draft tree, each from the state of its parent."""
        assert self.cache.own is not None
        above = torch.tensor([parent + 1 for parent in parents[-new:]])
        self.cache.incoming = self.cache.own[above]
        depths = [0] * len(parents)
        for node, parent in enumerate(parents):
            depths[node] = depths[parent] + 1 if parent >= 0 else 0
        self.cache.coming = [self.cache.length + depth for depth in depths[-new:]]
        return Segment(self.cache, self._tokens(new), parents, new)

    def _tokens(self, count: int) -> Tensor:
        return torch.randint(V, (count,), generator=self._random)


@torch.no_grad()
def played(body: Body) -> list[Tensor]:
    """Rows of two requests together: a prompt, a tree in two levels, its end, more text, a chain."""
    one, two = Text(body, 1), Text(body, 2)
    rows = body.call([one.true(70), two.true(3)])
    rows += body.call([one.drafted((-1, -1), 2), two.drafted((-1,), 1)])
    rows += body.call([one.drafted((-1, -1, 0, 1, 1), 3), two.drafted((-1, 0), 1)])
    one.cache.cut(60)
    rows += body.call([one.true(2), two.true(90)])
    rows += body.call([one.true(1, 0)])
    rows += body.call([two.drafted((-1,), 1)])
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_the_compiled_step_computes_what_torch_does(form: str, shared: Shared) -> None:
    whole, reference = body_of(made_head(**FORMS[form]), shared), TorchBody(made_head(**FORMS[form]), shared)
    assert isinstance(whole, WholeBody)
    for found, expected in zip(played(whole), played(reference), strict=True):
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=2e-4 * float(expected.abs().max()) if len(expected) else 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "eagle1", "layers": (4,), "intermediate": 64},
        {"mlp_bias": True},
        {"fc_bias": True},
        {"out_norm": False},
    ],
)
def test_a_head_of_another_form_is_left_to_torch(changes: dict[str, Any], shared: Shared) -> None:
    assert isinstance(body_of(made_head(**changes), shared), TorchBody)


@pytest.mark.parametrize("changes", [{"head_dim": 8}, {"intermediate": 80}])
def test_a_head_of_sizes_that_kernels_do_not_take_is_left_to_torch(changes: dict[str, Any], shared: Shared) -> None:
    head = made_head(**changes)
    assert isinstance(shared, RunsHeads)
    body = body_of(head, shared)
    assert isinstance(body, TorchBody) and isinstance(body.new_cache(), HeadEntries)
    assert len(played(body)) == 10


def test_a_batch_gives_the_bits_of_single_calls(shared: Shared) -> None:
    body = body_of(made_head(), shared)
    pair = [Text(body, 1), Text(body, 2)]
    together = body.call([pair[0].true(20), pair[1].true(33)])
    alone = [body.call([Text(body, seed).true(count)])[0] for seed, count in ((1, 20), (2, 33))]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
