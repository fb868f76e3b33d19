"""Settings for every test: one thread, no network, no deadlines."""

from __future__ import annotations

import os

# Set before transformers is imported by any test.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("draftproof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In continuous integration the same examples every time, so that a red run is a change of the code.
settings.register_profile("ci", settings.get_profile("draftproof"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "draftproof")
