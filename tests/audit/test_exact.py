"""The exact audit passes on what is right and fails on what is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from cli.calls import Call

from draftproof import fast, verify
from draftproof.audit import controls, exact
from draftproof.audit.controls import CONTROLS, measure
from draftproof.audit.laws import law_of, plain_law, reference, total_variation
from draftproof.audit.matrix import PROMPT, RULES, SHAPES, TOKENS, Case, cases, draft_model, make, sampling, target
from draftproof.audit.scene import Scene
from draftproof.types import SamplingParams


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(capsys, monkeypatch)


@cache
def quick() -> exact.Report:
    return exact.audit(quick=True)


@cache
def accepted(rule: str, drafter: str, shape: str) -> float:
    """Mean accepted length of the first step, without sampling noise."""
    result = exact.check(Case(rule, drafter, shape, "T=1"))
    assert result.passed
    return result.accepted


def test_the_quick_subset_is_exact() -> None:
    report = quick()
    assert report.passed
    assert report.max_total_variation <= 1e-12
    assert len(report.results) >= 60
    assert sum(result.case.engine for result in report.results) >= 30


@pytest.mark.slow
def test_the_whole_matrix_is_exact() -> None:
    report = exact.audit()
    assert [result for result in report.results if not result.passed] == []
    assert [finding for finding in report.findings if not finding.caught] == []
    assert len(report.results) >= 300


@pytest.mark.parametrize("control", [control.name for control in CONTROLS])
def test_every_control_is_caught(control: str) -> None:
    (finding,) = [one for one in quick().findings if one.name == control]
    assert finding.total_variation >= 0.01


def test_the_matrix_is_large_and_quick_covers_it() -> None:
    every, few = list(cases()), list(cases(quick=True))
    assert len(set(every)) == len(every) >= 300
    assert set(few) <= set(every)
    for field, names in (("rule", RULES), ("drafter", SHAPES), ("sampling", sampling())):
        assert {getattr(case, field) for case in few} == set(names)


def test_sequences_are_whole_and_have_several_steps() -> None:
    *_, params = make(Case("token", "drawn", "1", "T=1"))
    assert params.max_tokens == TOKENS >= 4
    assert all(result.sequences == 3**TOKENS for result in quick().results if result.case.sampling == "T=1")


def test_plain_law_is_the_product_of_the_rows() -> None:
    model, drafter, _, params = make(Case("token", "drawn", "1", "T=1"))
    law = plain_law(Scene(model, drafter, params, PROMPT))
    text, p = (2, 0, 1, 1), 1.0
    for i, token in enumerate(text):
        p *= float(torch.softmax(target().row([*PROMPT, *text[:i]]), 0)[token])
    assert law[text] == pytest.approx(p, rel=1e-12)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)


def test_coupled_accepts_as_daliri_says() -> None:
    p, q = (torch.softmax(model.row(PROMPT), 0).tolist() for model in (target(), draft_model()))
    formula = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(3)) for x in range(3))
    assert accepted("coupled", "drawn", "1") == pytest.approx(formula, abs=1e-12)


def test_token_accepts_the_overlap() -> None:
    p, q = (torch.softmax(model.row(PROMPT), 0) for model in (target(), draft_model()))
    assert accepted("token", "drawn", "1") == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)


def test_stronger_rules_accept_more() -> None:
    assert accepted("block", "drawn", "1x1x1") > accepted("token", "drawn", "1x1x1") + 1e-6
    assert accepted("tree", "drawn", "1x1x1") == pytest.approx(accepted("block", "drawn", "1x1x1"), abs=1e-12)
    assert accepted("tree", "mixed", "2x1") > accepted("token", "mixed", "2x1") + 1e-6
    assert accepted("token", "draft = target", "1x1") == pytest.approx(2, abs=1e-12)


@pytest.mark.parametrize(("module", "name"), [(verify, "excess"), (fast.BlockChain, "after")])
def test_a_bug_in_the_core_is_found(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """The residual is left out in the reference, or in the fast twin alone."""
    if name == "excess":
        monkeypatch.setattr(module, name, lambda p, q, scale=1.0: (p, p.sum(dtype=torch.float64)))
    else:
        monkeypatch.setattr(module, name, lambda self, stop: self._rows[stop])
    result = exact.check(Case("block", "drawn", "1x1", "T=1"))
    assert not result.passed
    assert result.total_variation > 0.01


def test_a_wrong_expectation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "expected_accepted", lambda proposal, stops: stops[-1] * 0.9)
    result = exact.check(Case("token", "drawn", "1", "T=1"))
    assert result.total_variation <= exact.TOLERANCE
    assert not result.passed


def test_sequences_outside_the_support_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("token", "chosen", "1", "top-k 2")
    assert exact.check(case).outside == 0
    monkeypatch.setattr(fast.Chosen, "after", lambda self, stop: torch.ones(3, dtype=torch.float64))
    assert exact.check(case).outside > 0


def test_a_control_measures_the_same_every_time() -> None:
    once = {finding.name: finding.total_variation for finding in quick().findings}
    assert measure(CONTROLS[-1]).total_variation == once[CONTROLS[-1].name]


def test_a_right_piece_in_a_controls_place_is_not_caught() -> None:
    harmless = replace(CONTROLS[0], pieces=lambda: (controls.drawn(), verify.TokenRule(), {}))
    assert not measure(harmless).caught


def test_controls_that_cannot_be_summed_by_the_reference_differ_from_it() -> None:
    """The uniform's second use changes the law only where draws are really made."""
    (control,) = [one for one in CONTROLS if one.name == "uniform reused"]
    drafter, rule, changes = control.pieces()
    scene = Scene(target(), drafter, SamplingParams(temperature=1.0, max_tokens=2), PROMPT, **changes)
    assert total_variation(law_of(reference, scene, rule), plain_law(scene)) <= exact.TOLERANCE


def test_the_command_prints_one_object(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "cases", lambda quick: iter([Case("block", "drawn", "1", "T=1")]))
    monkeypatch.setattr(exact, "CONTROLS", CONTROLS[:3])
    called = call("audit", "exact", "--json")
    assert called.code == 0
    assert called.json["combinations"] == 1
    assert called.json["max_total_variation"] <= 1e-12
    assert called.json["passed"] is True
    assert {"name", "total_variation", "caught"} == set(called.json["controls"][0])
    assert len(called.json["controls"]) == 3


def test_a_control_that_passes_makes_the_command_fail(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace(CONTROLS[0], pieces=lambda: (controls.drawn(), verify.TokenRule(), {}))
    monkeypatch.setattr(exact, "CONTROLS", (harmless,))
    monkeypatch.setattr(exact, "cases", lambda quick: iter([Case("block", "drawn", "1", "T=1")]))
    called = call("audit", "exact", "--json")
    assert called.code == 1
    assert called.json["passed"] is False
    shown = call("audit", "exact")
    assert shown.code == 1
    assert "MISSED" in shown.out
    assert "FAILED" in shown.out
