"""The same bits for a token whatever its company, block, tree, threads and rollbacks, in prompt or decode."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from models import native_models
from models.native_models import chain_segment

from draftproof.models import native
from draftproof.types import Segment

if not native.available():
    pytest.skip("the compiled kernels are not built", allow_module_level=True)

from models.native_history import History, Plain, walk

from draftproof import _kernels

ISAS = _kernels.isas()
TARGETS = [("f32", "f32"), ("bf16", "f32"), ("int8", "f32"), ("int4", "f32"), ("int8", "int8"), ("int4", "int8")]


@pytest.mark.parametrize("family", list(native_models.FAMILIES))
def test_every_history_gives_the_bits_of_plain_decoding(family: str, native_folders: dict[str, Path]) -> None:
    plain = Plain(native.load_native(native_folders[family], weights="bf16", threads=1))
    for threads in (1, 2):
        model = native.load_native(native_folders[family], weights="bf16", threads=threads)
        assert walk(model, plain, seed=threads, calls=15) > 100


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weights,activations", TARGETS)
def test_every_format_is_invariant(weights: Any, activations: Any, isa: str, native_folders: dict[str, Path]) -> None:
    options: dict[str, Any] = {"weights": weights, "activations": activations, "isa": isa}
    plain = Plain(native.load_native(native_folders["mistral"], threads=1, **options))
    for threads in (1, 2):
        model = native.load_native(native_folders["mistral"], threads=threads, **options)
        assert walk(model, plain, seed=10 + threads, calls=10) > 50


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["f32", "int8"])
def test_a_folder_on_a_grid_is_invariant(activations: Any, isa: str, tmp_path: Path) -> None:
    """Three formats side by side: layers in four bits, the embedding in eight, the head dense."""
    native_models.make("mistral", tmp_path)
    native_models.put_on_grid(tmp_path)
    options: dict[str, Any] = {"weights": "int4", "activations": activations, "isa": isa}
    plain = Plain(native.load_native(tmp_path, threads=1, **options))
    assert walk(native.load_native(tmp_path, threads=2, **options), plain, seed=12, calls=10) > 50


@pytest.mark.parametrize("family", ["llama", "mistral", "mistral-wide", "gemma3"])
def test_a_long_prompt_gives_the_bits_of_decoding(family: str, native_folders: dict[str, Path]) -> None:
    """Longer than a batch of rows and than several pages, fed whole, in two parts, and token by token."""
    model = native.load_native(native_folders[family], threads=2)
    ids = torch.randint(0, 203, (330,), generator=torch.Generator().manual_seed(9))
    whole = model.forward([chain_segment(model.new_cache(), ids, 330)])[0].logits
    cache = model.new_cache()
    parts = [model.forward([chain_segment(cache, part, len(part))])[0].logits for part in (ids[:101], ids[101:])]
    single = model.new_cache()
    steps = [model.forward([chain_segment(single, ids[i : i + 1])])[0].logits for i in range(330)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole, torch.cat(steps))


@pytest.mark.parametrize("family", ["smollm2", "mistral", "gemma3"])
def test_a_tree_across_pages_gives_the_bits_of_plain_decoding(family: str, native_folders: dict[str, Path]) -> None:
    """Pages have 64 entries: tree nodes lie on a later page than their positions, and some paths end on the first."""
    plain = Plain(native.load_native(native_folders[family], threads=1))
    rng = random.Random(13)
    for threads in (1, 2):
        model = native.load_native(native_folders[family], threads=threads)
        for length in (50, 57, 63, 64, 117, 127):
            h = History(model.new_cache(), text=[rng.randint(0, 4) for _ in range(length)])
            model.forward([chain_segment(h.cache, h.text)])
            for node in range(30):
                h.parents.append(node - 2 if node > 1 and rng.random() < 0.7 else rng.randint(-1, node - 1))
                h.nodes.append(rng.randint(0, 4))
            logits = model.forward([Segment(h.cache, torch.tensor(h.nodes), tuple(h.parents), 30)])[0].logits
            assert all(logits[node].numpy().tobytes() == plain(h.text_at(node)) for node in range(30))


def test_python_threads_may_share_a_model(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["qwen3"], threads=2)
    plain = Plain(model)
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(walk, model, plain, seed, 6) for seed in range(3)]:
            assert future.result() > 20


@pytest.mark.parametrize("family", ["smollm2", "mistral"])
def test_a_shallow_tree_taken_up_gives_the_bits_of_plain_decoding(family: str, native_folders: dict[str, Path]) -> None:
    """As the early-exit drafter works: a chain and tree nodes leave early call by call, then all go on together."""
    model = native.load_native(native_folders[family], threads=2)
    plain, rng = Plain(model), random.Random(12)
    for _ in range(12):
        h, fresh = History(model.new_cache()), rng.randint(1, 4)
        start = [rng.randint(0, 4) for _ in range(rng.randint(1, 20))]
        model.forward([chain_segment(h.cache, start)])
        h.text = start
        for size in (fresh, rng.randint(1, 3), rng.randint(1, 3)):
            for _ in range(size):
                here = len(h.nodes)
                h.parents.append(here - 1 if here < fresh else rng.randint(fresh - 1, here - 1))
                h.nodes.append(rng.randint(0, 4))
            model.forward([Segment(h.cache, torch.tensor(h.nodes[-size:]), tuple(h.parents), size)], exit_layer=2)
        count, resume = len(h.nodes), rng.randint(1, len(h.nodes))
        full = Segment(h.cache, torch.tensor(h.nodes), tuple(h.parents), count, resume)
        logits = model.forward([full])[0].logits
        for node in range(count):
            assert logits[node].numpy().tobytes() == plain(h.text_at(node))
