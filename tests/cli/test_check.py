"""check: its forecast, and the warning that a later run takes from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.calls import ESCAPE, Call

from draftproof import catalog
from draftproof.bench import forecast
from draftproof.bench.estimates import Estimate
from draftproof.bench.forecast import Forecast, Length
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.entries import possible
from draftproof.stats import Stats

SHORT = ("--max-tokens", "8")
TARGET = "toy:3,vocab=40"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    return tmp_path


def test_every_drafter_the_target_can_have_is_forecast(call: Call) -> None:
    done = call("check", TARGET, *SHORT, "--json")
    seen = done.json["forecast"]
    model = catalog.load_model(TARGET).model
    assert done.code == 0 and done.json["forecast_note"] is None
    assert [one["drafter"] for one in seen["drafters"]] == possible(catalog.drafters(), model.can)
    assert len(seen["prompts"]) == 20 and seen["max_tokens"] == 8 and seen["temperature"] == 0
    for one in seen["drafters"]:
        assert [length["gamma"] for length in one["lengths"]][:2] == ["auto", "1"]
        assert one["gamma"] in {length["gamma"] for length in one["lengths"]}
        assert len(one["verify_seconds"]) == 25 and one["plain_tokens_per_s"] > 0 and one["cost_ratio_c"] >= 0
        assert all(0 <= rate <= 1 for rate in one["acceptance_by_position"].values())
        for length in one["lengths"]:
            assert length["low"] <= length["speedup"] <= length["high"] and len(length["categories"]) == 5
            assert length["verdict"] and length["mean_acceptance_length"] >= 1
    advice = seen["recommended"]
    assert advice["command"].startswith(f"draftproof generate --target {TARGET} ")
    assert (advice["drafter"] is None) == advice["command"].endswith("--no-speculative")


def test_a_drafter_that_is_named_is_forecast_alone_with_the_length_asked_for(call: Call) -> None:
    done = call("check", TARGET, "model:toy:2,vocab=40,gamma=7", *SHORT, "--temperature", "0.8", "--json")
    seen = done.json["forecast"]
    (one,) = seen["drafters"]
    assert one["drafter"] == "model:toy:2,vocab=40" and "7" in {length["gamma"] for length in one["lengths"]}
    assert seen["recommended"]["rule"] in (None, "coupled") and seen["temperature"] == 0.8


def test_for_readers_it_fits_80_columns_and_ends_in_a_command(call: Call) -> None:
    done = call("check", TARGET, *SHORT)
    *lines, command = done.out.splitlines()
    assert done.code == 0 and not ESCAPE.search(done.out) and all(len(line) <= 80 for line in lines)
    assert command.startswith(f"  draftproof generate --target {TARGET}") and "ngram+lowbit" in done.out
    assert "Forecast of decoding: 20 prompts" in done.out and "Recommended: " in done.out


def test_without_a_forecast_nothing_is_run(call: Call, own_cache: Path) -> None:
    done = call("check", TARGET, "--no-forecast", "--json")
    assert done.code == 0 and done.json["forecast"] is None and not list(own_cache.iterdir())
    assert "Forecast" not in call("check", TARGET, "--no-forecast").out


@pytest.mark.parametrize(
    ("target", "draft", "why"),
    [
        ("toy:1,context=30", "ngram", "every prompt is longer"),
        ("toy:1", "ngram:width=3", "bench run"),
        ("toy:1", "toy:2,gamma=99", "from 1 to 24"),
    ],
)
def test_what_cannot_be_forecast_is_said(call: Call, target: str, draft: str, why: str) -> None:
    done = call("check", target, draft, *SHORT, "--json")
    assert done.code == 0 and done.json["forecast"] is None and why in done.json["forecast_note"]
    assert "no forecast: " in call("check", target, draft, *SHORT).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("toy:1", "ngram:gamma=x"),
        ("toy:1", "toy:2,gamma=x"),
        ("toy:1", "model:toy:2,children=3,gamma=0.5"),
        ("toy:1", "nonsense"),
        ("toy:1", "--temperature", "-1"),
        ("toy:1", "--max-tokens", "1"),
        ("toy:1", "--threads", "0"),
    ],
)
def test_nonsense_ends_with_code_2(call: Call, arguments: tuple[str, ...]) -> None:
    done = call("check", *arguments, *(SHORT if "--max-tokens" not in arguments else ()))
    assert done.code == 2 and "Traceback" not in done.err


def remembered(value: float) -> None:
    """What check would have written down of early-exit on this target."""
    length = Length(None, Estimate(value, value - 0.05, value + 0.05), {}, Stats())
    made = Forecast("early-exit:layer=1", Costs(Curve(((1, 1.0),))), (length,))
    forecast.remember(catalog.load_model(TARGET).model, 0.0, [made])


@pytest.mark.parametrize(("value", "warned"), [(0.8, True), (0.97, False), (1.5, False)])
def test_a_run_warns_where_the_interval_lies_below_one(call: Call, value: float, warned: bool) -> None:
    remembered(value)
    options = ("--target", TARGET, "--drafter", "early-exit:layer=1,gamma=auto", "--max-tokens", "9", "--json")
    done = call("generate", "ab", *options)
    said = [sentence for sentence in done.json["warnings"] if "to be slower than plain decoding" in sentence]
    assert ("to be slower than plain decoding" in done.err) == warned == bool(said)
    assert ("to be slower" in call("chat", *options, stdin=b"ab\n").err) == warned
    assert "to be slower" not in call("generate", "ab", *options, "--no-speculative").err
    assert "to be slower" not in call("generate", "ab", *options, "--temperature", "1").err
