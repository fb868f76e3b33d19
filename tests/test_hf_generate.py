"""`model.generate(custom_generate=…)` gives what transformers' own decoding gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_generate_model import PROMPT, build, forbid_behind, ids
from transformers import EosTokenCriteria, LogitsProcessor, MaxLengthCriteria, StoppingCriteria

import draftproof
from draftproof.types import InputError


@pytest.fixture(scope="module")
def model() -> Any:
    return build()


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "end": {"eos_token_id": list(range(40, 60))},
    "minimum": {"eos_token_id": list(range(30, 60)), "min_new_tokens": 8},
}


@pytest.mark.parametrize("drafter", ["null", "ngram:min=1", "early-exit:layer=2", "early-exit:layer=2,shape=2x2"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_sequences_are_transformers_own(model: Any, drafter: str, setting: str) -> None:
    options = {"max_new_tokens": 40, "do_sample": False, **SETTINGS[setting]}
    plain = model.generate(PROMPT, **options)
    ours = model.generate(PROMPT, custom_generate=draftproof.hf_generate, drafter=drafter, **options)
    assert torch.equal(ours, plain)


def test_left_padded_batches(model: Any) -> None:
    batch = ids([0, 0, 5, 6, 7], [9, 8, 7, 6, 5], [0, 0, 0, 0, 3])
    options = {
        "attention_mask": (batch > 0).long(),
        "max_new_tokens": 20,
        "do_sample": False,
        "repetition_penalty": 1.2,
    }
    ends = {"eos_token_id": list(range(50, 70))}
    plain = model.generate(batch, **options, **ends)
    assert torch.equal(model.generate(batch, custom_generate=draftproof.hf_generate, **options, **ends), plain)


def test_rows_that_end_early_are_padded_as_transformers_pads(model: Any) -> None:
    batch = ids([0, 0, 5, 6, 7], [9, 8, 7, 6, 5], [0, 0, 0, 0, 3])
    options = {"attention_mask": (batch > 0).long(), "max_new_tokens": 20, "do_sample": False, "pad_token_id": None}
    for ends in ([66, *range(50, 66)], list(range(20, 40))):
        plain = model.generate(batch, eos_token_id=ends, **options)
        ours = model.generate(batch, custom_generate=draftproof.hf_generate, eos_token_id=ends, **options)
        assert torch.equal(ours, plain)


def test_a_transformers_model_drafts(model: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=30, do_sample=False)
    ours = model.generate(
        PROMPT, custom_generate=draftproof.hf_generate, drafter=model, max_new_tokens=30, do_sample=False
    )
    assert torch.equal(ours, plain)


def test_sampling_repeats_under_torchs_seed_and_returns_several(model: Any) -> None:
    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        options = {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "num_return_sequences": 4}
        made: torch.Tensor = model.generate(
            PROMPT, custom_generate=draftproof.hf_generate, drafter="early-exit", **options
        )
        return made

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))
    assert len({tuple(row) for row in sample(1).tolist()}) > 1


class EndsBehind(StoppingCriteria):
    """Stops when the text's tokens add up to a multiple of seven."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, 5:].sum(1) % 7 == 0


class Shift(LogitsProcessor):
    """Depends on the prefix."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.roll(int(input_ids[0, -1]) % 5, -1)


def test_users_own_processors_and_criteria(model: Any) -> None:
    options = {
        "max_new_tokens": 40,
        "do_sample": False,
        "logits_processor": [Shift()],
        "stopping_criteria": [EndsBehind()],
    }
    plain = model.generate(PROMPT, **options)
    ours = model.generate(PROMPT, custom_generate=draftproof.hf_generate, drafter="early-exit:layer=3", **options)
    assert torch.equal(ours, plain) and ours.shape[1] < 45


class EndsAtTheThird(StoppingCriteria):
    """Keeps a count, so it must be asked as plain decoding asks: for the batch, once a column."""

    def __init__(self) -> None:
        self.count = torch.zeros(3, dtype=torch.int64)
        self.shapes: list[torch.Size] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.shapes.append(input_ids.shape)
        self.count += input_ids[:, -1] % 3 == 0
        return self.count == torch.tensor([3, 1, 2])


@pytest.mark.parametrize("ends", [None, list(range(60, 70)), 95])
@pytest.mark.parametrize("drafter", ["ngram:min=1", "early-exit:layer=3"])
def test_criteria_stop_the_rows_of_a_batch_as_in_plain_decoding(model: Any, drafter: str, ends: Any) -> None:
    batch = ids([0, 0, 5, 6, 7], [9, 8, 7, 6, 5], [0, 0, 0, 0, 3])
    options = {"attention_mask": (batch > 0).long(), "max_new_tokens": 30, "do_sample": False, "eos_token_id": ends}
    for make in (EndsBehind, EndsAtTheThird):
        first, second = make(), make()
        plain = model.generate(batch, stopping_criteria=[first], **options)
        ours = model.generate(
            batch, custom_generate=draftproof.hf_generate, drafter=drafter, stopping_criteria=[second], **options
        )
        assert torch.equal(ours, plain) and 5 < ours.shape[1] < 35
        assert getattr(first, "shapes", None) == getattr(second, "shapes", None)


@pytest.mark.parametrize("place", [23, 35])
def test_a_users_own_length_and_end_criteria_replace_those_of_the_configuration(model: Any, place: int) -> None:
    text = model.generate(PROMPT, do_sample=False, max_new_tokens=40)[0].tolist()
    options = {
        "max_new_tokens": 12,
        "eos_token_id": text[8],
        "stopping_criteria": [EosTokenCriteria(text[place]), MaxLengthCriteria(33)],
        "do_sample": False,
    }
    plain = model.generate(PROMPT, **options)
    assert torch.equal(model.generate(PROMPT, custom_generate=draftproof.hf_generate, **options), plain)
    assert plain.shape[1] == min(place + 1, 33)


def test_scores_and_logits_are_those_of_plain_decoding(model: Any) -> None:
    options = {
        "max_new_tokens": 10,
        "do_sample": False,
        "repetition_penalty": 1.4,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    plain = model.generate(PROMPT, **options)
    ours = model.generate(PROMPT, custom_generate=draftproof.hf_generate, **options)
    assert torch.equal(ours.sequences, plain.sequences)
    for kind in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(ours[kind]), torch.stack(plain[kind]), rtol=1e-4, atol=1e-4)
    batch = ids([0, 0, 5, 6, 7], [9, 8, 7, 6, 5])
    options["attention_mask"] = (batch > 0).long()
    plain, ours = (
        model.generate(batch, **options),
        model.generate(batch, custom_generate=draftproof.hf_generate, **options),
    )
    for kind in ("scores", "logits"):
        torch.testing.assert_close(torch.stack(ours[kind]), torch.stack(plain[kind]), rtol=1e-4, atol=1e-4)


def test_what_would_be_missing_from_the_result_is_refused(model: Any) -> None:
    for wanted in ("output_hidden_states", "output_attentions"):
        with pytest.raises(InputError, match=wanted):
            options = {"return_dict_in_generate": True, wanted: True, "max_new_tokens": 5}
            model.generate(PROMPT, custom_generate=draftproof.hf_generate, **options)


def test_a_text_that_cannot_go_on_is_an_error(model: Any) -> None:
    options = {"logits_processor": [forbid_behind(8)], "max_new_tokens": 9, "do_sample": False}
    with pytest.raises(InputError, match="no token can follow"):
        model.generate(PROMPT, custom_generate=draftproof.hf_generate, **options)


def test_criteria_come_before_the_error_behind_the_tokens_they_stop(model: Any) -> None:
    """Copies of the early exit are accepted to the token before the forbidden place, in one step with the error."""

    class Stop(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return torch.full((len(input_ids),), input_ids.shape[1] >= 8)

    options = {"max_new_tokens": 20, "do_sample": False, "stopping_criteria": [Stop()]}
    plain = model.generate(PROMPT, **options)
    ours = model.generate(
        PROMPT,
        custom_generate=draftproof.hf_generate,
        drafter=model,
        logits_processor=[forbid_behind(8)],
        **options,
    )
    assert torch.equal(ours, plain) and ours.shape[1] == 8


def test_the_users_model_stays_as_it_was(model: Any) -> None:
    before = model.config._attn_implementation
    model.generate(PROMPT, custom_generate=draftproof.hf_generate, max_new_tokens=5, do_sample=False)
    assert model.config._attn_implementation == before and not model.model.layers[0]._forward_hooks


def test_beams_are_refused(model: Any) -> None:
    with pytest.raises(InputError, match="num_beams=1"):
        model.generate(PROMPT, custom_generate=draftproof.hf_generate, num_beams=2, max_new_tokens=5)
