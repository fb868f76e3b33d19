"""Encoding, streaming and stop strings, on every kind of decoder that is supported."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftproof.text import StopStrings, Stream, Text, cut, letters
from draftproof.types import InputError

KINDS = ("byte-level", "llama", "gemma", "metaspace", "wordpiece", "spaces")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁▁", "▁the", "a", "b", "ab", "▁a", "é", "日本", "😀", "�", ".", "▁.", "\n"]
DECODERS = {
    "llama": lambda: decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": lambda: decoders.Metaspace(),
    "wordpiece": lambda: decoders.WordPiece(cleanup=True),
    "spaces": lambda: None,
}


def wrap(tokens: list[str], decoder: object) -> Text:
    """Tokens by id, the first two special, with a padding gap behind them and one added token that is not special."""
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(["<unk>", "<end>"])
    backend.add_tokens([AddedToken("<think it over>", normalized=False)])
    return Text(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>"))


@cache
def make(kind: str) -> Text:
    if kind == "byte-level":
        toy = letters(400, eos_id=1)
        toy.tokenizer.add_tokens([AddedToken("<｜think▁é｜>", normalized=False)])
        return Text(toy.tokenizer)
    words = ["##s", "##ing", "n't", "'s"] if kind == "wordpiece" else []
    return wrap(["<unk>", "<end>", *BYTES, *PIECES, *words], DECODERS[kind]())


def ids_of(text: Text) -> st.SearchStrategy[list[int]]:
    """Any ids: rare ones (bytes, spaces, special, ids without a token) as often as the others."""
    size = len(text.tokens)
    return st.lists(
        st.one_of(st.integers(0, size + 3), st.integers(0, min(size, 10)), st.integers(226, 275)), max_size=25
    )


def streamed(text: Text, ids: list[int], stops: tuple[str, ...] = (), skip: bool = True) -> tuple[str, bool]:
    stream = Stream(text, stops, skip)
    deltas = [stream.push(i)[0] for i in ids]
    return "".join([*deltas, stream.flush()]), stream.stopped


def first_complete(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The definition: read on until the text ends with a stop string, then take the longest that it ends with."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))], True
    return text, False


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_deltas_add_up_to_the_decoded_text(kind: str, data: st.DataObject) -> None:
    text = make(kind)
    ids, skip = data.draw(ids_of(text)), data.draw(st.booleans())
    assert streamed(text, ids, skip=skip)[0] == text.decode(ids, skip_special=skip)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_delta_stays_right_whatever_follows(kind: str, data: st.DataObject) -> None:
    text = make(kind)
    ids, more = data.draw(ids_of(text)), data.draw(ids_of(text))
    stream = Stream(text)
    shown = "".join(stream.push(i)[0] for i in ids)
    assert text.decode(ids + more).startswith(shown)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_stop_strings_cut_the_stream_where_they_cut_the_text(kind: str, data: st.DataObject) -> None:
    text = make(kind)
    ids = data.draw(ids_of(text))
    whole = text.decode(ids)
    pieces = [whole[i : i + n] for i in range(len(whole)) for n in (1, 2, 3, 7)] or ["a"]
    stops = tuple(data.draw(st.lists(st.sampled_from(pieces) | st.text("ab c\n", min_size=1, max_size=4), max_size=3)))
    assert streamed(text, ids, stops) == first_complete(whole, stops)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3), st.data())
def test_stop_strings_do_not_depend_on_the_deltas(whole: str, stops: list[str], data: st.DataObject) -> None:
    expected = first_complete(whole, tuple(stops))
    assert cut(whole, stops) == expected
    machine, shown, rest = StopStrings(stops), "", whole
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        delta, found = machine.push(rest[:size])
        shown, rest = shown + delta, rest[size:]
        assert expected[0].startswith(shown)
        if found:
            break
    assert shown + machine.flush() == expected[0]


def test_text_appears_as_early_as_it_is_certain() -> None:
    stream = Stream(letters(64), stop_strings=("bcd",))
    a, b, space, lead, tail = 0, 1, 3, 5, 6
    assert [stream.push(i)[0] for i in (a, lead, tail, b, space)] == ["a", "", "é", "", "b "]


def test_a_run_of_bytes_is_shown_when_it_ends() -> None:
    text = make("llama")
    euro = [text.vocab()[f"<0x{byte:02X}>"] for byte in "€".encode()]
    a = text.vocab()["a"]
    stream = Stream(text)
    assert [stream.push(i)[0] for i in [*euro, a]] == ["", "", "", "€a"]


def test_many_invalid_bytes_take_linear_time() -> None:
    """A window that is decoded again for every token would need 10^9 steps here."""
    for text, token in ((letters(64), 6), (make("llama"), 2 + 0x80)):
        assert streamed(text, [token] * 40_000)[0] == "�" * 40_000


def test_after_a_stop_string_nothing_follows() -> None:
    text = letters(64)
    stream = Stream(text, ("b",))
    assert [stream.push(i) for i in text.encode("abc")] == [("a", True), ("", True)]
    assert stream.flush() == ""


def test_watch_tells_the_token_that_completes_a_stop_string() -> None:
    text = letters(64)
    ends = text.watch(("b c",))
    assert [ends(i) for i in text.encode("ab ca")] == [False, False, True, True]


def test_letters_gives_every_id_a_string_and_encodes_it_back() -> None:
    for size in (2, 3, 8, 16, 100, 3000):
        text = letters(size)
        contents = [text.content(i) for i in range(size)]
        assert len(text.tokens) == size and all(contents) and len(set(contents)) == size
        assert text.decode(text.encode("abba")) == "abba"
    assert letters(64).decode(letters(64).encode("né~b")) == "néab"
    assert letters(8).label(5) == "<0xC3>"


def test_letters_knows_its_end_token() -> None:
    text = letters(10, eos_id=4)
    assert text.eos_ids == (4,) and text.decode([0, 4]) == "a" and len(text.tokens) == 10
    assert letters(10).eos_ids == ()
    with pytest.raises(InputError):
        letters(1)


def test_end_tokens_come_from_every_place_that_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    letters(64, eos_id=7).tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 3, "text_config": {"eos_token_id": 11}}))
    text = Text.load(folder)
    assert text.eos_ids == (9, 7, 3, 11)
    assert text.decode(text.encode("abc")) == "abc"


def test_chat_uses_the_template_and_says_when_there_is_none() -> None:
    text = letters(64)
    assert text.chat("abc") == text.encode("abc") == text.chat([{"role": "user", "content": "abc"}])
    text.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="roles must alternate"):
        text.chat("abc")
    text.tokenizer.chat_template = None
    with pytest.raises(InputError, match="--raw"):
        text.chat("abc")


def test_a_template_writes_the_start_token_itself() -> None:
    from tokenizers.processors import TemplateProcessing

    text = letters(64, eos_id=0)
    backend = text.tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])
    assert text.encode("bb")[0] == 0 and text.encode("bb", special=False)[0] != 0
    assert 0 not in text.chat("bb")


def test_loading_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer files"):
        Text.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError):
        Text.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("not JSON")
    with pytest.raises(InputError, match="not valid JSON"):
        Text.load(tmp_path)


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [
        (decoders.CTC(), "CTC"),
        (decoders.Strip(" ", 0, 1), "at the end"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), "behind Fuse"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]), "mixed"),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused(decoder: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        wrap(["<unk>", "<end>", "a", "b"], decoder)


def test_a_regular_expression_replacement_in_front_is_fine() -> None:
    text = wrap(["<unk>", "<end>", "a", "bx"], decoders.Sequence([decoders.Replace(Regex("x+"), "y"), decoders.Fuse()]))
    assert streamed(text, [2, 3, 3])[0] == "abyby"
