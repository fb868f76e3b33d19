"""Forecasts: replays against real runs, predictions against closed forms, recommendations, and what is remembered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import COSTS, DRAFTERS, near, shared_target

from draftproof import catalog
from draftproof.bench import forecast
from draftproof.bench.compare import Item
from draftproof.bench.forecast import Candidate
from draftproof.bench.predict import expected_length
from draftproof.bench.replay import Told, Transcript, Writing, record, replay
from draftproof.contracts import Drafter
from draftproof.drafters.chained import ChainedDrafter
from draftproof.drafters.children import Shape
from draftproof.drafters.cost_curves import Costs, Curve
from draftproof.drafters.length import AUTO_GAMMA, AutoLength
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import Engine
from draftproof.entries import possible
from draftproof.types import SamplingParams, Step
from draftproof.verify import CoupledRule

ITEMS = [Item(f"x-{number}", "x", (0, number, 0)) for number in range(4)]
VERIFY = Curve(((1, 2.0), (5, 2.4), (25, 5.4)))


def shapes(steps: list[Step]) -> list[tuple[int, int, int, str]]:
    return [
        (len(s.tokens), s.num_draft_tokens, s.num_accepted_tokens, s.drafter if s.num_draft_tokens else "")
        for s in steps
    ]


def made_up(alpha: float, length: int, prompts: int = 5) -> list[Transcript]:
    """Texts on which a drafter "told" is right with this chance at each place behind a right one. Seeds are fixed."""
    made = []
    for seed in range(prompts):
        random = np.random.default_rng(seed)
        runs = [int(np.argmin([*(random.random(AUTO_GAMMA) < alpha), False])) for _ in range(length)]
        made.append(Transcript(Item(str(seed), "x", (0,)), (0,) * (length + 3), 3, {"told": dict(enumerate(runs, 3))}))
    return made


def told(c: float) -> Candidate:
    """A drafter whose every token costs c plain calls. Only its name and length are read."""
    part = Told("told", AUTO_GAMMA, made_up(0.5, 1)[0])
    return Candidate(("told",), AutoLength([], [part], Costs(VERIFY, {"told": Curve(((0, 0.0), (1, 2 * c)))})))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["model", "early-exit", "lowbit", "ngram+model", "auto", "ngram+auto"])
def test_a_replay_has_the_steps_of_the_real_run(kind: str, temperature: float) -> None:
    """Greedily and under the coupled rule: the same steps with the same drafts, of which the same were accepted."""
    target, params = shared_target(), SamplingParams(temperature=temperature, max_tokens=40)
    model = ModelDrafter(near(target), target.vocab_size, Shape.of(5))
    names = {"early-exit": "exit", "lowbit": "lowbit"}
    part = DRAFTERS[names[kind]](target, 5) if kind in names else model
    look = NgramDrafter(4, min=1)

    def whole(inner: Drafter) -> Drafter:
        if kind.endswith("auto"):
            return AutoLength([look] if "+" in kind else [], [inner], COSTS)
        return ChainedDrafter([look, inner]) if "+" in kind else inner

    for seed, one in enumerate(record(target, ITEMS, Writing(params), [(part, lambda rate: 5)])):
        engine = Engine(target, whole(part), CoupledRule())
        asked = SamplingParams(temperature=temperature, max_tokens=40, seed=seed)
        real = list(engine.generate(one.item.tokens, asked))
        assert shapes(replay(one, whole(Told(part.name, 5, one)))) == shapes(real)


def test_several_drafters_are_recorded_beside_each_other_as_each_alone() -> None:
    target, writing = shared_target(), Writing(SamplingParams(max_tokens=30))
    parts = [(DRAFTERS[name](target, 4), lambda rate: 4) for name in ("exit", "lowbit", "model")]
    together = record(target, ITEMS, writing, parts)
    for part in parts:
        alone = record(target, ITEMS, writing, [part])
        assert [one.taken[part[0].name] for one in alone] == [one.taken[part[0].name] for one in together]
        assert [one.text for one in alone] == [one.text for one in together]


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("c", [0.0, 0.25])
def test_with_independent_acceptance_it_is_the_closed_form(alpha: float, c: float) -> None:
    """E / (gamma c + v(gamma + 1)); seeds are fixed, so the tolerance is never left by chance."""
    (text,) = made_up(alpha, 2000, prompts=1)
    for gamma in (1, 4, 12):
        predicted = forecast.speedup(replay(text, Told("told", gamma, text)), told(c).auto.costs)
        theory = expected_length(alpha, gamma) / (gamma * c + VERIFY.at(gamma + 1) / 2)
        assert predicted == pytest.approx(theory, rel=0.06)


def test_a_forecast_is_the_median_over_prompts_within_its_interval() -> None:
    texts = made_up(0.7, 100)
    made = forecast.forecast(told(0.1), texts, 3)
    assert [length.name for length in made.lengths] == ["auto", "1", "2", "3"]
    for length in made.lengths[1:]:
        each = [
            forecast.speedup(replay(one, Told("told", length.gamma or 0, one)), told(0.1).auto.costs) for one in texts
        ]
        assert length.overall.value == pytest.approx(np.median(each))
        low, high = length.overall.low, length.overall.high
        assert min(each) <= low <= length.overall.value <= high <= max(each) and low < high


def test_a_useless_drafter_is_off() -> None:
    made = forecast.forecast(told(0.2), made_up(0.0, 200), 8)
    assert all(length.overall.high < 1 for length in made.lengths)
    assert forecast.recommended([made]) is None


def test_a_perfect_drafter_gets_the_largest_length() -> None:
    made = forecast.forecast(told(0.02), made_up(1.0, 400), AUTO_GAMMA)
    best = max(made.lengths[1:], key=lambda length: length.overall.value)
    found = forecast.recommended([forecast.forecast(told(0.2), made_up(0.0, 200), 8), made])
    assert best.gamma == AUTO_GAMMA and found is not None and found[0] is made
    assert found[1].overall.value >= best.overall.value / 1.05


def test_what_a_target_can_have_is_read_from_the_catalogue() -> None:
    table = catalog.drafters()
    everything = possible(table, {"early_exit", "lowbit"})
    assert {"ngram", "early-exit", "lowbit", "ngram+early-exit", "ngram+lowbit"} == set(everything)
    assert possible(table, ()) == ["ngram"]
    assert {name for name, entry in table.items() if entry.argument} & set(everything) == set()


def test_it_is_remembered_by_target_drafter_length_and_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    made = forecast.forecast(Candidate(("lowbit:bits=3",), told(0.2).auto), made_up(0.0, 50), 4)
    model = shared_target()
    forecast.remember(model, 0.0, [made])
    for asked, gamma, length in (
        ("lowbit:bits=3", None, 0),
        ("lowbit:bits=3,gamma=auto", None, 0),
        ("lowbit:bits=3", 2, 2),
        ("lowbit:bits=3,gamma=2", None, 2),
    ):
        assert forecast.recall(model, asked, gamma, 0.0) == made.lengths[length].overall
    for spec, gamma, temperature in (("lowbit", None, 0.0), ("lowbit:bits=3", 9, 0.0), ("lowbit:bits=3", None, 1.0)):
        assert forecast.recall(model, spec, gamma, temperature) is None
    (file,) = (tmp_path / "forecasts").iterdir()
    file.write_text("[]")
    assert forecast.recall(model, "lowbit:bits=3", None, 0.0) is None
