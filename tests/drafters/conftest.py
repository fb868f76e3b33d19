"""Folders with heads that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from drafters import heads
from drafters.eagle_engines import D
from models import native_models
from models.hf_models import VOCABULARY


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets and a head of either layout for each."""
    folder = tmp_path_factory.mktemp("eagle")
    native_models.make("llama", folder / "native")
    for backend, vocab, hidden in (("hf", VOCABULARY, 32), ("native", 203, 64)):
        made, _ = heads.maps(vocab, D)
        three = {**heads.random_tensors(heads.eagle3(vocab, hidden, D)), **made}
        heads.write(folder / backend / "eagle3", three, heads.config(vocab, hidden, draft_vocab_size=D))
        one = heads.random_tensors(heads.eagle1(vocab, hidden))
        heads.write(folder / backend / "eagle1", one, heads.config(vocab, hidden))
    return folder
