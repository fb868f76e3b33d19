"""Reports of hand-made answers, and of the real engine, whose counts are those of stats.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.scripted import answered, items, measured, reported
from toys import DRAFTERS, RULES, shared_target

from draftproof.bench.compare import Plan, measure
from draftproof.bench.ours import EngineMethod
from draftproof.bench.report import report
from draftproof.engine import Engine
from draftproof.stats import Stats
from draftproof.types import InputError, SamplingParams

FIELDS = {
    "prompts", "tokens", "speedup", "low", "high", "verdict", "decode_speedup", "predicted_speedup",
    "predicted_from_lengths", "tokens_per_s", "first_token_seconds", "mean_acceptance_length", "alpha", "coverage",
    "cost_ratio_c",
}  # fmt: skip


def _entry(made: dict[str, Any], name: str) -> Any:
    return next(one for one in made["methods"] if one["name"] == name)


def test_speedup_is_wall_time_over_wall_time_and_decoding_lies_behind_the_first_token() -> None:
    made = reported(items(chat=2, code=1), plain=answered(4.0, first=1.0), fast=answered(2.0, first=1.5))
    fast = _entry(made, "fast")
    for category in fast["categories"].values():
        assert set(category) == FIELDS
        assert (category["speedup"], category["low"], category["high"]) == (2.0, 2.0, 2.0)
        assert category["decode_speedup"] == pytest.approx((4 - 1) / (2 - 1.5))
        assert (category["verdict"], category["first_token_seconds"], category["tokens_per_s"]) == ("faster", 1.5, 2.0)
    assert fast["geomean_speedup"] == pytest.approx(2.0) and fast["same_tokens"]
    assert fast["tokens_per_s"] == pytest.approx(2.0) and fast["decode_tokens_per_s"] == pytest.approx(3 / 0.5)
    assert [one["prompts"] for one in fast["categories"].values()] == [2, 1]


def test_the_baseline_stands_first_and_is_1() -> None:
    made = reported(items(chat=3), null=answered(3.0), other=answered(1.0))
    assert (made["baseline"], made["methods"][0]["name"]) == ("null", "null")
    plain = made["methods"][0]
    assert (plain["geomean_speedup"], plain["low"], plain["high"]) == (1.0, 1.0, 1.0)
    assert plain["verdict"] == "no measurable difference"


def test_equal_methods_with_noise_are_no_measurable_difference() -> None:
    noise = [1.0, 1.06, 0.97, 1.02, 0.95, 1.04, 0.99, 1.01]
    made = measured(
        items(chat=4, code=4), 6,
        plain=lambda prompt, call: answered(noise[call % 8]),
        other=lambda prompt, call: answered(noise[(3 * call + prompt[0]) % 8]),
    )  # fmt: skip
    other = _entry(report(made, ["plain", "other"]), "other")
    assert other["verdict"] == "no measurable difference"
    assert other["low"] < 1 < other["high"] and other["high"] - other["low"] < 0.2


def test_pairs_cancel_a_machine_that_slows_down() -> None:
    made = measured(
        items(chat=3), 5,
        plain=lambda prompt, call: answered(3.0 * 1.2**call),
        fast=lambda prompt, call: answered(2.0 * 1.2**call),
    )  # fmt: skip
    (category,) = _entry(report(made, ["plain", "fast"]), "fast")["categories"].values()
    assert category["low"] == pytest.approx(1.5) == category["high"]


def test_tokens_that_differ_are_reported_and_lengths_are_made_comparable() -> None:
    made = reported(items(chat=1), plain=answered(4.0, (1, 2, 3, 4)), other=answered(4.0, (1, 2, 9, 4, 5, 6, 7, 8)))
    other = _entry(made, "other")
    assert not other["same_tokens"] and other["geomean_speedup"] == pytest.approx(2.0)
    assert made["answers"][0]["methods"]["other"]["first_difference"] == 2
    assert made["answers"][0]["methods"]["plain"]["first_difference"] is None
    shorter = reported(items(chat=1), plain=answered(4.0, (1, 2, 3)), other=answered(4.0, (1, 2)))
    assert shorter["answers"][0]["methods"]["other"]["first_difference"] == 2


def test_answers_keep_the_measured_times() -> None:
    (answer,) = reported(items(chat=1), repeats=3, plain=answered(4.0, first=1.0))["answers"]
    assert answer["methods"]["plain"] == {
        "tokens": [4] * 3, "seconds": [4.0] * 3, "first_seconds": [1.0] * 3, "first_difference": None
    }  # fmt: skip


def test_a_prompt_without_tokens_is_left_out_and_named() -> None:
    prompts = items(chat=2)
    made = measured(
        prompts, 2, plain=lambda p, call: answered(1.0), other=lambda p, call: answered(1.0, () if p[0] else (1,))
    )
    result = report(made, ["plain", "other"])
    assert (result["without_tokens"], result["prompts"]) == (["chat-1"], 1)
    with pytest.raises(InputError, match="nothing to compare"):
        reported(prompts, plain=answered(1.0, ()))


def test_a_method_that_tells_no_steps_has_no_numbers_of_them() -> None:
    other = _entry(reported(items(chat=2), plain=answered(2.0), other=answered(1.0)), "other")
    (category,) = other["categories"].values()
    nothing = ("mean_acceptance_length", "alpha", "coverage", "cost_ratio_c", "predicted_speedup", "decode_speedup")
    assert all(category[name] is None for name in nothing)
    assert other["speculation"] is other["timing"] is None and not other["acceptance_by_position"]


@pytest.mark.parametrize("drafter", ["ngram", "model", "exit", "model-tree"])
def test_counts_are_those_of_stats(drafter: str) -> None:
    target = shared_target()
    params = SamplingParams(temperature=1.0)
    engines = {
        "null": Engine(target, DRAFTERS["null"](target, 4), RULES["coupled"]()),
        drafter: Engine(target, DRAFTERS[drafter](target, 4), RULES["tree"]()),
    }
    methods = [EngineMethod(name, engine, params) for name, engine in engines.items()]
    prompts = [replace(item, tokens=(0, 1, 0, 1, *item.tokens)) for item in items(chat=2, code=2)]
    made = report(measure(methods, prompts, Plan(24, repeats=2)), list(engines), {1: 1.0, 17: 2.0})
    direct = {
        item: Stats.of(engines[drafter].generate(item.tokens, replace(params, max_tokens=24, seed=0)))
        for item in prompts
    }
    entry = _entry(made, drafter)
    for category, numbers in entry["categories"].items():
        stats = Stats.pooled(one for item, one in direct.items() if item.category == category)
        assert stats.draft_tokens > 0
        assert numbers["mean_acceptance_length"] == stats.mean_acceptance_length
        assert numbers["alpha"] == pytest.approx(stats.alpha) and numbers["coverage"] == stats.coverage
        assert numbers["tokens"] == stats.tokens
        assert numbers["predicted_speedup"] > 0 and numbers["predicted_from_lengths"] > 0
    whole = Stats.pooled(direct.values())
    rates = {int(depth): one["rate"] for depth, one in entry["acceptance_by_position"].items()}
    assert rates == whole.conditional_acceptance()
    assert entry["speculation"]["num_draft_tokens"] == 2 * whole.draft_tokens
    stages = {name: entry["timing"][name] for name in ("draft", "target", "sampling", "verify", "rollback", "other")}
    assert sum(stages.values()) == pytest.approx(entry["timing"]["total"])
    assert entry["timing"]["total"] <= entry["timing"]["wall"]
