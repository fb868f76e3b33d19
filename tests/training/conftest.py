"""A random target and a draft vocabulary."""

from __future__ import annotations

import pytest
import torch
from models.hf_models import VOCABULARY, build
from torch import Tensor

from draftproof.catalog import Loaded
from draftproof.models.hf import HfModel


@pytest.fixture(scope="module")
def target() -> Loaded:
    """A random Llama."""
    return Loaded(HfModel.wrap(build("llama"), "llama"), None)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    """All tokens but every seventh can be drafted."""
    return torch.tensor([token for token in range(VOCABULARY) if token % 7])
