"""Costs of steps: measured through the engine, behind a short and a long text, remembered as the mean of a few runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys import COSTS, near

from draftproof import cost_memory, costs
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.model import ModelDrafter
from draftproof.models.toy import ToyModel
from draftproof.types import InputError, Output

SHORT = Costs(Curve(((1, 2.0), (4, 3.0))), {"model": Curve(((1, 0.5), (4, 2.0)))}, 64)
LONG = Costs(Curve(((1, 3.0), (4, 6.0))), {"model": Curve(((1, 1.0), (4, 4.0)))}, 1024)
BOTH = Costs(SHORT.verify, SHORT.drafts, 64, LONG)


def test_measured_costs_are_positive_and_know_each_draft() -> None:
    target = ToyModel(1)
    made = costs.measure(target, [ModelDrafter(near(target), 16, Shape.of(4))], seconds=0.05)
    for one in (made, made.further):
        assert one is not None and one.verify.points[0][0] == 1 and one.verify.at(1) > 0
        assert one.drafts["model"].at(4) > 0
    assert made.further is not None and made.further.context > made.context


@pytest.mark.parametrize("limit", [40, 96, 1100])
def test_a_model_of_short_contexts_is_measured_behind_a_short_text_alone(limit: int) -> None:
    target = ToyModel(1)
    target.max_context = limit
    made = costs.measure(target, [ModelDrafter(near(target), 16, Shape.of(4))], seconds=0.05)
    assert made.further is None and made.verify.at(1) > 0


def test_a_model_without_room_for_a_draft_says_so() -> None:
    target = ToyModel(1)
    target.max_context = 3
    with pytest.raises(InputError, match="give a gamma"):
        costs.measure(target, [], seconds=0.05)


def test_a_model_without_numbers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ToyModel.forward
    monkeypatch.setattr(
        ToyModel,
        "forward",
        lambda *arguments: [Output(one.logits * float("nan"), one.hidden) for one in forward(*arguments)],
    )
    with pytest.raises(InputError, match="NaN"):
        costs.measure(ToyModel(1), [], seconds=0.05)


def test_costs_follow_the_length_of_the_text() -> None:
    assert BOTH.behind(10) is BOTH and BOTH.behind(64) is BOTH
    halfway = BOTH.behind(544)
    assert halfway.verify.at(1) == 2.5 and halfway.verify.at(4) == 4.5 and halfway.draft(4, "model") == 3.0
    assert BOTH.behind(1024).verify == LONG.verify and BOTH.behind(1984).verify.at(4) == 9.0
    assert SHORT.behind(5000) is SHORT


def test_costs_are_remembered_as_the_mean_of_three_runs(tmp_path: Path) -> None:
    made = [Costs(Curve(((1, 1.0), (4, fours))), further=Costs(Curve(((1, fours),)))) for fours in (2.0, 4.0, 3.0)]
    calls = iter(made)
    seen = [cost_memory.remembered("x", tmp_path, lambda: next(calls)) for _ in range(4)]
    assert [one.verify.at(4) for one in seen] == [2.0, 3.0, 3.0, 3.0]
    assert [one.further and one.further.verify.at(1) for one in seen] == [2.0, 3.0, 3.0, 3.0]
    assert cost_memory.remembered("y", tmp_path, lambda: BOTH) == BOTH


def test_two_runs_that_say_the_same_of_every_count_settle_them(tmp_path: Path) -> None:
    slower = BOTH.toward(Costs(Curve(((1, 4.0), (4, 6.0))), {"model": Curve(((1, 1.0), (4, 4.0)))}, 64, LONG), 0.9)
    calls = iter([BOTH, slower])
    seen = [cost_memory.remembered("x", tmp_path, lambda: next(calls)) for _ in range(4)]
    assert seen[1] == seen[2] == seen[3] != seen[0]


@pytest.mark.parametrize("content", ["", "[]", '{"runs": 3}', '{"runs": [{"verify": 3}]}', '{"drafts": 1}'])
def test_a_damaged_memory_is_made_again(content: str, tmp_path: Path) -> None:
    cost_memory.remembered("x", tmp_path, lambda: BOTH)
    (file,) = tmp_path.iterdir()
    assert len(json.loads(file.read_text())["runs"]) == 1
    file.write_text(content)
    assert cost_memory.remembered("x", tmp_path, lambda: SHORT) == SHORT


def test_where_nothing_can_be_written_costs_are_measured(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cost_memory.remembered("x", blocked / "costs", lambda: COSTS) == COSTS
