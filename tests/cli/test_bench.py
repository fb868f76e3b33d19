"""`bench cost`, `bench run` and `plot` on toy models; no time is asserted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.calls import ESCAPE, TOY, Call

from draftproof.bench import cost
from draftproof.bench.methods import Answer
from draftproof.bench.ours import EngineMethod

SMALL = ("--max-tokens", "12", "--repeats", "2", "--per-category", "1")
EXIT = ("--drafter", "early-exit:layer=3")
COST = ("--tokens", "1-3,6", "--contexts", "10,20", "--repeats", "2")


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_READ_BYTES", 1 << 20)


def test_run_in_json_has_its_fields(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = call("bench", "run", *TOY, *EXIT, "--drafter", "ngram", *SMALL, "--json", "--output", str(file))
    (report,) = done.lines
    assert done.code == 0 and json.loads(file.read_text()) == report and list(tmp_path.iterdir()) == [file]
    assert [one["name"] for one in report["methods"]] == ["null", "early-exit:layer=3", "ngram"]
    assert [one["rule"] for one in report["methods"]] == ["coupled", "block", "coupled"]
    assert (report["kind"], report["baseline"], report["repeats"], report["prompts"]) == ("run", "null", 2, 5)
    for one in report["methods"]:
        assert one["same_tokens"] and one["tokens_per_s"] > 0 and one["low"] <= one["geomean_speedup"] <= one["high"]
        assert set(one["categories"]) == set(report["categories"]) and len(one["categories"]) == 5
        for category in one["categories"].values():
            assert (
                category["low"] <= category["speedup"] <= category["high"] and category["mean_acceptance_length"] >= 1
            )
    drafted = report["methods"][1]
    assert drafted["speculation"]["num_draft_tokens"] > 0 and drafted["geomean_predicted_speedup"] > 0
    assert drafted["acceptance_by_position"]["1"]["rate"] == drafted["speculation"]["conditional_acceptance"]["1"]
    assert {"commit", "cpu", "cores", "versions", "command", "date", "machine"} <= set(report["provenance"])
    assert report["cost"]["ratio"]["1"] == 1 and any("Fewer than 5 repeats" in note for note in report["notes"])


def test_run_for_readers_fits_80_columns(call: Call) -> None:
    done = call("bench", "run", *TOY, *EXIT, "--drafter", "null", *SMALL)
    assert done.code == 0 and not ESCAPE.search(done.out + done.err)
    assert all(len(line) <= 80 for line in done.out.splitlines())
    for part in (
        "null (2)",
        "speed-up",
        "rewriting",
        "geometric mean",
        "Where the time went",
        "from α",
        "Fewer than 5",
    ):
        assert part in done.out
    assert "null against early-exit:layer=3 (γ 5, block)" in done.err


def test_markdown_is_tables(call: Call) -> None:
    done = call("bench", "run", *TOY, *EXIT, *SMALL, "--markdown")
    rows = [line for line in done.out.splitlines() if line.startswith("|")]
    assert done.code == 0 and "| category | n | null tokens/s | tokens/s | speed-up | 95 % | finding |" in rows
    assert all(row.endswith(" |") for row in rows) and not ESCAPE.search(done.out)
    shown = call("bench", "cost", "toy:1", "toy:2", *COST, "--markdown").out
    assert "| toy:2 | 20 |" in shown and "| tokens | behind 10: ms |" in shown


def test_prompts_of_a_file_by_category(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines: list[dict[str, Any]] = [
        {"id": "a", "category": "one", "turns": ["abcab", "second turn"]},
        {"category": "one", "prompt": "bcabc"},
        {"id": "c", "category": "two", "prompt": "cabca"},
        {"id": "long", "category": "two", "prompt": "abc" * 90},
        {"prompt": "no category"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    target = ("--target", "toy:3,vocab=40,context=60")
    report = call("bench", "run", *target, "--prompts", str(file), *SMALL[:4], "--json").json
    assert report["categories"] == {"one": 2, "two": 1, "prompts": 1} and report["left_out"] == ["long"]
    assert [one["id"] for one in report["answers"]] == ["a", "one-2", "c", "prompts-1"]
    assert report["answers"][0]["prompt_tokens"] <= 5, "the first turn alone"
    assert any("too long for the context: long" in note for note in report["notes"])
    some = call("bench", "run", *target, "--prompts", str(file), "--category", "one", *SMALL, "--json").json
    assert [one["id"] for one in some["answers"]] == ["a"]


def test_with_a_temperature_the_coupled_rule_still_writes_plain_decodings_tokens(call: Call) -> None:
    options = (*EXIT, *SMALL, "--temperature", "1", "--rule", "coupled", "--json")
    report = call("bench", "run", *TOY, *options).json
    assert all(one["same_tokens"] for one in report["methods"]) and report["temperature"] == 1


def test_ctrl_c_reports_what_is_complete(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer, calls = EngineMethod.answer, []

    def interrupting(self: EngineMethod, prompt: Sequence[int], max_tokens: int, seed: int = 0) -> Answer:
        calls.append(1)
        if len(calls) == 2 + 2 * 7 + 1:
            raise KeyboardInterrupt
        return answer(self, prompt, max_tokens, seed)

    monkeypatch.setattr(EngineMethod, "answer", interrupting)
    file = tmp_path / "run.json"
    done = call("bench", "run", *TOY, *EXIT, *SMALL, "--json", "--output", str(file))
    report = json.loads(file.read_text())
    assert done.code == 130 and report["interrupted"] and report == done.json
    assert [len(one["methods"]["null"]["seconds"]) for one in report["answers"]] == [2, 2, 1, 1, 1]
    assert any("7 of 10 trials" in note for note in report["notes"]) and report["cost"] is None
    calls[:] = [1] * 16
    nothing = call("bench", "run", *TOY, *EXIT, *SMALL, "--output", str(tmp_path / "none.json"))
    assert (nothing.code, nothing.out) == (130, "") and not (tmp_path / "none.json").exists()


def test_ctrl_c_behind_the_last_trial_loses_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupting(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cost, "measure", interrupting)
    done = call("bench", "run", *TOY, *EXIT, *SMALL, "--json")
    assert done.code == 130 and done.json["interrupted"] and done.json["cost"] is None
    assert "10 of 10 trials" in done.json["notes"][0] and len(done.json["answers"]) == 5


def keys(value: Any) -> set[str]:
    """The fields of a report; entries under names of methods, categories and numbers are looked into."""
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys, value.values()))


def test_the_catalogue_of_fields_is_complete(call: Call) -> None:
    catalogue = (Path(__file__).resolve().parents[2] / "results" / "README.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`[^`]+`", catalogue))
    run = call("bench", "run", *TOY, *EXIT, *SMALL, "--json").json
    for report in (run, call("bench", "cost", "toy:1", *COST, "--json").json):
        names = {*report.get("categories", ()), *(one["name"] for one in report.get("methods", ()))}
        for one in (report, *report.get("methods", ())):
            one["provenance"] = {**report["provenance"], "versions": {}}
            one["speculation"] = None
        fields = {key for key in keys(report) - names if not key[0].isdigit()}
        assert not {key for key in fields if not {f"`{key}`", f"`{key}[]`"} & words}


def test_cost_in_json_has_its_fields(call: Call) -> None:
    report = call("bench", "cost", "toy:1", "toy:2,vocab=20", "toy:1", *COST, "--json").json
    assert [one["name"] for one in report["models"]] == ["toy:1", "toy:2,vocab=20", "toy:1 (2)"]
    for one in report["models"]:
        assert list(one["tokens"]) == ["1", "2", "3", "6"] and one["ratio"]["1"] == 1
        assert set(one["by_context"]) == {"10", "20"} and all(seconds > 0 for seconds in one["minimum"].values())
        assert one["achieved_gb_s"] is None and one["bandwidth_gb_s"] > 0
    assert report["bandwidth_gb_s"] > 0 and report["provenance"]["command"] and report["kind"] == "cost"


def test_cost_for_readers_fits_80_columns(call: Call) -> None:
    done = call("bench", "cost", "toy:1", "toy:2,vocab=20", *COST)
    assert done.code == 0 and all(len(line) <= 80 for line in done.out.splitlines())
    for part in ("2: toy:2,vocab=20, median and least of 2", "ratio", "GB/s read from memory"):
        assert part in done.out


def test_plot_draws_beside_the_file_or_into_a_folder(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    run, costs = tmp_path / "run.json", tmp_path / "cost.json"
    call("bench", "run", *TOY, *EXIT, *SMALL, "--output", str(run))
    call("bench", "cost", "toy:1", *COST, "--output", str(costs))
    done = call("plot", str(run), str(costs))
    names = ["run-speedup", "run-acceptance", "cost-cost"]
    expected = [tmp_path / f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    assert done.code == 0 and done.out.splitlines() == [str(path) for path in expected]
    assert all(path.stat().st_size > 1000 for path in expected)
    there = call("plot", str(costs), "--output", str(tmp_path / "new" / "folder"), "--json").json
    assert there["figures"] == [str(tmp_path / "new" / "folder" / f"cost-cost.{kind}") for kind in ("svg", "png")]


BAD = {
    "unknown model": (("bench", "cost", "gpt:4"), "the models are"),
    "missing model": (("bench", "cost", "hf:/no/such/folder"), "/no/such/folder"),
    "tokens of nothing": (("bench", "cost", "toy:1", "--tokens", "0"), "--tokens takes numbers between 1"),
    "tokens of text": (("bench", "cost", "toy:1", "--tokens", "1,x"), "--tokens takes whole numbers"),
    "tokens backwards": (("bench", "cost", "toy:1", "--tokens", "5-2"), "--tokens takes"),
    "endless tokens": (("bench", "cost", "toy:1", "--tokens", "1-99999999999999"), "--tokens takes"),
    "contexts of nothing": (("bench", "cost", "toy:1", "--contexts", ""), "--contexts takes"),
    "context too short": (("bench", "cost", "toy:1,context=64", *COST[:2], "--contexts", "62"), "does not fit"),
    "no repeats": (("bench", "cost", "toy:1", "--repeats", "0"), "--repeats"),
    "unknown drafter": (("bench", "run", *TOY, "--drafter", "oracle"), "the drafters are"),
    "unknown rule": (("bench", "run", *TOY, "--rule", "magic"), "the rules are"),
    "unknown category": (("bench", "run", *TOY, "--category", "poems"), "there are: chat, code"),
    "missing prompts": (("bench", "run", *TOY, "--prompts", "no-such-file"), "no-such-file cannot be read"),
    "prompts too long": (("bench", "run", "--target", "toy:1,vocab=40,context=20"), "every prompt is longer"),
    "no context": (("bench", "run", "--target", "toy:1,vocab=40,context=20", "--max-tokens", "30"), "--max-tokens"),
    "both outputs": (("bench", "run", *TOY, "--json", "--markdown"), "exclude each other"),
    "no such folder": (("bench", "run", *TOY, "--output", "/no/such/folder/x.json"), "cannot be written"),
    "a folder as file": (("bench", "cost", "toy:1", "--output", "/"), "cannot be written"),
    "bench of nothing": (("bench",), "Missing command"),
    "unknown sub-command": (("bench", "race"), "No such command"),
    "plot of nothing": (("plot",), "FILE"),
    "plot of no file": (("plot", "no-such-file"), "no-such-file cannot be read"),
    "plot of another file": (("plot", __file__), "no report of draftproof bench"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_code_2(call: Call, case: str) -> None:
    arguments, part = BAD[case]
    done = call(*arguments)
    (sentence,) = done.err.splitlines()
    assert (done.code, done.out) == (2, "") and part in sentence and sentence.startswith("error: ")


def test_empty_prompts_are_refused(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n")
    assert "holds no prompts" in call("bench", "run", *TOY, "--prompts", str(file)).err


def test_reports_without_their_numbers_are_refused(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    method = {"name": "a", "categories": {}, "acceptance_by_position": {}, "geomean_speedup": None, "low": 1, "high": 1}
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({"kind": "run", "methods": [method, {**method, "name": "b"}], "provenance": {}}))
    done = call("plot", str(file))
    assert done.code == 2 and "numbers are missing" in done.err and done.err.count("\n") == 1
    same = tmp_path / "other"
    same.mkdir()
    (same / "bad.json").write_text(file.read_text())
    assert "the same name" in call("plot", str(file), str(same / "bad.json"), "--output", str(tmp_path)).err
