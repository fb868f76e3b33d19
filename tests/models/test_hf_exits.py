"""States of chosen layers, early exits, and going on from where they ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from models.hf_models import (
    CLOSE,
    Pair,
    assert_same_cache,
    branch,
    build,
    feed,
    largest,
    plain,
    straight,
    tokens,
)
from torch import Tensor

from draftproof import tree
from draftproof.models.hf import HfModel


@torch.no_grad()
def own_states(own: Any, ids: Sequence[int]) -> list[Tensor]:
    """[n, H] before the first layer and behind every layer, without the final norm."""
    kept: list[Tensor] = []
    layers = next(m for m in own.modules() if isinstance(m, torch.nn.ModuleList))
    hooks = [layers[0].register_forward_pre_hook(lambda _, args: kept.append(args[0][0]))]
    hooks += [layer.register_forward_hook(lambda _, __, out: kept.append(out[0])) for layer in layers]
    own(torch.tensor([list(ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return kept


def test_states_are_those_of_output_hidden_states(pair: Pair) -> None:
    ids, cache = tokens(12), pair.ours.new_cache()
    feed(pair.ours, cache, ids[:5], layers=[1])
    hidden = feed(pair.ours, cache, ids[5:], layers=[0, 3, 4, 1]).hidden
    assert hidden is not None and hidden.shape[:2] == (7, 4)
    states = own_states(pair.own, ids)
    assert largest(hidden, torch.stack([states[layer][5:] for layer in (0, 3, 4, 1)], 1)) <= CLOSE
    with torch.no_grad():
        listed = pair.own(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
    assert largest(hidden[:, 1], listed[3][0, 5:]) <= CLOSE
    assert feed(pair.ours, cache, ids[:1]).hidden is None


@torch.no_grad()
def exit_rows(own: Any, ids: Sequence[int], exit_layer: int) -> Tensor:
    """[n, V]: final norm and head on the states behind a layer."""
    trunk = own.base_model
    norm = getattr(trunk, "norm", None) or trunk.final_layer_norm
    rows = own.get_output_embeddings()(norm(own_states(own, ids)[exit_layer]))
    cap = getattr(own.config, "final_logit_softcapping", None)
    return rows if cap is None else torch.tanh(rows / cap) * cap


@pytest.mark.parametrize("exit_layer", [1, 2, 4])
def test_an_exit_gives_norm_and_head_on_the_states_there(pair: Pair, exit_layer: int) -> None:
    ids, cache = tokens(15), pair.ours.new_cache()
    feed(pair.ours, cache, ids[:10])
    first = feed(pair.ours, cache, ids[10:12], exit_layer=exit_layer, layers=[exit_layer])
    second = feed(pair.ours, cache, ids[12:], exit_layer=exit_layer)
    assert (cache.length, cache.shallow) == (10, 5)
    expected = exit_rows(pair.own, ids, exit_layer)[10:]
    assert largest(torch.cat([first.logits, second.logits]), expected) <= CLOSE
    assert first.hidden is not None
    assert largest(first.hidden[:, 0], own_states(pair.own, ids)[exit_layer][10:12]) <= CLOSE
    resumed = pair.ours.forward([straight(cache, ids[10:] + tokens(2, 1), resume=5)], layers=[4])[0]
    assert largest(resumed.logits, plain(pair.own, ids + tokens(2, 1))[10:]) <= CLOSE
    assert resumed.hidden is not None
    assert largest(resumed.hidden[:, 0], own_states(pair.own, ids + tokens(2, 1))[4][10:]) <= CLOSE
    assert (cache.length, cache.shallow) == (17, 0)


def test_a_shallow_tree_grows_level_by_level(pair: Pair) -> None:
    context, nodes, parents = tokens(9), tokens(6, 1), (-1, -1, 0, 1, 1, 4)
    cache, fresh = pair.ours.new_cache(), pair.ours.new_cache()
    feed(pair.ours, cache, context[:-1])
    behind = (-1, *(parent + 1 for parent in parents))
    for a, b in ((0, 1), (1, 3), (3, 6), (6, 7)):
        output = pair.ours.forward([branch(cache, (context[-1:] + nodes)[a:b], behind[:b])], exit_layer=2)[0]
        paths = [context + [nodes[i] for i in tree.path(parents, node - 1)] for node in range(a, b)]
        expected = torch.stack([exit_rows(pair.own, path, 2)[-1] for path in paths])
        assert largest(output.logits, expected) <= CLOSE
    output = pair.ours.forward([branch(cache, context[-1:] + nodes, behind, resume=7)])[0]
    every = [context + [nodes[i] for i in tree.path(parents, node)] for node in range(-1, 6)]
    assert largest(output.logits, pair.rows(every)) <= CLOSE
    pair.ours.rollback(cache, 9, [10, 13, 14])
    feed(pair.ours, fresh, context + [nodes[i] for i in (1, 4, 5)])
    assert_same_cache(cache, fresh)


def test_no_layer_runs_twice_for_a_token(pair: Pair) -> None:
    own, runs = build("llama" if pair.own.config.model_type == "llama" else "gpt_neox"), []
    layers = next(m for m in own.modules() if isinstance(m, torch.nn.ModuleList))
    for number, layer in enumerate(layers):
        layer.mlp.register_forward_hook(lambda _, args, __, number=number: runs.append((number, args[0].shape[1])))
    model = HfModel.wrap(own)
    cache, other = model.new_cache(), model.new_cache()
    feed(model, cache, tokens(3))
    runs.clear()
    for _ in range(2):
        model.forward([straight(cache, tokens(2))], exit_layer=2)
    assert [sum(size for number, size in runs if number == n) for n in range(4)] == [4, 4, 0, 0]
    model.forward([straight(cache, tokens(6), resume=4), straight(other, tokens(5))])
    assert [sum(size for number, size in runs if number == n) for n in range(4)] == [11, 11, 11, 11]


def test_requests_that_left_at_different_layers_go_on_together(llama: Pair) -> None:
    texts = [tokens(8, seed) for seed in range(3)]
    caches = [llama.ours.new_cache() for _ in texts]
    for cache, text, exit_layer in zip(caches, texts, (1, 3), strict=False):
        feed(llama.ours, cache, text[:6], exit_layer=exit_layer)
    segments = [straight(c, t, 8, r) for c, t, r in zip(caches, texts, (6, 5, 0), strict=True)]
    for text, output in zip(texts, llama.ours.forward(segments), strict=True):
        assert largest(output.logits, plain(llama.own, text)) <= CLOSE


def test_states_below_the_exit_are_computed_when_asked_for(llama: Pair) -> None:
    ids, cache = tokens(7), llama.ours.new_cache()
    feed(llama.ours, cache, ids[:5], exit_layer=3)
    output = llama.ours.forward([straight(cache, ids, resume=5)], layers=[1])[0]
    assert output.hidden is not None
    assert largest(output.hidden[:, 0], own_states(llama.own, ids)[1]) <= CLOSE
    assert largest(output.logits, plain(llama.own, ids)) <= CLOSE


def test_shallow_entries_vanish_on_rollback_and_on_a_call_that_does_not_resume(llama: Pair) -> None:
    ids, cache = tokens(12), llama.ours.new_cache()
    feed(llama.ours, cache, ids[:6])
    for undo in (lambda: llama.ours.rollback(cache, 6), lambda: None):
        feed(llama.ours, cache, tokens(4, 1), exit_layer=2)
        undo()
        assert largest(feed(llama.ours, cache, ids[6:]).logits, plain(llama.own, ids)[6:]) <= CLOSE
        assert (cache.length, cache.shallow) == (12, 0)
        llama.ours.rollback(cache, 6)


def test_hooks_of_the_users_layers_act_once() -> None:
    own, ids = build("llama"), tokens(9)
    layers = own.model.layers
    layers[0].register_forward_hook(lambda _, __, out: out + 0.3)
    layers[3].register_forward_pre_hook(lambda _, args: (args[0] * 1.2,))
    model = HfModel.wrap(own)
    cache = model.new_cache()
    feed(model, cache, ids[:5], exit_layer=1)
    output = model.forward([straight(cache, ids, resume=5)])[0]
    assert largest(output.logits, plain(own, ids)) <= CLOSE
