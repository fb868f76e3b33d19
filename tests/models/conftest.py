"""Models and checkpoints that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import native_models
from models.damage import tiny
from models.gguf_files import write_gguf
from models.hf_models import FAMILIES, Pair, pair_of


@pytest.fixture(scope="session")
def native_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random checkpoint of each family that `native:` computes."""
    root = tmp_path_factory.mktemp("native")
    for family in native_models.FAMILIES:
        native_models.make(family, root / family)
    return {family: root / family for family in native_models.FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> Pair:
    """A transformers model of each family and ours on its weights."""
    return pair_of(request.param)


@pytest.fixture(scope="module")
def llama() -> Pair:
    """The Llama pair alone."""
    return pair_of("llama")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sound GGUF file with three kinds of grids."""
    storage = {"": "Q4_1", "token_embd.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0"}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", tiny(), "llama", storage)
