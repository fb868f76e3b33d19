"""The exact audit: every outcome of every combination, summed, against plain decoding. No sampling error.

What is left is rounding: laws are float64, so a right combination ends below 1e-12 and a wrong one far above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.audit.controls import CONTROLS, Finding, measure
from draftproof.audit.laws import Fast, law_of, plain_law, reference, total_variation, whole_engine
from draftproof.audit.matrix import PROMPT, Case, cases, make
from draftproof.audit.scene import Law, Scene

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Result:
    """One combination.

    total_variation  the largest of the reference rules, the fast twins and, where enumerated, the whole engine
    expected_gap     |reported expected accepted length - enumerated mean|, the largest over all proposals
    outside          sequences that came out though plain decoding never gives them
    accepted         mean accepted length of the first step
    """

    case: Case
    total_variation: float
    expected_gap: float
    outside: int
    accepted: float
    sequences: int

    @property
    def passed(self) -> bool:
        """Right up to rounding."""
        return self.total_variation <= TOLERANCE and self.expected_gap <= TOLERANCE and self.outside == 0


@dataclass
class Report:
    """Results of all combinations and findings of all controls."""

    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def max_total_variation(self) -> float:
        """Over all combinations."""
        return max((result.total_variation for result in self.results), default=0.0)

    @property
    def passed(self) -> bool:
        """Every combination right, every control caught."""
        return all(result.passed for result in self.results) and all(finding.caught for finding in self.findings)

    def summary(self) -> dict[str, object]:
        """What `audit exact --json` prints."""
        wrong = [result for result in self.results if not result.passed]
        return {
            "combinations": len(self.results),
            "max_total_variation": self.max_total_variation,
            "max_expected_accepted_gap": max((result.expected_gap for result in self.results), default=0.0),
            "outside_support": sum(result.outside for result in self.results),
            "whole_engine_combinations": sum(result.case.engine for result in self.results),
            "failed": [vars(result.case) for result in wrong],
            "controls": [
                {"name": finding.name, "total_variation": finding.total_variation, "caught": finding.caught}
                for finding in self.findings
            ],
            "passed": self.passed,
        }


@torch.inference_mode()
def audit(quick: bool = False, tick: Callable[[], None] = lambda: None) -> Report:
    """Enumerate all combinations, then the controls; `tick` is called behind each."""
    report, scenes = Report(), _Scenes()
    for case in cases(quick):
        report.results.append(check(case, scenes))
        tick()
    for control in CONTROLS:
        report.findings.append(measure(control))
        tick()
    return report


def size(quick: bool = False) -> int:
    """How often `audit` ticks."""
    return sum(1 for _ in cases(quick)) + len(CONTROLS)


def check(case: Case, scenes: _Scenes | None = None) -> Result:
    """One combination: the laws of all implementations against plain decoding's."""
    _, _, rule, _ = make(case)
    scene = (scenes or _Scenes()).of(case)
    plain, fast = plain_law(scene), Fast()
    laws = [law_of(reference, scene, rule), law_of(fast, scene, rule)]
    if case.engine:
        laws.append(law_of(whole_engine, scene, rule))
    variation = max(total_variation(law, plain) for law in laws)
    return Result(case, variation, fast.expected_gap, _outside(laws, plain), fast.accepted, len(plain))


def _outside(laws: Sequence[Law], plain: Law) -> int:
    return len({text for law in laws for text, p in law.items() if p > 0} - set(plain))


class _Scenes:
    """Keeps the last scene: rules with the same drafter and parameters share its proposals."""

    def __init__(self) -> None:
        self._key: tuple[str, str, str] | None = None
        self._scene: Scene | None = None

    def of(self, case: Case) -> Scene:
        key = (case.drafter, case.shape, case.sampling)
        if self._scene is None or key != self._key:
            target, drafter, _, params = make(case)
            self._key, self._scene = key, Scene(target, drafter, params, PROMPT)
        return self._scene
