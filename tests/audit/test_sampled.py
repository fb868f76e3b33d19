"""The sampled audit. Seeds are fixed, so a run is the same every time; were they not, a right engine would be flagged
with probability 1e-4 a report at most.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from cli.calls import Call
from hypothesis import given
from hypothesis import strategies as st

from draftproof.audit import families, sampled
from draftproof.audit.families import Combination
from draftproof.audit.sampled import Plan, examine, independence
from draftproof.audit.statistics import OTHER, at_least, cells, detectable, holm, pearson
from draftproof.catalog import load_engine, load_model
from draftproof.types import InputError, SamplingParams

PROMPT = (0, 1, 0)
PLAN = Plan(draws=1000, batch=500)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(capsys, monkeypatch)


def uniform_rows(prefixes: object) -> list[list[float]]:
    return [[0.6, 0.3, 0.099, 0.001] for _ in prefixes]  # type: ignore[attr-defined]


@given(st.integers(100, 100_000), st.integers(1, 4), st.frozensets(st.integers(0, 3), max_size=2))
def test_cells_are_a_law_and_every_sequence_has_one(draws: int, tokens: int, ends: frozenset[int]) -> None:
    law = cells(uniform_rows, draws, tokens, ends)
    assert sum(law.probabilities.values()) == pytest.approx(1)
    assert len(law.probabilities) == 1 or min(law.probabilities.values()) * draws >= 10 - 1e-6
    generator = torch.Generator().manual_seed(draws)
    for _ in range(20):
        text: list[int] = []
        while len(text) < tokens and not (text and text[-1] in ends):
            text.append(int(torch.randint(4, (), generator=generator)))
        assert law.of(tuple(text)) in law.probabilities


def test_small_cells_are_pooled() -> None:
    law = cells(uniform_rows, 1000, 2, frozenset())
    assert law.probabilities[0, 0] == pytest.approx(0.36)
    assert (3,) not in law.probabilities
    assert law.of((3, 0)) == law.of((1, 3)) == law.rest == (OTHER,)
    assert cells(uniform_rows, 1000, 2, frozenset({0})).of((0,)) == (0,)


def test_counts_as_expected_are_no_finding_and_shifted_ones_are() -> None:
    law = cells(uniform_rows, 10_000, 1, frozenset())
    right = Counter({(0,): 6000, (1,): 3000, (2,): 990, (3,): 10})
    assert pearson(law, right).p_value == pytest.approx(1)
    assert pearson(law, right + Counter({(3,): 90}) - Counter({(0,): 90})).p_value < 1e-10


def test_power_is_that_of_the_requirement() -> None:
    assert detectable(25_000, 36, 1e-4) == pytest.approx(0.03, abs=0.002)
    assert detectable(100_000, 36, 1e-4) == pytest.approx(detectable(25_000, 36, 1e-4) / 2)
    assert detectable(1000, 1, 1e-4) == 1.0


def test_holm_and_the_binomial() -> None:
    assert holm([0.03, 0.001, 0.02], 0.05) == [True, True, True]
    assert holm([0.03, 0.001, 0.2], 0.05) == [False, True, False]
    assert at_least(0, 32, 0.1) == 1
    assert at_least(2, 2, 0.1) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("drafter", "rule", "changes"),
    [("model:toy:7,gamma=3", "block", {"top_k": 4}), ("ngram:min=1,gamma=3", "coupled", {"temperature": 1.5})],
)
def test_a_right_engine_is_not_flagged(drafter: str, rule: str, changes: dict[str, float]) -> None:
    params = SamplingParams(**{"temperature": 1.0, **changes})  # type: ignore[arg-type]
    target = load_model("toy:40,vocab=6")
    report = families.audit(target, [Combination("right", drafter, rule, params)], PROMPT, PLAN)
    assert report.defects() == []
    assert report.tests[0].cells > 10
    assert report.tests[0].accepted > 0
    assert report.tests[0].detectable < 0.16


def test_the_controls_are_caught() -> None:
    found = list(families.controls(PLAN))
    assert [one.name for one in found] == list(families.CONTROLS)
    assert all(sampled.Report(PLAN).caught(one) for one in found)


def test_a_draw_outside_the_support_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_engine("toy:40,vocab=6", "ngram:min=1", "coupled")
    params = SamplingParams(temperature=1.0, top_k=2)
    real: Callable[..., list[tuple[int, ...]]] = sampled.drawn
    plan = Plan(draws=100)
    assert examine("right", engine, PROMPT, params, plan, lambda n: None).outside == 0

    def slipping(*arguments: object) -> list[tuple[int, ...]]:
        row = engine.target.row(PROMPT)  # type: ignore[attr-defined]
        return [(int(row.argmin()), *text[1:]) for text in real(*arguments)]

    monkeypatch.setattr(sampled, "drawn", slipping)
    report = sampled.Report(plan, [examine("wrong", engine, PROMPT, params, plan, lambda n: None)])
    assert report.tests[0].outside == 100
    assert report.defects() == ["wrong"]


def test_unseeded_requests_that_share_a_stream_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 pairs; a right engine is flagged with probability 1e-4, here deterministically not, the shared one always."""
    engine = load_engine("toy:40,vocab=6", "ngram:min=1", "coupled")
    params = SamplingParams(temperature=1.0)
    fresh = iter(range(10**6))
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(fresh))
    assert independence(engine, PROMPT, params, PLAN)[1] > 1e-3
    monkeypatch.setattr(secrets, "randbits", lambda bits: 5)
    duplicates, p_value = independence(engine, PROMPT, params, PLAN)
    assert duplicates == sampled.PAIRS
    assert p_value < 1e-9


def test_what_cannot_be_tested_is_refused() -> None:
    engine = load_engine("toy:1", "ngram")
    with pytest.raises(InputError, match="audit paths"):
        examine("greedy", engine, PROMPT, SamplingParams(), PLAN, lambda n: None)
    with pytest.raises(InputError, match="draws"):
        Plan(draws=5)


def test_the_command(call: Call) -> None:
    arguments = ("sampled", "toy:40,vocab=6", "early-exit:layer=3", "block", "--draws", "400", "--json")
    called = call("audit", *arguments)
    assert called.code == 0
    assert called.json["passed"] is True
    assert called.json["false_alarm_rate"] == 1e-4
    assert [one["name"] for one in called.json["combinations"]] == ["early-exit:layer=3, block"]
    assert all(one["caught"] for one in called.json["controls"])
    assert call("audit", "sampled", "toy:1", "ngram", "--temperature", "0").code == 2


def test_the_family_covers_the_requirement() -> None:
    family = families.family(load_model(families.TARGET))
    changed = {one.params for one in family}
    assert {params.temperature for params in changed} == {0.5, 1.0, 1.5}
    for field in ("top_k", "top_p", "min_p", "logit_bias", "presence_penalty"):
        assert len({getattr(params, field) for params in changed}) == 2
    assert {one.rule for one in family} == {"token", "block", "tree", "coupled"}
    assert families.size(family, Plan()) == len(family) * 25_000 + 2 * families.CONTROL_DRAWS
