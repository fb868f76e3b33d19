"""Who answers when, what is dropped, what Ctrl-C leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from bench.scripted import Log, Scripted, answered, items

from draftproof.bench.compare import Plan, Record, measure, order
from draftproof.bench.methods import Answer
from draftproof.types import Step, Timing


def _methods(count: int, log: Log | None = None) -> list[Scripted]:
    return [Scripted(f"m{n}", [] if log is None else log, lambda prompt, call: answered(1.0)) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_method_comes_at_every_place_equally_often(count: int) -> None:
    methods = _methods(count)
    places = Counter(
        (method.name, place) for turn in range(2 * count) for place, method in enumerate(order(methods, turn))
    )
    assert len(places) == count * count and set(places.values()) == {2}


def test_consecutive_turns_alternate() -> None:
    first, second = _methods(2)
    assert [order([first, second], turn)[0].name for turn in range(2)] == ["m0", "m1"]


def test_methods_answer_prompt_by_prompt_and_a_pass_is_over_before_the_next() -> None:
    log: Log = []
    prompts = items(chat=2, code=1)
    made = measure(_methods(3, log), prompts, Plan(repeats=4))
    assert log[:3] == [(f"m{n}", prompts[0].tokens) for n in range(3)], "warm-up"
    behind = [log[at : at + 3] for at in range(3, len(log), 3)]
    assert [entry[0][1] for entry in behind] == [item.tokens for item in prompts] * 4
    for group in behind:
        assert {name for name, _ in group} == {"m0", "m1", "m2"} and len({prompt for _, prompt in group}) == 1
    starts = {tuple(name for name, _ in group) for group in behind}
    assert len(starts) > 3, "the order changes"
    assert len(made.trials) == 12 and not made.interrupted
    assert [len(trials) for trials in made.by_prompt().values()] == [4, 4, 4]


def test_the_first_answer_of_a_method_is_dropped() -> None:
    def slow_at_first(prompt: Sequence[int], call: int) -> Answer:
        return answered(99.0 if call == 0 else 1.0)

    made = measure([Scripted("m", [], slow_at_first)], items(chat=2), Plan(repeats=2))
    assert [one.records["m"].seconds for one in made.trials] == [1.0] * 4


@pytest.mark.parametrize("calls", [0, 1, 3, 4, 7])
def test_ctrl_c_keeps_the_complete_trials(calls: int) -> None:
    def stopping(prompt: Sequence[int], call: int) -> Answer:
        if call == calls:
            raise KeyboardInterrupt
        return answered(1.0)

    progress: list[int] = []
    methods = [Scripted("plain", [], lambda prompt, call: answered(1.0)), Scripted("other", [], stopping)]
    made = measure(methods, items(chat=3), Plan(repeats=3), progress.append)
    assert made.interrupted and len(made.trials) == max(0, calls - 1) == max(progress)
    assert all(set(one.records) == {"plain", "other"} for one in made.trials)


def test_a_record_keeps_what_its_steps_say() -> None:
    steps = (
        Step((1,), ("plain",), prefill=True, timing=Timing(target=9.0)),
        Step((2,), ("plain",), timing=Timing(target=1.0)),
        Step((3, 4), ("accepted", "bonus"), num_draft_tokens=1, num_accepted_tokens=1, draft_depth=1),
        Step((5,), ("plain",), timing=Timing(target=3.0)),
    )
    record = Record.of(Answer((1, 2, 3, 4, 5), 2.0, 0.5, steps))
    assert record.shapes == {(0, 0): 2, (1, 1): 1} and record.target_seconds == 2.0
    assert record.tokens_per_s == 2.5 and record.decode_tokens_per_s == pytest.approx(4 / 1.5)
    assert record.stats is not None and record.stats.prefills == 1


@pytest.mark.parametrize("answer", [answered(1.0), answered(1.0, (5,), 0.9), answered(1.0, (5, 6), 1.0)])
def test_what_cannot_be_known_of_decoding_is_not_made_up(answer: Answer) -> None:
    assert Record.of(answer).decode_tokens_per_s is None
