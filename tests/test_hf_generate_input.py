"""`model.generate(custom_generate=…)`: streamers, and input that plain decoding takes and ours takes otherwise."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from hf_generate_model import PROMPT, V, build, forbid_behind, ids
from transformers import LlamaConfig, LlamaForCausalLM, SynthIDTextWatermarkingConfig, TextIteratorStreamer

import draftproof
from draftproof.types import InputError


@pytest.fixture(scope="module")
def model() -> Any:
    return build()


class Recorder(TextIteratorStreamer):
    """The real streamer over a stand-in for a tokenizer, which also writes down what it is given."""

    def __init__(self) -> None:
        super().__init__(self, timeout=20)
        self.given: list[torch.Tensor] = []

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value)
        super().put(value)

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(f"{token} " for token in tokens)


def test_a_streamer_is_given_what_plain_decoding_gives_it(model: Any) -> None:
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": list(range(40, 60))}
    plain, ours = Recorder(), Recorder()
    text = model.generate(PROMPT, streamer=plain, **options)
    model.generate(PROMPT, custom_generate=draftproof.hf_generate, drafter="ngram:min=1", stream_to=ours, **options)
    assert [one.shape for one in ours.given] == [one.shape for one in plain.given]
    assert all(map(torch.equal, ours.given, plain.given))
    assert "".join(ours) == "".join(plain) == ours.decode(text[0].tolist())


def test_a_streamers_reader_is_let_go_by_an_error(model: Any) -> None:
    streamer = Recorder()
    with pytest.raises(InputError, match="no token can follow"):
        model.generate(
            PROMPT,
            custom_generate=draftproof.hf_generate,
            stream_to=streamer,
            logits_processor=[forbid_behind(8)],
            max_new_tokens=9,
            do_sample=False,
        )
    assert len("".join(streamer).split()) == 9
    with pytest.raises(InputError, match="stream_to takes a transformers streamer"):
        model.generate(PROMPT, custom_generate=draftproof.hf_generate, stream_to=print, max_new_tokens=3)


@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [0, 1, 0, 1, 1]])
def test_masks_other_than_left_padding_are_refused(model: Any, mask: list[int]) -> None:
    with pytest.raises(InputError, match="pad on the left"):
        model.generate(PROMPT, custom_generate=draftproof.hf_generate, attention_mask=ids(mask), max_new_tokens=3)


def test_a_text_ends_at_the_models_context_with_a_warning() -> None:
    config = LlamaConfig(
        vocab_size=V, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=20, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    short = LlamaForCausalLM(config).eval()
    batch = ids([5, 6, 7, 5, 6, 9, 8, 7, 6], [0, 0, 0, 0, 0, 4, 4, 4, 4])
    options = {"attention_mask": (batch > 0).long(), "max_new_tokens": 24, "do_sample": False}
    plain = short.generate(batch, **options)
    with pytest.warns(UserWarning, match="context of 20 tokens") as caught:
        ours = short.generate(batch, custom_generate=draftproof.hf_generate, **options)
    assert len([one for one in caught if "context of 20" in str(one.message)]) == 1
    assert ours.shape == (2, 9 + 16) and torch.equal(ours[1], plain[1, :25])
    assert torch.equal(ours[0, :20], plain[0, :20]) and not ours[0, 20:].any()
    options["max_new_tokens"] = 11
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.generate(batch, custom_generate=draftproof.hf_generate, **options)


@pytest.mark.parametrize("end", [-1, V, [V + 7, 41]])
def test_end_tokens_outside_the_vocabulary_never_come(model: Any, end: Any) -> None:
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": end}
    plain = model.generate(PROMPT, **options)
    assert torch.equal(model.generate(PROMPT, custom_generate=draftproof.hf_generate, **options), plain)


def test_processors_that_count_their_calls_are_refused(model: Any) -> None:
    for options, said in (
        ({"guidance_scale": 1.5}, "guidance_scale keeps a cache"),
        ({"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3)}, "SynthID"),
    ):
        with pytest.raises(InputError, match=said):
            model.generate(PROMPT, custom_generate=draftproof.hf_generate, max_new_tokens=3, **options)


@pytest.mark.parametrize("drafter", [5, None, draftproof.Engine, torch.nn.Linear(2, 2)])
def test_what_cannot_draft_is_refused(model: Any, drafter: Any) -> None:
    with pytest.raises(InputError, match="transformers model"):
        model.generate(PROMPT, custom_generate=draftproof.hf_generate, drafter=drafter, max_new_tokens=3)


@pytest.mark.parametrize("size", [V - 16, V + 16])
def test_a_draft_models_vocabulary_may_be_padded_differently(model: Any, size: int) -> None:
    draft = copy.deepcopy(model)
    draft.resize_token_embeddings(size, mean_resizing=False)
    options = {"max_new_tokens": 30, "do_sample": False}
    for prompt in (PROMPT, ids([5, 6, V - 2, 5, 6])):
        plain = model.generate(prompt, **options)
        ours = model.generate(prompt, custom_generate=draftproof.hf_generate, drafter=draft, **options)
        assert torch.equal(ours, plain)
    assert (plain[:, 5:] >= V - 16).any(), "the text must hold tokens that the smaller draft does not have"
