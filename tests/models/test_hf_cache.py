"""Caches of the transformers backend: rollback, trees that are kept in part, sliding windows (R6.1, R6.2)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from models.hf_models import (
    CLOSE,
    LONG,
    VOCABULARY,
    WINDOW,
    WINDOWED,
    Pair,
    assert_same_cache,
    branch,
    feed,
    largest,
    pair_of,
    plain,
    straight,
    tokens,
)

from draftproof import tree
from draftproof.models.hf import HfModel
from draftproof.models.hf_cache import SPARE, HfCache
from draftproof.types import Segment


@pytest.fixture(scope="module", params=WINDOWED)
def windowed(request: pytest.FixtureRequest) -> Pair:
    return pair_of(request.param)


@pytest.mark.parametrize("path", [(), (0,), (0, 2), (1, 3, 5)])
def test_rollback_leaves_the_cache_of_a_fresh_one(pair: Pair, path: tuple[int, ...]) -> None:
    context, nodes, parents = tokens(14), tokens(7, 1), (-1, -1, 0, 1, 0, 3, 5)
    cache, fresh = pair.ours.new_cache(), pair.ours.new_cache()
    behind = (*range(-1, 13), *(parent + 14 for parent in parents))
    pair.ours.forward([branch(cache, context + nodes, behind, 8)])
    pair.ours.rollback(cache, 14, [14 + node for node in path])
    kept = [nodes[i] for i in path]
    feed(pair.ours, fresh, context + kept)
    assert_same_cache(cache, fresh)
    more = tokens(5, 2)
    expected = plain(pair.own, context + kept + more)[-5:]
    assert largest(feed(pair.ours, cache, more).logits, expected) <= CLOSE


@dataclass
class Game:
    """One request of a random history: committed text, cache, and the tree behind it."""

    cache: Any
    text: list[int] = field(default_factory=list)
    held: int = 0  # tokens of the text in the cache


def test_random_histories_of_trees_rollbacks_and_exits(pair: Pair) -> None:
    rng = random.Random(7)
    games = [Game(pair.ours.new_cache(), tokens(size, size)) for size in (1, 9)]
    for step in range(12):
        segments, paths, drafts = [], [], []
        exit_layer = rng.choice([None, None, 1, 3])
        for game in games:
            nodes = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(0, 7))]
            parents = [rng.randrange(-1, i) if rng.random() < 0.5 else i - 1 for i in range(len(nodes))]
            fresh = game.text[game.held :]
            behind = (*range(-1, len(fresh) - 1), *(parent + len(fresh) for parent in parents))
            done = 0
            if exit_layer is not None and rng.random() < 0.7:
                done = rng.randrange(1, len(fresh) + len(nodes) + 1)
                for a, b in ((0, done // 2), (done // 2, done)):
                    fed = (fresh + nodes)[a:b]
                    pair.ours.forward([branch(game.cache, fed, behind[:b])], exit_layer=exit_layer)
                done -= rng.randrange(0, done) if rng.random() < 0.3 else 0
            segments.append(branch(game.cache, fresh + nodes, behind, 1 + len(nodes), done))
            paths += [game.text + [nodes[i] for i in tree.path(parents, n)] for n in range(-1, len(nodes))]
            drafts.append((nodes, parents))
        outputs = pair.ours.forward(segments)
        assert largest(torch.cat([output.logits for output in outputs]), pair.rows(paths)) <= CLOSE, step
        for game, (nodes, parents) in zip(games, drafts, strict=True):
            path = tree.path(parents, rng.randrange(-1, len(nodes)))
            base = len(game.text)
            pair.ours.rollback(game.cache, base, [base + node for node in path])
            game.text += [nodes[i] for i in path]
            game.held = len(game.text)
            if rng.random() < 0.2:
                game.held = rng.randrange(game.held)
                game.held = pair.ours.reusable(game.cache, game.held)
                pair.ours.rollback(game.cache, game.held)
            game.text.append(rng.randrange(3, VOCABULARY))
    for game in games:
        fresh_cache = pair.ours.new_cache()
        feed(pair.ours, fresh_cache, game.text[: game.held])
        assert_same_cache(game.cache, fresh_cache)


def test_rollback_refuses_what_it_cannot_do(llama: Pair) -> None:
    cache = llama.ours.new_cache()
    feed(llama.ours, cache, tokens(6))
    for length, keep in ((7, ()), (3, (6,)), (3, (2,)), (3, (4, 4))):
        with pytest.raises(ValueError, match=r"cannot go back|must ascend"):
            llama.ours.rollback(cache, length, keep)
    with pytest.raises(ValueError, match="not made by"):
        HfModel.wrap(llama.own).rollback(cache, 3)
    assert cache.length == 6


def test_appending_copies_no_old_entries(llama: Pair) -> None:
    cache = llama.ours.new_cache()
    feed(llama.ours, cache, tokens(20))
    places = set()
    for token in tokens(200):
        feed(llama.ours, cache, [token])
        places.add(cache.stores[0].keys.data_ptr())
    assert len(places) <= 3


@pytest.mark.parametrize("size", [1, WINDOW - 1, WINDOW, WINDOW + 1, 60, 700])
def test_windows_below_at_and_above_the_prompt(windowed: Pair, size: int) -> None:
    text = tokens(size + 40)
    expected = plain(windowed.own, text)
    cache = windowed.ours.new_cache()
    rows = [feed(windowed.ours, cache, text[:size]).logits]
    rows += [feed(windowed.ours, cache, text[at : at + 5]).logits for at in range(size, size + 40, 5)]
    assert largest(torch.cat(rows), expected) <= CLOSE


@pytest.mark.parametrize("size", [3, 80, 700])
def test_rejections_after_the_window_has_wrapped(windowed: Pair, size: int) -> None:
    """R6.2: 64 draft entries can go back at any time, and the rows behind are those of the committed text alone."""
    text, cache = tokens(size), windowed.ours.new_cache()
    feed(windowed.ours, cache, text)
    for step in range(6):
        wrong = tokens(64, 100 + step)
        feed(windowed.ours, cache, wrong[:30])
        for at in range(30, 64, 17):
            feed(windowed.ours, cache, wrong[at : at + 17])
        assert windowed.ours.reusable(cache, len(text)) == len(text)
        windowed.ours.rollback(cache, len(text))
        new = tokens(9, step)
        text += new
        assert largest(feed(windowed.ours, cache, new).logits, plain(windowed.own, text)[-9:]) <= CLOSE
        fresh = windowed.ours.new_cache()
        feed(windowed.ours, fresh, text)
        assert_same_cache(cache, fresh)


def test_a_window_holds_the_window_and_a_block(windowed: Pair) -> None:
    """R6.2: memory does not grow with the prompt, whether it comes at once, in chunks or token by token."""
    for sizes in ([1500], [300] * 5, [1] * 250):
        cache = windowed.ours.new_cache()
        assert isinstance(cache, HfCache)
        for size in sizes:
            feed(windowed.ours, cache, tokens(size))
            held = [store.capacity for store in cache.stores if store.kind.sight.window is not None]
            assert max(held) <= WINDOW + 3 * SPARE
        memory = windowed.ours.memory()
        assert cache.nbytes <= 1.5 * memory["kv_window"] + 2 * memory["kv_per_token"] * cache.length


def test_reusable_says_how_far_a_window_reaches_back(windowed: Pair) -> None:
    cache = windowed.ours.new_cache()
    feed(windowed.ours, cache, tokens(500))
    assert [windowed.ours.reusable(cache, n) for n in (900, 500, 436, 435, 30, 0)] == [500, 500, 436, 0, 0, 0]
    with pytest.raises(ValueError, match="cannot go back"):
        windowed.ours.rollback(cache, 30)
    windowed.ours.rollback(cache, 0)
    ids = tokens(20, 3)
    assert largest(feed(windowed.ours, cache, ids).logits, plain(windowed.own, ids)) <= CLOSE


@pytest.mark.parametrize("size", [4, 300])
def test_paths_longer_than_the_window(windowed: Pair, size: int) -> None:
    """A node does not see ancestors that lie a window back, in one call and level by level."""
    depth, context = WINDOW + 5, tokens(size)
    nodes, parents = tokens(2 * depth, 1), (-1, -1, *range(2 * depth - 2))
    paths = [context + [nodes[i] for i in tree.path(parents, node)] for node in range(2 * depth)]
    expected = windowed.rows(paths)
    at_once, grown = windowed.ours.new_cache(), windowed.ours.new_cache()
    for cache in (at_once, grown):
        feed(windowed.ours, cache, context)
    assert largest(windowed.ours.forward([branch(at_once, nodes, parents)])[0].logits, expected) <= CLOSE
    for a in range(0, 2 * depth, 2):
        output = windowed.ours.forward([branch(grown, nodes[a : a + 2], parents[: a + 2])])[0]
        assert largest(output.logits, expected[a : a + 2]) <= CLOSE


def test_exits_while_the_window_wraps(windowed: Pair) -> None:
    text, cache = tokens(90), windowed.ours.new_cache()
    feed(windowed.ours, cache, text)
    for step in range(30):
        draft = tokens(9, step)
        for token in draft[:6]:
            feed(windowed.ours, cache, [token], exit_layer=2)
        output = windowed.ours.forward([straight(cache, draft, resume=6)])[0]
        if step % 3 == 0:
            assert largest(output.logits, plain(windowed.own, text + draft)[-9:]) <= CLOSE
        windowed.ours.rollback(cache, len(text), range(len(text), len(text) + 5))
        text += draft[:5]
    fresh = windowed.ours.new_cache()
    feed(windowed.ours, fresh, text)
    assert_same_cache(cache, fresh)


def test_a_draft_can_go_back_whatever_its_size(windowed: Pair) -> None:
    context, nodes = tokens(300), tokens(150, 1)
    star = (0,) * 149
    fed: list[tuple[str, list[Segment]]] = []
    for name in ("chain at once", "star at once", "chain grown", "shallow"):
        cache = windowed.ours.new_cache()
        feed(windowed.ours, cache, context)
        steps = [straight(cache, nodes)] if name == "chain at once" else [branch(cache, nodes, (-1, *star), 1)]
        if name in ("chain grown", "shallow"):
            cuts = range(0, 150, 50)
            steps = [branch(cache, nodes[a : a + 50], range(-1, a + 49), 1) for a in cuts]
        fed.append((name, steps))
    for name, steps in fed:
        for step in steps:
            windowed.ours.forward([step], exit_layer=2 if name == "shallow" else None)
        length = 300 - SPARE if name == "shallow" else 300
        assert windowed.ours.reusable(steps[0].cache, length) == length, name


def test_a_window_gives_back_what_a_long_draft_took(windowed: Pair) -> None:
    text, cache = tokens(1200), windowed.ours.new_cache()
    feed(windowed.ours, cache, text[:1000], exit_layer=2)
    windowed.ours.forward([straight(cache, text[:1100], 1, 1000)])
    rows = [feed(windowed.ours, cache, text[at : at + 10]).logits for at in range(1100, 1200, 10)]
    assert largest(torch.cat(rows), plain(windowed.own, text)[1100:]) <= CLOSE
    held = [store.capacity for store in cache.stores if store.kind.sight.window is not None]
    assert max(held) <= WINDOW + 3 * SPARE


def test_a_failed_call_leaves_the_cache_usable(windowed: Pair) -> None:
    text, cache = tokens(30), windowed.ours.new_cache()
    feed(windowed.ours, cache, text)
    with pytest.raises(IndexError):
        feed(windowed.ours, cache, [*tokens(900), VOCABULARY + 1])
    more = tokens(4, 1)
    assert largest(feed(windowed.ours, cache, more).logits, plain(windowed.own, text + more)[-4:]) <= CLOSE


@pytest.mark.parametrize("pair", ["llama", "mistral", "gemma2", "gemma3"], indirect=True)
def test_long_prompts_go_through_in_blocks(pair: Pair) -> None:
    """Chunks above the block size, from an empty cache and behind one, with a tree at the end."""
    text, nodes, parents = tokens(1300), tokens(4, 1), (-1, 0, 0, -1)
    cache = pair.ours.new_cache()
    first = feed(pair.ours, cache, text[:600]).logits
    behind = (*range(-1, 699), *(parent + 700 for parent in parents))
    second = pair.ours.forward([branch(cache, text[600:] + nodes, behind)])[0].logits
    assert largest(torch.cat([first, second[:700]]), plain(pair.own, text)) <= LONG
    paths = [text + [nodes[i] for i in tree.path(parents, node)] for node in range(4)]
    assert largest(second[700:], pair.rows(paths)) <= LONG
