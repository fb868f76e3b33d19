"""Checkpoints that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import native_models


@pytest.fixture(scope="session")
def native_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random checkpoint of each family that `native:` computes."""
    root = tmp_path_factory.mktemp("native")
    for family in native_models.FAMILIES:
        native_models.make(family, root / family)
    return {family: root / family for family in native_models.FAMILIES}
