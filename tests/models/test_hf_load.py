"""What the transformers backend takes and what it refuses, with one sentence each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from models.hf_models import (
    CLOSE,
    SHAPE,
    VOCABULARY,
    WINDOW,
    NoHostReads,
    build,
    feed,
    largest,
    of,
    plain,
    straight,
    tokens,
)

from draftproof.models.hf import HfModel, load_hf
from draftproof.types import InputError


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (transformers.GPT2Config, {"initializer_range": 0.3}),
        (transformers.GraniteConfig, {**SHAPE, "embedding_multiplier": 3.0, "logits_scaling": 2.0}),
        (transformers.MixtralConfig, {**SHAPE, "num_local_experts": 4}),
        (transformers.CohereConfig, {**SHAPE, "logit_scale": 0.5}),
        (transformers.Olmo3Config, {**SHAPE, "sliding_window": WINDOW}),
    ],
)
def test_an_architecture_nobody_listed_runs_if_it_passes_the_self_test(kind: Any, changes: dict[str, Any]) -> None:
    own = of(kind, **changes)
    ids, model = tokens(20), HfModel.wrap(own)
    cache = model.new_cache()
    feed(model, cache, ids[:7])
    feed(model, cache, ids[7:9], exit_layer=2)
    rows = model.forward([straight(cache, ids[7:], resume=2)])[0].logits
    assert largest(rows, plain(own, ids)[7:]) <= CLOSE


def test_shared_keys_offer_no_early_exit() -> None:
    shared = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}
    types = ["sliding_attention", "full_attention"] * 2
    own = of(transformers.Gemma4TextConfig, **SHAPE, **shared, sliding_window=WINDOW, layer_types=types)
    model, ids = HfModel.wrap(own), tokens(20)
    assert "early_exit" not in model.can
    cache = model.new_cache()
    rows = [feed(model, cache, ids[a:b]).logits for a, b in ((0, 9), (9, 20))]
    assert largest(torch.cat(rows), plain(own, ids)) <= CLOSE
    with pytest.raises(InputError, match="no exit"):
        feed(model, cache, [3], exit_layer=2)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (transformers.MambaConfig, {}, '"linear_attention"'),
        (transformers.Qwen3NextConfig, {**SHAPE, "num_experts": 4}, '"linear_attention"'),
        (transformers.Lfm2Config, {**SHAPE, "full_attn_idxs": [1]}, '"conv"'),
        (transformers.Llama4TextConfig, {**SHAPE, "num_local_experts": 2}, '"chunked_attention"'),
        (transformers.GptOssConfig, {**SHAPE, "num_local_experts": 4}, "passes s_aux to its attention"),
        (transformers.BloomConfig, {}, "BloomForCausalLM does not use transformers' attention interface"),
        (transformers.BertConfig, {"intermediate_size": 48}, "attends to later tokens"),
        (transformers.DiffLlamaConfig, SHAPE, "runs attention more than once a layer"),
        (transformers.NemotronConfig, SHAPE, "do not hand keyword arguments on"),
    ],
)
def test_what_cannot_be_rolled_back_is_refused_by_name(kind: Any, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        HfModel.wrap(of(kind, **changes))
    assert_one_sentence(str(caught.value))


def test_model_objects_that_cannot_be_shared_are_refused() -> None:
    training, damaged = build("llama").train(), build("llama")
    with torch.no_grad():
        damaged.lm_head.weight[3, 3] = float("nan")
    for model, named in ((training, "model.eval"), (damaged, "not finite"), (torch.nn.Linear(2, 2), "Linear")):
        with pytest.raises(InputError, match=named) as caught:
            HfModel.wrap(model)
        assert_one_sentence(str(caught.value))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    build("qwen3").to(torch.bfloat16).save_pretrained(place)
    return place


def test_a_folder_loads_with_the_dtype_asked_for(folder: Path) -> None:
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32), ("float16", torch.float16)):
        model = load_hf(str(folder), dtype=dtype)
        assert feed(model, model.new_cache(), [5, 6]).logits.dtype == expected
        assert model.name == str(folder)


def spoiled(folder: Path, place: Path, **files: bytes | None) -> Path:
    """A copy of the folder in which files are replaced, or removed (None)."""
    shutil.copytree(folder, place)
    for name, content in files.items():
        path = place / name.replace("__", ".")
        path.unlink() if content is None else path.write_bytes(content)
    return place


def test_folders_that_cannot_be_read_are_refused(folder: Path, tmp_path: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    config = json.loads((folder / "config.json").read_text())
    index = json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}).encode()
    other = json.dumps({**config, "num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}).encode()
    wide = json.dumps({**config, "intermediate_size": 56}).encode()
    cases: list[tuple[dict[str, bytes | None], str]] = [
        ({"config__json": None}, "no config.json"),
        ({"config__json": b"{"}, "not valid JSON"),
        ({"config__json": b'{"model_type": "nothing-like-it"}'}, "nothing-like-it"),
        ({"config__json": b'{"model_type": "t5"}'}, "encoder-decoder"),
        ({"config__json": b'{"model_type": "vit"}'}, "no causal language model"),
        ({"config__json": b'{"model_type": "mamba"}'}, "linear_attention"),
        ({"model__safetensors": None}, "no weights"),
        ({"model__safetensors": weights[:-100]}, "truncated or damaged"),
        ({"model__safetensors": b"\xff" * 64}, "truncated or damaged"),
        ({"model.safetensors.index.json": index}, "lacks the weight file model-00001-of-00002.safetensors"),
        ({"config__json": other}, "lacks the weight"),
        ({"config__json": wide}, "weights of other shapes"),
    ]
    for number, (files, named) in enumerate(cases):
        place = spoiled(folder, tmp_path / str(number), **files)
        with pytest.raises(InputError, match=named) as caught:
            load_hf(str(place))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"path": "/no/such/folder"}, "not a folder"),
        ({"device": "toaster"}, "no device"),
        ({"device": "xla"}, "not supported"),
        ({"device": "cuda:63"}, "not available"),
        ({"dtype": "int3"}, "dtype must be one of"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(folder: Path, options: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named):
        load_hf(**{"path": str(folder), **options})


def test_frequencies_that_follow_the_longest_request_end_where_they_change() -> None:
    """With "longrope" a long request would change a short one beside it."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}
    rope["original_max_position_embeddings"] = 32
    own = build("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    model, ids = HfModel.wrap(own), tokens(30)
    assert model.max_context == 32
    expected = plain(own, ids)
    plain(own, tokens(50))
    long = own.model.rotary_emb.inv_freq.clone()
    with NoHostReads():
        rows = feed(model, model.new_cache(), ids).logits
    assert largest(rows, expected) <= CLOSE
    assert torch.equal(own.model.rotary_emb.inv_freq, long), "the user's buffers are not written to"
    with pytest.raises(InputError, match="room for 32 tokens"):
        feed(model, model.new_cache(), tokens(33))


def assert_one_sentence(text: str) -> None:
    assert text.endswith(".") and "\n" not in text and ". " not in text and len(text) < 400
