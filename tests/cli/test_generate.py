from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli.calls import ESCAPE, TOY, Call
from hypothesis import given
from hypothesis import strategies as st

from draftproof.batch import Job, generate, job_of, run_jobs
from draftproof.catalog import load_engine
from draftproof.cli.options import ModelOptions, SamplingOptions
from draftproof.cli.setup import Watch
from draftproof.prompts import bundled
from draftproof.run import Reply, stream, tokenizer
from draftproof.stats import Stats
from draftproof.types import InputError, SamplingParams, Step

SPECULATION = {
    "num_spec_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "mean_acceptance_length",
    "expected_acceptance_length",
    "draft_acceptance_rate",
    "alpha",
    "acceptance_histogram",
}
DRAFTERS = ("null", "ngram:min=1", "early-exit:layer=3,gamma=3", "model:toy:3,gamma=2", "early-exit:layer=2,shape=2x2")


def test_json_is_one_object_whose_parts_agree(call: Call) -> None:
    done = call(
        "generate", "abcab", *TOY, "--drafter", "ngram:min=1", "--max-tokens", "60", "--logprobs", "2", "--json"
    )
    (report,) = done.lines
    assert done.code == 0 and set(report["speculation"]) >= SPECULATION
    assert report["finish_reason"] == "length" and len(report["token_ids"]) == 60 == len(report["logprobs"])
    assert report["usage"] == {"prompt_tokens": 3, "completion_tokens": 60, "total_tokens": 63}
    assert [entry["token"] for entry in report["logprobs"]] == report["token_ids"]
    assert all(entry["logprob"] == entry["top"][0]["logprob"] for entry in report["logprobs"]), "greedy takes the best"
    counts = report["speculation"]
    assert counts["num_accepted_draft_tokens"] + counts["num_spec_steps"] + 1 >= 60
    assert sum(counts["acceptance_histogram"].values()) == counts["num_spec_steps"]
    assert report["timing"]["total"] <= report["timing"]["wall"]
    assert report["timing"]["tokens_per_s"] == pytest.approx(60 / report["timing"]["wall"])
    assert (report["target"], report["drafter"], report["rule"], report["gamma"]) == ("toy:3", "ngram", "coupled", 5)
    assert report["drafting_off"] is None and isinstance(report["seed"], int)


def test_text_goes_to_stdout_and_talk_to_stderr(call: Call) -> None:
    plain = call("generate", "abcab", *TOY, "--max-tokens", "30")
    report = call("generate", "abcab", *TOY, "--max-tokens", "30", "--json").json
    assert plain.out == report["text"] + "\n"
    status, statistics = plain.err.splitlines()[0], plain.err.splitlines()[-1]
    for part in ("target toy:3", "drafter ngram (γ 5)", "rule coupled (auto)", "cpu"):
        assert part in status
    assert "30 tokens" in statistics and "target calls" in statistics and "tokens/s" in statistics


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("stop", [(), ("--stop", "b", "--stop", "ca")])
def test_streamed_text_is_the_text(call: Call, drafter: str, stop: tuple[str, ...]) -> None:
    arguments = ("generate", "abcab", *TOY, "--drafter", drafter, "--temperature", "1", "--seed", "5", *stop)
    assert call(*arguments).out.removesuffix("\n") == call(*arguments, "--json").json["text"].removesuffix("\n")


@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--rule", "coupled"), ("--repetition-penalty", "1.3")])
def test_drafters_change_the_counts_and_not_the_tokens(call: Call, sampling: tuple[str, ...]) -> None:
    arguments = ("generate", "abcab", *TOY, "--seed", "11", "--max-tokens", "80", *sampling, "--json")
    reports = [call(*arguments, "--drafter", drafter).json for drafter in DRAFTERS]
    assert len({tuple(report["token_ids"]) for report in reports}) == 1
    assert reports[0]["speculation"]["num_draft_tokens"] == 0 < reports[2]["speculation"]["num_accepted_draft_tokens"]


def test_colours_only_where_wanted(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", "abcab", *TOY, "--drafter", "early-exit:layer=3", "--max-tokens", "40")
    piped = call(*arguments)
    coloured = call(*arguments, "--color")
    assert not ESCAPE.search(piped.out + piped.err)
    assert ESCAPE.search(coloured.out) and ESCAPE.sub("", coloured.out) == piped.out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not ESCAPE.search(call(*arguments, "--no-color").out)


@pytest.mark.parametrize("source", ["argument", "file", "pipe", "dash", "file dash"])
def test_a_prompt_may_come_from_anywhere(call: Call, tmp_path: Path, source: str) -> None:
    text = "abc\nab"
    file = tmp_path / "prompt.txt"
    file.write_text(text + "\n")
    given = {"argument": [text], "file": ["--file", str(file)], "dash": ["-"], "file dash": ["--file", "-"], "pipe": []}
    done = call("generate", *given[source], *TOY, "--json", stdin=f"{text}\n".encode())
    assert done.json["token_ids"] == call("generate", text, *TOY, "--json").json["token_ids"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--no-speculative",), "--no-speculative was given"),
        (("--drafter", "null"), "the null drafter proposes nothing"),
        (("--gamma", "0"), "--gamma 0 was given"),
        (("--max-tokens", "2"), "leaves no room"),
    ],
)
def test_the_reason_why_drafting_is_off_is_given(call: Call, options: tuple[str, ...], reason: str) -> None:
    done = call("generate", "ababab", *TOY, *options, "--json")
    assert reason in done.err.splitlines()[0] and reason in done.json["drafting_off"]
    assert done.json["speculation"]["num_draft_tokens"] == 0 and "warning" not in done.err


def test_defaults_are_those_of_the_library() -> None:
    assert SamplingOptions().params(ModelOptions()) == SamplingParams()


def test_a_last_step_may_have_tokens_and_an_error() -> None:
    engine = load_engine("toy:3,vocab=40", "null")
    reply = Reply(engine, [1], SamplingParams(max_tokens=8))
    tokens = tokenizer(engine).encode("abc")
    origins = ("accepted",) * len(tokens)
    pieces = reply.add(Step(tuple(tokens), origins, finish_reason="error", error="none can follow."), 1.0)
    assert "".join(piece.text for piece in pieces) == reply.text == "abc"
    assert (reply.error, reply.stats.tokens) == ("none can follow.", len(tokens))


def test_ids_of_a_prompt_file_are_taken_as_they_are(call: Call, tmp_path: Path) -> None:
    ids = tokenizer(load_engine("toy:3,vocab=40", "null")).encode("abcab")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"id": "x", "token_ids": ids}) + '\n"abcab"\n')
    first, second = call("generate", "--prompts", str(file), *TOY, "--raw", "--max-tokens", "9").lines
    assert (first["id"], first["token_ids"]) == ("x", second["token_ids"])


def test_a_batch_begins_every_conversation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, encoded = load_engine("toy:3,vocab=40", "null"), []
    job = Job(lambda replies: encoded.append(1) or [1, 2])  # type: ignore[func-returns-value]
    assert len(list(run_jobs(engine, [job] * 3, SamplingParams(max_tokens=2), max_batch=2))) == 3 == len(encoded)


@pytest.mark.parametrize("gamma", [1, 7])
def test_gamma_limits_the_draft(call: Call, gamma: int) -> None:
    arguments = ("generate", "abcab", *TOY, "--drafter", "early-exit:layer=3", "--gamma", str(gamma), "--json")
    report = call(*arguments, "--max-tokens", "30").json
    depths = [int(length) for length in report["speculation"]["acceptance_histogram"]]
    assert max(depths) <= gamma == report["gamma"]


def _drafted(accepted: int) -> Step:
    return Step((1,) * (accepted + 1), ("plain",) * (accepted + 1), num_draft_tokens=4, num_accepted_tokens=accepted)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40))
def test_the_watch_warns_once_after_32_drafted_steps_without_an_accepted_token(accepted: list[int], start: int) -> None:
    watch = Watch()
    for number in [0] * start + accepted + [0] * 40:
        watch.see(_drafted(number))
    first_32 = ([0] * start + accepted + [0] * 40)[:32]
    assert len(watch.warnings) == (not any(first_32))


def test_pooled_counts_are_those_of_all_steps() -> None:
    steps = [[_drafted(1), _drafted(0)], [Step((1,), ("plain",), prefill=True)], [replace(_drafted(2), drafter="x")]]
    pool = Stats.pooled(Stats.of(some) for some in steps)
    assert pool == Stats.of([step for some in steps for step in some])
    assert pool.mean_accepted_length == 1 and Stats.pooled([]) == Stats()


def test_a_drafter_that_never_finds_anything_is_named(call: Call) -> None:
    done = call("generate", "a", *TOY, "--drafter", "ngram:min=30", "--max-tokens", "20", "--json")
    assert done.err.count("warning:") == 1 and done.json["warnings"] == [
        "no step had a draft: the drafter found nothing to propose."
    ]
    watch = Watch()
    watch.end(Stats.of([_drafted(0)] * 3), "off")
    assert not watch.warnings


def _file(tmp_path: Path) -> Path:
    rows = [
        {"id": "a", "category": "x", "prompt": "abcab"},
        "cab",
        {"id": "b", "category": "x", "turns": ["ab", "ba", "c"]},
        {"messages": [{"role": "user", "content": "abab"}]},
        {"id": 7, "turns": ["bcbcbcbc"]},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.mark.parametrize("drafter", ["null", "ngram:min=1", "early-exit:layer=3,shape=2x2"])
@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--stop", "ab")])
def test_a_batch_gives_what_each_prompt_gives_alone(
    call: Call, tmp_path: Path, drafter: str, sampling: tuple[str, ...]
) -> None:
    options = (*TOY, "--drafter", drafter, "--seed", "4", "--max-tokens", "25", *sampling, "--json")
    done = call("generate", "--prompts", str(_file(tmp_path)), *options)
    replies, summary = done.lines[:-1], done.json
    assert done.code == 0
    assert [(r["id"], r["turn"]) for r in replies] == [
        ("a", 0),
        ("", 0),
        ("b", 0),
        ("b", 1),
        ("b", 2),
        ("", 0),
        ("7", 0),
    ]
    # The toy's template joins the messages, so a conversation is the text of all of them.
    texts = ["abcab", "cab", "ab", "ab" + replies[2]["text"] + "ba", None, "abab", "bcbcbcbc"]
    for reply, text in zip(replies, texts, strict=True):
        if text is not None and "\ufffd" not in text:
            alone = call("generate", text, *options).json
            assert (alone["token_ids"], alone["text"]) == (reply["token_ids"], reply["text"])
    assert (summary["prompts"], summary["replies"]) == (5, 7)
    assert summary["usage"]["completion_tokens"] == sum(len(reply["token_ids"]) for reply in replies)
    assert set(summary["categories"]) == {"x", ""} and set(summary["speculation"]) >= SPECULATION


@pytest.mark.parametrize("max_batch", [1, 2, 64])
def test_the_batch_size_changes_nothing(call: Call, tmp_path: Path, max_batch: int) -> None:
    arguments = ("generate", "--prompts", str(_file(tmp_path)), *TOY, "--max-tokens", "20", "--seed", "1")
    one, other = call(*arguments), call(*arguments, "--max-batch", str(max_batch))
    assert [(r["text"], r["token_ids"]) for r in one.lines] == [(r["text"], r["token_ids"]) for r in other.lines]


def test_a_conversation_reuses_what_it_has_read(tmp_path: Path) -> None:
    engine = load_engine("toy:3,vocab=40", "null")
    prompt = next(prompt for prompt in bundled("chat") if prompt.replies == 2)
    job = job_of(tokenizer(engine), prompt)
    before = engine.target.fed  # type: ignore[attr-defined]
    ((first, second),) = run_jobs(engine, [job], SamplingParams(max_tokens=10))
    fed = engine.target.fed - before  # type: ignore[attr-defined]
    # The last token of a context is always read again; the reply may be spelt by other tokens than it was made of.
    assert fed <= second.prompt_tokens + 2 * 10 + 2 and second.prompt_tokens > first.prompt_tokens


def test_raw_refuses_conversations(call: Call, tmp_path: Path) -> None:
    done = call("generate", "--prompts", str(_file(tmp_path)), *TOY, "--raw")
    assert done.code == 2 and "line 3" in done.err and done.err.count("\n") == 1


def test_a_reply_that_cannot_go_on_ends_alone(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"a"\n"ab"\n')
    options = ("--target", "toy:1,vocab=2", "--no-repeat-ngram", "1", "--max-tokens", "3", "--json")
    done = call("generate", "--prompts", str(file), *options)
    assert done.code == 2 and "2 of 2 replies" in done.err
    assert [reply["finish_reason"] for reply in done.lines[:-1]] == ["error", "error"]


def test_a_conversation_that_outgrows_the_context_ends_alone(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"ab"\n{"turns": ["ab", "abc", "abcd"]}\n"ba"\n')
    options = ("--target", "toy:1,context=60", "--max-tokens", "30", "--json")
    done = call("generate", "--prompts", str(file), *options)
    *replies, summary = done.lines
    first, *conversation, last = replies
    assert done.code == 2 and f"1 of {len(replies)} replies could not be finished: line 2 of {file}" in done.err
    assert [first["finish_reason"], last["finish_reason"]] == ["length", "length"]
    assert conversation[-1]["finish_reason"] == "error" and "context 60" in conversation[-1]["error"]
    assert conversation[-1]["token_ids"] == [] and conversation[-1]["seed"] is None
    assert all(reply["finish_reason"] == "length" for reply in conversation[:-1])
    assert summary["replies"] == len(replies) and summary["prompts"] == 3


def test_the_library_does_what_the_command_does(call: Call) -> None:
    engine = load_engine("toy:3,vocab=40", "ngram")
    params = SamplingParams(max_tokens=40, stop_strings=("ba",), seed=2, temperature=1.0)
    pieces = list(stream(engine, "abcab", params))
    options = ("--max-tokens", "40", "--stop", "ba", "--seed", "2", "--temperature", "1", "--json")
    report = call("generate", "abcab", *TOY, *options).json
    (result,) = generate(engine, ["abcab"], params)
    assert "".join(piece.text for piece in pieces) == result.text == report["text"]
    assert list(result.token_ids) == report["token_ids"]
    (from_ids,) = generate(engine, [tokenizer(engine).encode("abcab")], params)
    (from_messages,) = generate(engine, [[{"role": "user", "content": "abcab"}]], params)
    assert result.token_ids == from_ids.token_ids == from_messages.token_ids


def test_a_stream_that_is_closed_frees_its_caches() -> None:
    engine = load_engine("toy:3,vocab=40", "null")
    pieces = stream(engine, "abcab", SamplingParams())
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(pieces)
    with pytest.raises(InputError, match="empty"):
        next(stream(engine, "", SamplingParams()))


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_hardly_any_tokens(call: Call, max_tokens: int) -> None:
    done = call("generate", "ab", *TOY, "--max-tokens", str(max_tokens), "--json")
    assert done.code == 0 and len(done.json["token_ids"]) == max_tokens == done.json["usage"]["completion_tokens"]
