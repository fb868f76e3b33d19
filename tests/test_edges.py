"""Prompts, parameters and processors at the edge: one sentence, or plain decoding's text."""

from __future__ import annotations

from typing import Any

import pytest
from toys import engine, pairs, run

from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.types import InputError, SamplingParams
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule


@pytest.mark.parametrize("prompt", [(3,), (3, 3), (1, 2, 1)])
@pytest.mark.parametrize("gamma", [1, 16, 100])
def test_one_token_prompts_and_gammas_beyond_the_budget(prompt: tuple[int, ...], gamma: int) -> None:
    for drafter in ("ngram", "model", "exit", "model-tree"):
        params = SamplingParams(max_tokens=10)
        assert run(engine(drafter, "tree", gamma), params, prompt)[0] == run(engine("null", "token"), params, prompt)[0]


@pytest.mark.parametrize(
    "prompt, params, message",
    [
        ([], {}, "empty"),
        ([99], {}, "token 99"),
        ([-1], {}, "token -1"),
        ([1] * 21, {}, "shorten the prompt"),
        ([1], {"stop_strings": ("x",)}, "tokenizer"),
        ([1], {"logit_bias": ((77, 1.0),)}, "token 77"),
        ([1], {"stop_tokens": (16,)}, "token 16"),
    ],
)
def test_bad_requests_are_one_sentence(prompt: list[int], params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Engine(ToyModel(7, max_context=20), NullDrafter(), TokenRule()).submit(prompt, SamplingParams(**params))


def test_everything_forbidden_is_named() -> None:
    params = SamplingParams(temperature=1, logit_bias=tuple((token, float("-inf")) for token in range(16)))
    for rule in (TokenRule(), BlockRule(), TreeRule(), CoupledRule()):
        with pytest.raises(InputError, match="forbidden"):
            run(Engine(ToyModel(7), NullDrafter(), rule), params)


def test_a_request_that_cannot_go_on_does_not_take_others_with_it() -> None:
    made = engine("model", "block")
    dead = made.submit(
        [1], SamplingParams(max_tokens=9, logit_bias=tuple((token, float("-inf")) for token in range(16)))
    )
    alive = made.submit([0, 1, 0], SamplingParams(max_tokens=60))
    assert made.step([dead, alive])[0].error is not None and dead.finish_reason == "error"
    while alive.finish_reason is None:
        made.step([dead, alive])
    assert alive.output == run(engine("null", "token"), SamplingParams(max_tokens=60))[0]


def test_a_processor_that_raises_leaves_every_request_as_it_was() -> None:
    calls = []

    def fails_once(ids: Any, scores: Any) -> Any:
        calls.append(0)
        if len(calls) == 7:
            raise RuntimeError("user code")
        return scores

    made = engine("model", "tree")
    request = made.submit([0, 1, 0], SamplingParams(max_tokens=60, processors=(fails_once,)))
    with pytest.raises(RuntimeError, match="user code"):
        while request.finish_reason is None:
            made.step([request])
    while request.finish_reason is None:
        made.step([request])
    assert request.output == run(engine("null", "token"), SamplingParams(max_tokens=60))[0]


@pytest.mark.parametrize("drafter, rule", pairs())
def test_processors_see_only_prefixes_that_plain_decoding_can_form(drafter: str, rule: str) -> None:
    """Not behind an end token, nor behind a token they have forbidden themselves."""
    plain, _ = run(engine("null", "token"), SamplingParams(max_tokens=60))
    for end in sorted(set(plain)):

        def asserts(ids: Any, scores: Any, end: int = end) -> Any:
            output = ids[0, 3:].tolist()
            assert end not in output and 3 not in output
            scores[:, 3] = float("-inf")
            return scores

        params = SamplingParams(max_tokens=30, stop_tokens=(end,), processors=(asserts,))
        assert run(engine(drafter, rule), params)[0] == run(engine("null", "token"), params)[0]


def test_a_processor_that_writes_into_its_argument_leaves_the_raw_log_probabilities() -> None:
    def forbids(ids: Any, scores: Any) -> Any:
        scores[:, 3] = float("-inf")
        return scores

    params = SamplingParams(max_tokens=20, logprobs=2, processors=(forbids,))
    for drafter in ("null", "model"):
        tokens, steps = run(engine(drafter, "token"), params)
        rows = [ToyModel(7).row([0, 1, 0, *tokens[:i]]).log_softmax(-1) for i in range(20)]
        entries = [entry for step in steps for entry in step.logprobs]
        assert [entry.logprob for entry in entries] == pytest.approx(
            [float(row[token]) for row, token in zip(rows, tokens, strict=True)], abs=1e-5
        )


def test_a_processor_with_a_state_is_decoded_plainly() -> None:
    class EveryThird:
        stateful = True

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, ids: Any, scores: Any) -> Any:
            self.calls += 1
            if self.calls % 3 == 0:
                scores[0, int(scores.argmax())] = float("-inf")
            return scores

    texts = []
    for drafter in ("null", "ngram", "model", "exit-tree"):
        tokens, steps = run(engine(drafter, "tree"), SamplingParams(max_tokens=30, processors=(EveryThird(),)))
        texts.append(tokens)
        assert not any(step.num_draft_tokens for step in steps)
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("bias", [float("inf"), float("nan")])
def test_a_bias_that_is_no_number_is_refused(bias: float) -> None:
    with pytest.raises(InputError, match="logit_bias"):
        SamplingParams(logit_bias=((1, bias),))
