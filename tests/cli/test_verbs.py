"""chat, demo, check, list, import."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.calls import ESCAPE, TOY, Call

from draftproof import catalog
from draftproof.batch import generate
from draftproof.catalog import Loaded
from draftproof.cli import compare
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.text import Text, letters
from draftproof.types import SamplingParams, Step, Timing


def test_a_piped_chat_answers_line_after_line(call: Call) -> None:
    stdin = b"ab\n\nba\\\nab\n/stats\n/nonsense\n/reset\nab\n/quit\nnever\n"
    done = call("chat", "--target", "toy:3,vocab=30", "--max-tokens", "12", stdin=stdin)
    assert done.code == 0 and not ESCAPE.search(done.out + done.err)
    first, _, third = done.out.splitlines()
    assert first == third, "after /reset the same message gets the same answer"
    for part in ("There is no command /nonsense", "A new conversation", "last reply: 12 tokens", "cut at 12 tokens"):
        assert part in done.err


def test_chat_in_json_is_a_conversation(call: Call, tmp_path: Path) -> None:
    options = (*TOY, "--max-tokens", "12", "--temperature", "1", "--seed", "6", "--json")
    turns = ["abcab", "cab", "bca"]
    done = call("chat", *options, stdin="\n".join(turns).encode())
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"turns": turns}))
    batch = call("generate", "--prompts", str(file), *options)
    assert [reply["token_ids"] for reply in done.lines[:-1]] == [reply["token_ids"] for reply in batch.lines[:-1]]
    details = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in done.lines[:-1]]
    assert details[0] == 0 < details[1] < details[2]
    assert done.json["replies"] == 3 and done.json["drafter"] == "ngram"


def test_chat_counts_as_cached_what_is_not_fed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, fed = ToyModel.forward, []

    def counting(self: ToyModel, segments: Any, *rest: Any) -> Any:
        fed.extend(len(segment.tokens) for segment in segments)
        return forward(self, segments, *rest)

    monkeypatch.setattr(ToyModel, "forward", counting)
    options = (*TOY, "--drafter", "null", "--max-tokens", "8", "--json")
    *replies, _ = call("chat", *options, stdin=b"abcab\ncab\nbca\n").lines
    cached = sum(reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies)
    prompts, new = (sum(reply["usage"][f"{kind}_tokens"] for reply in replies) for kind in ("prompt", "completion"))
    assert sum(fed) == prompts - cached + new - len(replies) and cached > 0


def test_ctrl_c_stops_the_reply_and_not_the_chat(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls, before = Engine.step, [], signal.getsignal(signal.SIGINT)

    def interrupting(self: Engine, requests: Any) -> list[Step]:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self, requests)

    monkeypatch.setattr(Engine, "step", interrupting)
    done = call("chat", *TOY, "--drafter", "null", "--max-tokens", "9", "--json", stdin=b"abcab\nbab\n")
    stopped, whole, _ = done.lines
    assert done.code == 0 and "(stopped)" in done.err
    assert (stopped["finish_reason"], len(stopped["token_ids"])) == ("cancelled", 3)
    assert (whole["finish_reason"], len(whole["token_ids"])) == ("length", 9)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_cuts_the_call_and_the_cache_is_not_used_again(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = ToyModel.forward, []

    def interrupting(self: ToyModel, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return forward(self, *arguments)

    monkeypatch.setattr(ToyModel, "forward", interrupting)
    done = call("chat", *TOY, "--drafter", "null", "--max-tokens", "9", "--json", stdin=b"abcab\n/reset\nbab\n")
    monkeypatch.undo()
    stopped, whole, _ = done.lines
    assert len(stopped["token_ids"]) == 2
    alone = call("generate", "bab", *TOY, "--drafter", "null", "--max-tokens", "9", "--json").json
    assert whole["token_ids"] == alone["token_ids"]


def test_demo_in_json_compares_both(call: Call) -> None:
    done = call("demo", *TOY, "--drafter", "early-exit:layer=3", "--max-tokens", "16", "--json")
    (report,) = done.lines
    assert done.code == 0 and report["same_tokens"] and len(report["prompts"]) == 3
    for prompt in report["prompts"]:
        assert prompt["plain"]["token_ids"] == prompt["speculative"]["token_ids"] and prompt["same_tokens"]
        assert prompt["plain"]["speculation"]["num_draft_tokens"] == 0
        assert prompt["speculative"]["speculation"]["num_draft_tokens"] > 0
        speeds = [prompt[side]["timing"]["tokens_per_s"] for side in ("speculative", "plain")]
        assert prompt["speedup"] == pytest.approx(speeds[0] / speeds[1])
    assert {"chat", "rewriting", "code"} == {prompt["category"] for prompt in report["prompts"]}
    assert report["drafted_step"]["brought"] >= 1 and report["summary"].startswith("Speculation was ")


def test_demo_for_readers_fits_80_columns_and_has_no_escapes_in_a_pipe(call: Call) -> None:
    done = call("demo", *TOY, "--drafter", "early-exit:layer=3", "--max-tokens", "30")
    assert done.code == 0 and not ESCAPE.search(done.out + done.err)
    assert all(len(line) <= 80 for line in done.out.splitlines())
    for part in ("1. chat: ", "2. rewriting: ", "3. code: ", "same", "yes", "Speculation was"):
        assert part in done.out
    coloured = call("demo", *TOY, "--drafter", "early-exit:layer=3", "--max-tokens", "30", "--color").out
    assert "accepted draft token" in coloured and "\x1b[32m" in coloured and "\x1b[94m" in coloured


@pytest.mark.parametrize("threads", [1, 2])
def test_demo_keeps_the_threads_asked_for(call: Call, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        assert call("demo", *TOY, "--max-tokens", "2", "--threads", str(threads), "--json").json["threads"] == threads
        torch.set_num_threads(2)
        assert call("demo", *TOY, "--max-tokens", "2", "--json").json["threads"] in (1, 2)
    finally:
        torch.set_num_threads(before)


def test_demo_without_a_draft_says_so(call: Call) -> None:
    assert "Nothing was drafted" in call("demo", *TOY, "--drafter", "null", "--max-tokens", "4").out


def _comparison(plain_seconds: float, draft_seconds: float) -> compare.Comparison:
    """Four plain steps of a second; two drafted ones that bring two tokens each."""
    made = catalog.load_engine("toy:3,vocab=40", "null")
    (result,) = generate(made, [[1, 2]], SamplingParams(max_tokens=4))
    steps = [Step((1,), ("plain",), timing=Timing(target=1.0))] * 4
    drafted = [Step((1, 2), ("accepted", "bonus"), num_draft_tokens=5, timing=Timing(target=draft_seconds))] * 2
    plain = compare.Run(replace(result, seconds=plain_seconds), tuple(steps))
    return compare.Comparison(
        "x", "chat", plain, compare.Run(replace(result, seconds=2 * draft_seconds), tuple(drafted))
    )


@pytest.mark.parametrize(
    ("draft_seconds", "head"), [(3.0, "Speculation was not faster here: 0.67"), (1.0, "Speculation was 2.00")]
)
def test_the_summary_is_honest_and_gives_the_reason(draft_seconds: float, head: str) -> None:
    comparison = _comparison(4.0, draft_seconds)
    cost = compare.Cost.of([comparison])
    assert cost is not None and (cost.verified, cost.target, cost.step, cost.brought) == (
        6.0,
        draft_seconds,
        draft_seconds,
        2.0,
    )
    assert 0 < cost.drafted <= cost.steps
    text = compare.summary([comparison])[0]
    assert text.startswith(head) and f"took {draft_seconds:.2f} times as long" in text and "brought 2.00 tokens" in text


def test_tokens_that_differ_are_pointed_at() -> None:
    same = _comparison(4.0, 1.0)
    ids = same.plain.result.token_ids
    other = replace(
        same.speculative, result=replace(same.speculative.result, token_ids=(*ids[:2], 39 - ids[2], ids[3]))
    )
    shorter = replace(same.speculative, result=replace(same.speculative.result, token_ids=ids[:3]))
    assert same.first_difference is None
    assert replace(same, speculative=other).first_difference == 2
    assert replace(same, speculative=shorter).first_difference == 3
    assert any("audit paths" in sentence for sentence in compare.summary([replace(same, speculative=other)]))


@pytest.mark.parametrize(
    "draft", ["toy:2", "model:toy:2,gamma=3", "early-exit:layer=2", "ngram:max=3", "lowbit", "ngram+lowbit"]
)
def test_check_of_what_fits(call: Call, draft: str) -> None:
    done = call("check", "toy:1", draft, "--no-forecast")
    spec = f"model:{draft}" if draft == "toy:2" else draft
    assert done.code == 0 and f"usable: --drafter {spec}\n" in done.out and not ESCAPE.search(done.out)


def test_check_gives_the_draft_model_its_own_options(call: Call) -> None:
    report = call("check", "toy:1", "model:toy:2,gamma=3,vocab=20", "--no-forecast", "--json").json
    assert report["draft"]["vocab_size"] == 20 and report["num_differences"] == 4
    assert "model needs what it names" in call("check", "toy:1", "model").err


@pytest.mark.parametrize(("draft", "relation", "count"), [("toy:2", "same", 0), ("toy:2,vocab=20", "n ids differ", 4)])
def test_check_in_json(call: Call, draft: str, relation: str, count: int) -> None:
    report = call("check", "toy:1,context=99", draft, "--no-forecast", "--json").json
    assert (report["usable"], report["vocabularies"], report["num_differences"]) == (True, relation, count)
    assert report["target"]["max_context"] == 99 and report["draft"]["vocab_size"] == 16 + count
    assert [difference["id"] for difference in report["differences"]] == list(range(16, 16 + count))
    assert "rollback" in report["target"]["can"] and report["proposable"] == 16


def test_check_lists_five_ids_with_both_texts(call: Call) -> None:
    done = call("check", "toy:1", "toy:2,vocab=30", "--no-forecast")
    assert "14 ids differ" in done.out and "no token" in done.out
    assert len([line for line in done.out.splitlines() if line.strip()[:2] in {str(i) for i in range(16, 30)}]) == 5


def test_check_of_another_tokenizer_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE({character: i for i, character in enumerate("zyxwvutsrqponmlk")}, []))
    backend.decoder = decoders.ByteLevel()
    texts = iter([letters(16), Text(PreTrainedTokenizerFast(tokenizer_object=backend))])
    monkeypatch.setattr("draftproof.cli.setup.load_target", lambda spec, place: Loaded(ToyModel(1), next(texts)))
    done = call("check", "toy:1", "toy:2", "--json")
    assert (done.code, done.json["usable"], done.json["vocabularies"]) == (2, False, "different tokenizer")


def test_check_of_a_drafter_the_target_cannot_have(call: Call) -> None:
    done = call("check", "toy:1", "early-exit:layer=9")
    assert done.code == 2 and "refused: layer must lie between" in done.out


def test_list_holds_the_catalogue(call: Call) -> None:
    report = call("list", "--json").json
    kinds = {"models": catalog.models(), "drafters": catalog.drafters(), "rules": catalog.rules()}
    for kind, entries in kinds.items():
        assert [entry["name"] for entry in report[kind]] == list(entries)
        assert all(set(row["options"]) == set(entries[row["name"]].options) for row in report[kind])
    shown = call("list").out
    assert all(name in shown for entries in kinds.values() for name in entries) and "bundled:code" in shown


def test_import_prints_the_folder(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def convert(path: str, out_dir: str | None, progress: Any, keep_quantized: bool) -> Path:
        progress("half", 0.5)
        folder = Path(out_dir or path.removesuffix(".gguf"))
        folder.mkdir()
        (folder / "weights").write_bytes(b"12345")
        return folder

    monkeypatch.setattr("draftproof.models.gguf_import.import_gguf", convert)
    done = call("import", "model.gguf", "--out", str(tmp_path / "model"))
    assert (done.code, done.out) == (0, f"{tmp_path / 'model'}\n") and f"hf:{tmp_path / 'model'}" in done.err
    report = call("import", str(tmp_path / "other.gguf"), "--json").json
    assert report == {"folder": str(tmp_path / "other"), "bytes": 5, "spec": f"hf:{tmp_path / 'other'}"}
    report = call("import", str(tmp_path / "kept.gguf"), "--keep-quantized", "--json").json
    assert report["spec"] == f"native:{tmp_path / 'kept'},weights=int4"
