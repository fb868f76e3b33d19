"""The commands on the demo's model; it is fetched on the first run."""

from __future__ import annotations

import pytest
from cli.calls import Call

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("drafter", ["ngram", "early-exit:layer=10"])
def test_demo_gives_the_same_tokens_in_float32(call: Call, drafter: str) -> None:
    done = call("demo", "--dtype", "float32", "--drafter", drafter, "--max-tokens", "24", "--json")
    assert done.code == 0 and done.json["same_tokens"], done.json["summary"]


def test_check_knows_the_memory_of_a_real_model(call: Call) -> None:
    from draftproof.cli.setup import demo_folder

    report = call("check", demo_folder(), demo_folder(), "--no-forecast", "--json").json
    memory = report["target"]["memory"]
    assert report["vocabularies"] == "same" and memory["kv_full_context"] == memory["kv_per_token"] * 8192
