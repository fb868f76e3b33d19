"""A damaged Hugging Face folder is refused with one sentence by every backend, whatever a library makes of it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import native_models

from draftproof import catalog
from draftproof.cli.__main__ import run
from draftproof.models import native
from draftproof.run import encode
from draftproof.text import Text, letters
from draftproof.types import InputError

BACKENDS = [
    "hf",
    pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason="the kernels are not built")),
]
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that both backends load."""
    folder = tmp_path_factory.mktemp("sound")
    native_models.make("llama", folder)
    letters(64, eos_id=7).tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3], "bos_token_id": 1}))
    return folder


def merged(name: str, **changes: Any) -> Damage:
    """A change of entries in a JSON file."""

    def damage(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return damage


def config(**changes: Any) -> Damage:
    return merged("config.json", **changes)


def written(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def flipped(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b'"ByteLevel"', b'"ByteLeve,"'))


def made_folder(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").mkdir()


DEEP = "[" * 100_000
INDEX = "model.safetensors.index.json"
# Damage -> a part of the sentence; most name the file.
DAMAGED: dict[str, tuple[Damage, str]] = {
    "size is text": (config(hidden_size="x"), "config.json"),
    "no heads": (config(num_attention_heads=0), "config.json"),
    "three heads": (config(num_attention_heads=3), "config.json"),
    "odd head": (config(head_dim=7), "config.json"),
    "no vocabulary": (config(vocab_size=0), "vocab_size"),
    "size below zero": (config(num_key_value_heads=-2), "num_key_value_heads"),
    "endless layers": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "context is text": (config(max_position_embeddings="x"), "max_position_embeddings"),
    "other vocabulary": (config(vocab_size=10**6), "config.json"),
    "end is text": (config(eos_token_id="abc"), "config.json"),
    "inner config": (config(text_config=5), "text_config"),
    "layer types": (config(layer_types=["full_attention"]), "layer"),
    "rotary base": (config(rope_parameters={"rope_type": "default", "rope_theta": "x"}), "/model"),
    "config is deep": (written("config.json", DEEP), "config.json"),
    "config is a list": (written("config.json", "[]"), "config.json"),
    "config is null": (written("config.json", "null"), "config.json"),
    "tokenizer byte": (flipped, "tokenizer.json"),
    "tokenizer is a list": (written("tokenizer.json", "[]"), "tokenizer.json"),
    "tokenizer is null": (written("tokenizer.json", "null"), "tokenizer.json"),
    "settings are a list": (written("tokenizer_config.json", "[]"), "tokenizer_config.json"),
    "settings are null": (written("tokenizer_config.json", "null"), "tokenizer_config.json"),
    "end token is a number": (merged("tokenizer_config.json", eos_token=5), "tokenizer_config.json"),
    "generation end is text": (merged("generation_config.json", eos_token_id="abc"), "generation_config.json"),
    "generation end below zero": (merged("generation_config.json", eos_token_id=-1), "generation_config.json"),
    "generation end too large": (merged("generation_config.json", eos_token_id=[7, 203]), "203 tokens"),
    "generation is a list": (written("generation_config.json", "[]"), "generation_config.json"),
    "generation is a folder": (made_folder, "generation_config.json"),
    "index is a list": (written(INDEX, "[]"), INDEX),
    "index of lists": (written(INDEX, '{"weight_map": {"a": ["b"]}}'), INDEX),
    "index without a map": (written(INDEX, "{}"), INDEX),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_sentence(backend: str, case: str, sound: Path, tmp_path: Path) -> None:
    damage, named = DAMAGED[case]
    folder = shutil.copytree(sound, tmp_path / "model")
    damage(folder)
    with pytest.raises(InputError, match=named) as caught:
        catalog.load_model(f"{backend}:{folder}")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_damage_is_refused_or_does_no_harm(backend: str, sound: Path, tmp_path: Path) -> None:
    """Byte flips and changed values: never another exception than InputError. The seed is fixed."""
    rng, refused = random.Random(20), 0
    for number in range(30):
        folder = shutil.copytree(sound, tmp_path / str(number))
        _spoil(folder, rng)
        try:
            loaded = catalog.load_model(f"{backend}:{folder}")
            catalog.engine_for(loaded, "null")
            encode(loaded.text, "abcab")
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 8 <= refused < 30


def _spoil(folder: Path, rng: random.Random) -> None:
    names = "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"
    file = folder / rng.choice(names)
    if rng.random() < 0.4:
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(data))
        return
    value = json.loads(file.read_text())
    key = rng.choice(list(value))
    value[key] = rng.choice(["x", 0, -1, 7, None, [], {}, True, 1.5, 10**30, [[]], float("nan")])
    file.write_text(json.dumps(value))


@pytest.mark.parametrize("template", ["{{ 1/0 }}", "{{ messages[9].content + 1 }}", "{% for %}", "{{ 'a' * 10**15 }}"])
def test_a_broken_chat_template_is_one_sentence(sound: Path, tmp_path: Path, template: str) -> None:
    folder = shutil.copytree(sound, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    text = Text.load(folder)
    with pytest.raises(InputError, match="chat template of model") as caught:
        text.chat("ab")
    assert "\n" not in str(caught.value)


def test_a_token_id_beyond_all_sense_is_damage(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "model")
    file = folder / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["model"]["vocab"]["a"] = 2**31
    file.write_text(json.dumps(settings))
    with pytest.raises(InputError, match="damaged"):
        _ = Text.load(folder).tokens


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["x" * 5000, "~no-such-user/model", "/no/such/folder", "a\0b"])
def test_a_name_that_cannot_be_a_folder_is_one_sentence(backend: str, name: str) -> None:
    with pytest.raises(InputError) as caught:
        catalog.load_model(f"{backend}:{name}")
    assert len(str(caught.value)) < 400


def test_native_tells_its_own_threads(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not native.available():
        pytest.skip("the kernels are not built")
    for threads in (1, 2):
        loaded = catalog.load_model(f"native:{sound}", catalog.Place(threads=threads))
        assert loaded.model.threads == threads  # type: ignore[attr-defined]
    target = f"native:{sound},threads=3"
    assert run(["generate", "ab", "--target", target, "--max-tokens", "3", "--json"]) == 0
    said = capsys.readouterr()
    assert "bf16, 3 threads" in said.err and json.loads(said.out.splitlines()[-1])["threads"] == 3
    assert run(["check", target]) == 0 and "bf16, 3 threads" in capsys.readouterr().out
