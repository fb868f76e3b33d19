"""Which ids of a draft model mean the same in the target (R7.1 to R7.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftproof.text import Text, letters
from draftproof.types import InputError
from draftproof.vocab import compare

WORDS = [f"w{i}" for i in range(20)]


def words(tokens: list[str], **special: str) -> Text:
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0]))
    backend.decoder = decoders.Fuse()
    return Text(PreTrainedTokenizerFast(tokenizer_object=backend, **special))


def test_the_same_tokenizer() -> None:
    pairing = compare(letters(50, eos_id=0), letters(50, eos_id=0))
    assert (pairing.kind, pairing.num_differences, pairing.differences) == ("same", 0, ())
    assert pairing.allowed == (True,) * 50
    pairing.refuse_if_different()


@pytest.mark.parametrize("sizes", [(64, 50), (50, 64)])
def test_rows_without_a_token_are_padding(sizes: tuple[int, int]) -> None:
    pairing = compare(letters(50), letters(50), *sizes)
    assert pairing.kind == "padding" and pairing.allowed == (True,) * 50


def test_reserved_tokens_are_padding_and_never_proposed() -> None:
    reserved = ["[PAD20]", "<|reserved_special_token_7|>", "<unused3>", "<|extra_204|>", "[unused9]"]
    pairing = compare(words(WORDS), words(WORDS + reserved))
    assert pairing.kind == "padding"
    assert pairing.allowed == (True,) * 20 + (False,) * 5
    assert compare(words(WORDS + reserved), words(WORDS)).allowed == (True,) * 20
    assert compare(words(WORDS + reserved[:1]), words(WORDS + reserved[1:2])).allowed[20] is False


def test_a_token_that_only_one_has_differs() -> None:
    pairing = compare(words(WORDS), words([*WORDS, "<think>"]))
    assert (pairing.kind, pairing.num_differences) == ("differ", 1)
    assert str(pairing.differences[0]) == "20: no token / '<think>'"
    assert pairing.allowed[20] is False
    used = compare(words([*WORDS, "<|extra_0|>"]), words([*WORDS, "<think>"]))
    assert used.kind == "differ" and used.allowed[20] is False


@given(st.integers(0, 19), st.integers(0, 19))
def test_swapped_ids_are_found_and_never_proposed(i: int, j: int) -> None:
    swapped = list(WORDS)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    pairing = compare(words(WORDS), words(swapped))
    wrong = sorted({i, j}) if i != j else []
    assert [difference.id for difference in pairing.differences] == wrong
    assert [n for n, good in enumerate(pairing.allowed) if not good] == wrong
    assert pairing.kind == ("differ" if wrong else "same")


def test_only_the_first_five_are_listed_with_both_texts() -> None:
    other = WORDS[:12] + [f"v{i}" for i in range(8)]
    pairing = compare(words(WORDS), words(other))
    assert pairing.num_differences == 8 and len(pairing.differences) == 5
    assert (pairing.differences[0].target, pairing.differences[0].draft) == ("'w12'", "'v0'")
    assert str(pairing).startswith("8 ids differ (id: target / draft): 12: 'w12' / 'v0'; ")


def test_special_ids_are_compared_beside_the_tokens() -> None:
    pairing = compare(words(WORDS, eos_token="w3"), words(WORDS, eos_token="w5"))
    assert (pairing.kind, pairing.num_differences) == ("differ", 2)
    assert [d.target for d in pairing.differences] == ["'w3' [end]", "'w5'"]
    assert all(pairing.allowed), "the tokens are the same, so the target may be offered all of them"


def test_a_different_tokenizer_is_refused() -> None:
    pairing = compare(words(WORDS), words([f"v{i}" for i in range(20)]))
    assert pairing.kind == "different" and not any(pairing.allowed)
    with pytest.raises(InputError, match="different tokenizers"):
        pairing.refuse_if_different()


def test_content_counts_and_not_the_spelling() -> None:
    """ "Ġa" is " a" to a byte-level decoder and itself to another one."""
    byte_level = letters(4)
    spelled = words(["a", "b", "c", "Ġ"])
    plain = words(["a", "b", "c", " "])
    assert compare(byte_level, spelled).allowed == (True, True, True, False)
    assert compare(byte_level, plain).kind == "same"


def test_a_byte_and_a_letter_with_the_same_text_are_two_tokens() -> None:
    def text(tokens: list[str]) -> Text:
        backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="b"))
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return Text(PreTrainedTokenizerFast(tokenizer_object=backend))

    pairing = compare(text(["b", "c", "d", "<0x41>"]), text(["b", "c", "d", "A"]))
    assert pairing.allowed == (True, True, True, False)
