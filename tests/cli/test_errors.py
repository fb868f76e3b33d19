"""Bad input is one sentence on standard error, exit code 2, nothing on standard output."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.calls import TOY, Call

from draftproof.cli.__main__ import VERBS
from draftproof.engine import Engine
from draftproof.prompts import read

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
ENVIRONMENT = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
BAD = {
    "unknown command": (("genrate",), "Did you mean 'generate'?"),
    "unknown option": (("generate", "hi", "--fil", "x"), "No such option"),
    "not a number": (("generate", "hi", "--top-k", "many"), "--top-k"),
    "two prompts": (("generate", "hi", "there"), "there"),
    "prompt and file": (("generate", "hi", "--file", "x"), "PROMPT and --file exclude each other"),
    "file and prompts": (("generate", "--file", "x", "--prompts", "y"), "--file and --prompts exclude each other"),
    "empty prompt": (("generate", "", *TOY), "the prompt is empty"),
    "empty pipe": (("generate", *TOY), "standard input is empty"),
    "missing file": (("generate", "--file", "no-such-file", *TOY), "no-such-file cannot be read"),
    "folder as file": (("generate", "--file", "/", *TOY), "cannot be read"),
    "missing prompts": (("generate", "--prompts", "no-such-file", *TOY), "no-such-file cannot be read"),
    "unknown category": (("generate", "--prompts", "bundled:poems", *TOY), "rewriting"),
    "unknown model": (("generate", "hi", "--target", "gpt:4"), "the models are"),
    "missing folder": (("generate", "hi", "--target", "hf:/no/such/folder"), "/no/such/folder"),
    "unknown model option": (("generate", "hi", "--target", "toy:1,size=4"), "vocab"),
    "unknown drafter": (("generate", "hi", *TOY, "--drafter", "oracle"), "the drafters are: null, ngram"),
    "unknown drafter option": (("generate", "hi", *TOY, "--drafter", "ngram:size=4"), "its options are"),
    "bad drafter value": (("generate", "hi", *TOY, "--drafter", "ngram:gamma=x"), "gamma"),
    "layer too deep": (("generate", "hi", *TOY, "--drafter", "early-exit:layer=4"), "between 1 and 3"),
    "unknown rule": (("generate", "hi", *TOY, "--rule", "magic"), "the rules are: auto"),
    "rule and drafter": (
        ("generate", "hi", *TOY, "--drafter", "ngram:width=2", "--rule", "block"),
        "use the rule tree",
    ),
    "out of range": (("generate", "hi", *TOY, "--top-p", "1.5"), "top_p must lie between"),
    "not a bias": (("generate", "hi", *TOY, "--logit-bias", "3"), "ID=VALUE"),
    "bias of nothing": (("generate", "hi", *TOY, "--logit-bias", "99=1"), "token 99"),
    "bias is no number": (("generate", "hi", *TOY, "--logit-bias", "3=nan"), "must be a number"),
    "bias is infinite": (("generate", "hi", *TOY, "--logit-bias", "3=inf"), "must be a number"),
    "bias overflows": (("generate", "hi", *TOY, "--logit-bias", "3=1e39"), "must be a number"),
    "empty stop": (("generate", "hi", *TOY, "--stop", ""), "stop string"),
    "stop token of nothing": (("generate", "hi", *TOY, "--stop-token", "40"), "token 40"),
    "too many threads": (("generate", "hi", *TOY, "--threads", "3000000000"), "between 1 and 1024"),
    "dtype of a toy": (("generate", "hi", *TOY, "--dtype", "int8"), "no dtype int8"),
    "long folder": (("generate", "hi", "--target", "hf:" + "x" * 5000), "File name too long"),
    "long seed": (("generate", "hi", "--target", "toy:" + "1" * 5000), "toy:SEED"),
    "long GGUF file": (("import", "x" * 5000), "File name too long"),
    "audit of nothing": (("audit",), "Missing command. (draftproof audit --help"),
    "no threads": (("generate", "hi", *TOY, "--threads", "0"), "--threads"),
    "no device": (("generate", "hi", *TOY, "--device", "toaster"), "toaster"),
    "system without template": (("generate", "hi", *TOY, "--system", "be brief", "--raw"), "drop --raw"),
    "logprobs without json": (("generate", "hi", *TOY, "--logprobs", "2"), "add --json"),
    "no batch": (("generate", "--prompts", "bundled", *TOY, "--max-batch", "0"), "--max-batch"),
    "prompt too long": (("generate", "hi" * 9, "--target", "toy:1,vocab=40,context=8"), "shorten the prompt"),
    "all forbidden": (
        ("generate", "a", "--target", "toy:1,vocab=2", "--raw", "--no-repeat-ngram", "1"),
        "no token can",
    ),
    "chat with nothing": (("chat", "--target", "gpt:4"), "the models are"),
    "demo of no tokens": (("demo", *TOY, "--max-tokens", "0"), "at least 1"),
    "check of nothing": (("check",), "target"),
    "import of nothing": (("import", "no-such-file.gguf"), "no-such-file.gguf"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_code_2(call: Call, case: str) -> None:
    arguments, part = BAD[case]
    done = call(*arguments)
    *before, sentence = done.err.splitlines()
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert part in sentence and sentence.startswith("error: ") and sentence.rstrip(")").endswith((".", "?"))
    # Only a text that has begun may stand before the sentence.
    assert (done.out, before) == ("", []) or case == "all forbidden"


@pytest.mark.parametrize(
    "text", ['{"prompt": "a"', '"a" "b"', "[]", "{}", '{"prompt": ""}', '{"prompt": 3}', '{"turns": []}']
)
@pytest.mark.parametrize("before", ['"fine"\n', '"fine"\n\n'])
def test_a_bad_line_of_a_prompt_file_is_named(call: Call, tmp_path: Path, before: str, text: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f"{before}{text}\n")
    done = call("generate", "--prompts", str(file), *TOY)
    assert (done.code, done.out) == (2, "")
    assert f"line {1 + before.count(chr(10))} of {file}" in done.err and done.err.count("\n") == 1


def test_a_prompt_that_cannot_run_stops_the_batch_before_it_begins(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"ab"\n"abababababababababab"\n')
    done = call("generate", "--prompts", str(file), "--target", "toy:1,context=8")
    assert (done.code, done.out) == (2, "") and f"line 2 of {file}" in done.err


@pytest.mark.parametrize("line", ["[" * 200_000, '{"prompt": "a", "id": ' + "[" * 200_000])
def test_a_line_nested_too_deeply_is_named(call: Call, tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"fine"\n{line}\n')
    done = call("generate", "--prompts", str(file), *TOY)
    assert (done.code, done.out) == (2, "") and f"line 2 of {file} is nested too deeply" in done.err


@pytest.mark.parametrize("break_", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line_of_a_file(tmp_path: Path, break_: str) -> None:
    texts = [f"a{break_}b", "second"]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\r\n".join(json.dumps(text, ensure_ascii=False) for text in texts), newline="")
    assert [prompt.turns for prompt in read(file)] == [(text,) for text in texts]


def test_ids_take_no_system_message(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"token_ids": [1]}')
    done = call("generate", "--prompts", str(file), *TOY, "--system", "be brief")
    assert (done.code, done.out) == (2, "") and f"line 1 of {file} holds token ids" in done.err


def test_bytes_that_are_no_text_are_refused(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"caf\xe9")
    assert "not UTF-8" in call("generate", "--file", str(file), *TOY).err
    assert "standard input is not UTF-8" in call("generate", *TOY, stdin=b"caf\xe9").err
    assert "standard input is not UTF-8" in call("chat", *TOY, stdin=b"caf\xe9\n").err
    assert "not valid text" in call("generate", "caf\udce9", *TOY).err


def test_ctrl_c_is_130_and_says_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", interrupted)
    done = call("generate", "ab", *TOY)
    assert done.code == 130 and "Traceback" not in done.err


def test_ctrl_c_loses_no_text_that_was_held_back(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = Engine.step, []
    options = ("generate", "ab", *TOY, "--drafter", "null", "--max-tokens", "6")
    whole = call(*options).out

    def interrupted(self: Engine, requests: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return step(self, requests)

    monkeypatch.setattr(Engine, "step", interrupted)
    done = call(*options, "--stop", f"{whole[:-1]}and more")
    said = done.out.removesuffix("\n")
    assert done.code == 130 and len(said) >= 3 and whole.startswith(said)


def test_a_bug_is_not_hidden(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(Engine, "step", broken)
    with pytest.raises(ValueError, match="a bug"):
        call("generate", "ab", *TOY)


@pytest.mark.parametrize("verb", ["", *(verb for verb in VERBS if verb != "audit")])
def test_help_names_what_there_is(call: Call, verb: str) -> None:
    done = call(*filter(None, [verb]), "--help")
    assert (done.code, done.err) == (0, "")
    assert all(name in done.out for name in (VERBS if not verb else ["Usage", verb]))


def test_without_arguments_it_is_the_help(call: Call) -> None:
    assert call().out == call("--help").out


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from draftproof.cli.__main__ import run; code = run(sys.argv[1:]);"
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'transformers', 'numpy', 'draftproof.engine')))"
    )
    for arguments in (["--help"], ["generate", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], env={"PYTHONPATH": SOURCE}, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    arguments = [sys.executable, "-m", "draftproof.cli", "generate", "ab", *TOY, "--max-tokens", "4000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        said = process.stderr.read().decode()
    assert "Traceback" not in said and "Exception" not in said and "BrokenPipe" not in said
    assert process.returncode not in (0, 2)


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@FULL
@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [(("list",), ""), (("generate", "ab", *TOY), "1"), (("--version",), "")]
)
def test_a_full_disk_is_one_sentence(arguments: tuple[str, ...], unbuffered: str) -> None:
    command = [sys.executable, "-m", "draftproof.cli", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
        )
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert done.stderr.decode().splitlines()[-1] == "error: the output cannot be written: No space left on device."


def test_streams_that_are_closed_are_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m draftproof.cli"
    toy = " ".join(TOY)
    for arguments, code, said in (
        ("--version >&-", 2, "error: standard output is closed: leave it open, or send it to a file.\n"),
        ("--version 2>&-", 0, ""),
        (f"generate {toy} <&-", 2, "error: standard input is empty: write some text.\n"),
    ):
        done = subprocess.run(
            f"{command} {arguments}", shell=True, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (code, said)


def test_an_error_about_a_file_is_none_about_the_output(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device", "some-file")

    monkeypatch.setattr(Engine, "step", failing)
    with pytest.raises(OSError, match="some-file"):
        call("generate", "ab", *TOY)
