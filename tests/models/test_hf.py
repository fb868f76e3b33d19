"""The transformers backend against transformers' own eager forward: same logits, however the tokens are fed."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from models.hf_models import (
    CLOSE,
    VOCABULARY,
    NoHostReads,
    Pair,
    branch,
    build,
    feed,
    largest,
    plain,
    straight,
    tokens,
)

from draftproof import tree
from draftproof.models.hf import HfModel
from draftproof.types import InputError


def test_chunks_give_the_rows_of_one_forward(pair: Pair) -> None:
    ids, cache = tokens(40), pair.ours.new_cache()
    rows = [feed(pair.ours, cache, ids[a:b]).logits for a, b in ((0, 1), (1, 3), (3, 20), (20, 21), (21, 40))]
    assert largest(torch.cat(rows), plain(pair.own, ids)) <= CLOSE
    assert cache.length == 40


def test_the_reference_rows_are_not_flat(pair: Pair) -> None:
    """Otherwise the comparisons could not fail."""
    assert plain(pair.own, tokens(40)).std() > 0.5


def test_a_ragged_batch_gives_each_request_its_own_rows(pair: Pair) -> None:
    texts = [tokens(size, seed) for seed, size in enumerate((25, 4, 13))]
    caches = [pair.ours.new_cache() for _ in texts]
    for a, b in ((0, 3), (3, 4), (4, 30)):
        parts = [text[a:b] for text in texts]
        outputs = pair.ours.forward([straight(c, p, min(2, len(p))) for c, p in zip(caches, parts, strict=True)])
        for text, part, output in zip(texts, parts, outputs, strict=True):
            end = min(b, len(text))
            assert output.logits.shape == (min(2, len(part)), VOCABULARY)
            if part:
                assert largest(output.logits, plain(pair.own, text[:end])[-min(2, len(part)) :]) <= CLOSE


def test_every_node_of_a_tree_has_the_row_of_its_path(pair: Pair) -> None:
    context, nodes, parents = tokens(11), tokens(7, 1), (-1, -1, 0, 1, 0, 3, 5)
    cache = pair.ours.new_cache()
    feed(pair.ours, cache, context[:-2])
    behind = (-1, 0, *(parent + 2 for parent in parents))
    output = pair.ours.forward([branch(cache, context[-2:] + nodes, behind, 8)])[0]
    paths = [context + [nodes[i] for i in tree.path(parents, node)] for node in range(-1, 7)]
    assert largest(output.logits, pair.rows(paths)) <= CLOSE


def test_a_tree_may_be_fed_level_by_level(pair: Pair) -> None:
    context, nodes, parents = tokens(9), tokens(6, 1), (-1, -1, 0, 1, 1, 4)
    cache = pair.ours.new_cache()
    feed(pair.ours, cache, context)
    for a, b in ((0, 2), (2, 5), (5, 6)):
        output = pair.ours.forward([branch(cache, nodes[a:b], parents[:b])])[0]
        paths = [context + [nodes[i] for i in tree.path(parents, node)] for node in range(a, b)]
        assert largest(output.logits, pair.rows(paths)) <= CLOSE


def test_trees_of_several_requests_share_a_call(pair: Pair) -> None:
    shapes = ((5, (-1, 0, 0, 2)), (19, (-1, -1)), (8, ()))
    segments, paths = [], []
    for seed, (size, parents) in enumerate(shapes):
        context, nodes = tokens(size, seed), tokens(len(parents), 10 + seed)
        cache = pair.ours.new_cache()
        feed(pair.ours, cache, context[:-1])
        behind = (-1, *(parent + 1 for parent in parents))
        segments.append(branch(cache, context[-1:] + nodes, behind))
        paths += [context + [nodes[i] for i in tree.path(parents, node)] for node in range(-1, len(parents))]
    found = torch.cat([output.logits for output in pair.ours.forward(segments)])
    assert largest(found, pair.rows(paths)) <= CLOSE


def test_wrapping_leaves_the_users_model_as_it_was() -> None:
    own = build("gemma3")
    before, ids = plain(own, tokens(9)), tokens(9)
    model = HfModel.wrap(own, "mine")
    feed(model, model.new_cache(), ids, layers=[1])
    assert own.config._attn_implementation == "eager"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in own.modules())
    assert torch.equal(plain(own, ids), before)
    with torch.no_grad():
        own.get_input_embeddings().weight.mul_(1.1)
    cache = model.new_cache()
    assert largest(feed(model, cache, ids).logits, plain(own, ids)) <= CLOSE, "weights are shared"


def test_what_the_user_hung_on_a_model_is_shared_not_copied() -> None:
    own = build("llama")
    expected = plain(own, tokens(9))
    seen: list[int] = []
    own.lock, own.model.layers[1].mlp.trace, own.loop = threading.Lock(), seen, [seen]
    own.loop.append(own.loop)
    own.model.layers[1].mlp.register_forward_hook(lambda module, *_: module.trace.append(1))
    own.model.layers[2].mlp.forward = own.model.layers[2].mlp.forward
    own.model.layers[3].forward = partial(type(own.model.layers[3]).forward, own.model.layers[3])
    model = HfModel.wrap(own, "mine")
    before = len(seen)
    found = feed(model, model.new_cache(), tokens(9), layers=[1, 4]).logits
    assert len(seen) == before + 1 and largest(found, expected) <= CLOSE


def test_two_threads_may_call_at_once(llama: Pair) -> None:
    texts = [tokens(30, seed) for seed in range(4)]
    expected = [plain(llama.own, text) for text in texts]
    worst = [1.0] * 4

    def run(index: int) -> None:
        for _ in range(3):
            cache = llama.ours.new_cache()
            parts = [feed(llama.ours, cache, texts[index][a : a + 5], layers=[index]) for a in range(0, 30, 5)]
            worst[index] = largest(torch.cat([part.logits for part in parts]), expected[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(worst) <= CLOSE


def test_nothing_is_read_back_from_the_device(pair: Pair) -> None:
    cache = pair.ours.new_cache()
    with NoHostReads():
        feed(pair.ours, cache, tokens(90))
        pair.ours.forward([branch(cache, tokens(4), (-1, 0, 0, 1))])
        pair.ours.rollback(cache, 90, (90, 92))
        feed(pair.ours, cache, tokens(3), exit_layer=2)
        pair.ours.forward([straight(cache, tokens(5), resume=3)], layers=[3])


def test_outputs_may_be_written_to(llama: Pair) -> None:
    logits = feed(llama.ours, llama.ours.new_cache(), tokens(2)).logits
    logits[0, 0] = 7.0
    assert logits[0, 0] == 7.0 and not logits.is_inference()


def test_what_a_model_says_about_itself(pair: Pair) -> None:
    ours = pair.ours
    assert (ours.vocab_size, ours.num_layers, ours.max_context) == (VOCABULARY, 4, 2048)
    assert ours.can == {"rollback", "tree", "hidden", "early_exit", "lowbit"} and ours.device == torch.device("cpu")
    memory, config = ours.memory(), pair.own.config
    assert memory["weights"] >= sum(weight.numel() * 4 for weight in pair.own.parameters())
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * 4
    full = 0 if config.model_type == "mistral" else kinds.count("full_attention")
    heads = 4 if config.model_type == "gpt_neox" else 2
    assert memory["kv_per_token"] == full * heads * 8 * 2 * 4
    assert (memory["kv_window"] > 0) == (full < 4)


def test_calls_that_make_no_sense_are_refused(llama: Pair) -> None:
    cache, ours = llama.ours.new_cache(), llama.ours
    feed(ours, cache, tokens(4), exit_layer=2)
    with pytest.raises(ValueError, match="share a cache"):
        ours.forward([straight(cache, [3]), straight(cache, [4])])
    with pytest.raises(ValueError, match="shallow entries"):
        ours.forward([straight(cache, tokens(6), resume=5)])
    with pytest.raises(ValueError, match="of layer 2"):
        feed(ours, cache, [3], exit_layer=3)
    with pytest.raises(ValueError, match="describe more"):
        ours.forward([branch(cache, [3], (-1,) * 9)])
    with pytest.raises(InputError, match="no exit behind layer 5"):
        feed(ours, cache, [3], exit_layer=5)
    with pytest.raises(InputError, match="states of the layers 0 to 4"):
        feed(ours, cache, [3], layers=[5])
    with pytest.raises(InputError, match="room for 2048 tokens and was given 2049"):
        feed(ours, ours.new_cache(), tokens(2049))
    assert ours.forward([]) == [] and ours.forward([straight(cache, [])])[0].logits.shape == (0, VOCABULARY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_half_precision(family: str, dtype: torch.dtype) -> None:
    own = build(family).to(dtype)
    model, ids = HfModel.wrap(own), tokens(24)
    cache = model.new_cache()
    found = torch.cat([feed(model, cache, ids[a:b]).logits for a, b in ((0, 9), (9, 10), (10, 24))])
    assert found.dtype == dtype and cache.stores[0].keys.dtype == dtype
    expected = plain(own, ids)
    exact = plain(own.float(), ids)
    noise = (expected.float() - exact).abs().max()
    assert (found.float() - exact).abs().max() <= 3 * noise
