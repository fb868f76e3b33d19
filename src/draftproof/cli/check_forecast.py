"""The forecast of `draftproof check`: what drafting would bring, for a reader and as JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof import catalog
from draftproof.bench import forecast
from draftproof.bench.compare import Item
from draftproof.bench.estimates import NO_DIFFERENCE, Estimate
from draftproof.bench.forecast import Candidate, Forecast, Length
from draftproof.bench.provenance import provenance
from draftproof.catalog import Loaded, Place
from draftproof.cli import benching, setup, show
from draftproof.drafters.length import AUTO_GAMMA
from draftproof.types import InputError, SamplingParams

_PER_CATEGORY = 4
_ROWS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Question:
    """What the forecast is for: the target as the user named it, a drafter or all, and how texts are written."""

    target: str
    drafter: str | None
    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Outlook:
    """The forecast, or in `note` why there is none; `notes` limit it."""

    question: Question
    made: Sequence[Forecast] = ()
    items: Sequence[Item] = ()
    note: str | None = None
    notes: Sequence[str] = ()

    @property
    def rule(self) -> str:
        """The rule that was forecast: greedily all accept the same, else the one whose text is plain decoding's."""
        return "coupled" if self.question.temperature else catalog.AUTO

    @property
    def command(self) -> str:
        """What to run."""
        question, found = self.question, forecast.recommended(self.made)
        words = ["draftproof", "generate", "--target", question.target]
        if question.temperature:
            words += ["--temperature", f"{question.temperature:g}"]
        if found is None:
            return shlex.join([*words, "--no-speculative"])
        words += ["--drafter", found[0].spec, "--rule", self.rule]
        return shlex.join([*words, *([] if found[1].gamma is None else ["--gamma", found[1].name])])


def outlook(question: Question, target: Loaded, place: Place) -> Outlook:
    """Measure, compute, remember. What cannot be forecast is said in the note."""
    params = SamplingParams(temperature=question.temperature, max_tokens=question.max_tokens)
    notes = benching.busy(provenance())
    if target.text is None:
        return Outlook(question, note=f"{target.model.name} has no tokenizer, so it cannot read the prompts.")
    limit = target.model.max_context
    room = None if limit is None else limit - params.max_tokens - AUTO_GAMMA
    try:
        items, left_out = benching.items(target.text, benching.PromptOptions(per_category=_PER_CATEGORY), room)
        with setup.reporting(place, "loading the drafters; once a machine, measuring what a step costs") as place:
            candidates = forecast.candidates(target, place, question.drafter)
        made = _made(target, candidates, items, params)
    except InputError as error:
        return Outlook(question, note=str(error))
    if left_out:
        notes = [*notes, f"Left out, too long for the context: {', '.join(left_out)}."]
    forecast.remember(target.model, params.temperature, made)
    return Outlook(question, made, items, notes=notes)


def _made(
    target: Loaded, candidates: Sequence[Candidate], items: Sequence[Item], params: SamplingParams
) -> list[Forecast]:
    with show.Bar("forecasting", 1.0) as bar:
        return forecast.forecasts(target, candidates, items, params, lambda what, share: bar.update(share, what))


def report(seen: Outlook) -> dict[str, Any]:
    """The fields of `forecast` in the JSON report; see results/README.md."""
    if seen.note is not None:
        return {"forecast": None, "forecast_note": seen.note}
    found = forecast.recommended(seen.made)
    advice: dict[str, Any] = {"drafter": None, "rule": None, "gamma": None}
    if found is not None:
        advice = {"drafter": found[0].spec, "rule": seen.rule, "gamma": found[1].name, **_numbers(found[1].overall)}
    return {
        "forecast": {
            "temperature": seen.question.temperature,
            "max_tokens": seen.question.max_tokens,
            "prompts": [item.id for item in seen.items],
            "drafters": [_drafter(one) for one in seen.made],
            "recommended": {**advice, "command": seen.command},
            "notes": list(seen.notes),
        },
        "forecast_note": None,
    }


def _drafter(one: Forecast) -> dict[str, Any]:
    """One entry of `drafters`."""
    verify = one.costs.verify
    return {
        "drafter": one.spec,
        "draft_seconds": one.draft_seconds,
        "cost_ratio_c": one.draft_seconds / verify.at(1),
        "verify_seconds": {rows: verify.at(rows) for rows in range(1, AUTO_GAMMA + 2)},
        "plain_tokens_per_s": 1 / verify.at(1),
        "acceptance_by_position": one.lengths[-1].stats.conditional_acceptance(),
        "gamma": one.best.name,
        "lengths": [_length(length) for length in one.lengths],
    }


def _length(length: Length) -> dict[str, Any]:
    return {
        "gamma": length.name,
        **_numbers(length.overall),
        "mean_acceptance_length": length.stats.mean_acceptance_length,
        "draft_acceptance_rate": length.stats.draft_acceptance_rate,
        "coverage": length.stats.coverage,
        "categories": {name: _numbers(estimate) for name, estimate in length.categories.items()},
    }


def _numbers(estimate: Estimate) -> dict[str, Any]:
    return {"speedup": estimate.value, "low": estimate.low, "high": estimate.high, "verdict": estimate.verdict}


def show_outlook(seen: Outlook) -> None:
    """Tables, then what to run."""
    out = show.console(sys.stdout)
    if seen.note is not None:
        out.print(f"no forecast: {seen.note}")
        return
    question = seen.question
    how = "greedy" if not question.temperature else f"temperature {question.temperature:g}, coupled"
    size = f"{len(seen.items)} prompts, up to {question.max_tokens} new tokens, {how}"
    out.print(f"Forecast of decoding: {size}", style="bold")
    out.print(_costs(seen.made))
    out.print()
    rows = show.table("drafter", ">γ", ">speed-up", ">95 % interval", ">tokens/call", "")
    rows.columns[0].no_wrap = True
    asked = None if question.drafter is None else forecast.without_gamma(question.drafter)[1]
    for one in seen.made:
        _add(rows, one, asked)
    out.print(rows)
    out.print()
    for note in seen.notes:
        out.print(note)
    _advise(seen)


def _costs(made: Sequence[Forecast]) -> str:
    """Three sentences: what was measured of this machine."""
    verify = made[0].costs.verify
    calls = ", ".join(f"{1e3 * verify.at(rows):.3g}" for rows in _ROWS)
    drafts = {name: curve.at(1) for one in made for name, curve in one.costs.drafts.items()}
    drafting = [*(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in drafts.items()), "a look-up next to nothing"]
    return (
        f"Plain decoding: {1 / verify.at(1):.0f} tokens/s.\n"
        f"A target call over {', '.join(map(str, _ROWS))} tokens: {calls} ms.\n"
        f"Drafting a token: {', '.join(drafting)}."
    )


def _add(rows: Any, one: Forecast, asked: str | None) -> None:
    """Lengths by cost, then the best fixed one and the one asked for."""
    auto, *fixed = one.lengths
    best = max(fixed, key=lambda length: length.overall.value)
    shown = [auto, *(length for length in fixed if length is best or length.name == asked)]
    for number, length in enumerate(shown):
        estimate = length.overall
        rows.add_row(
            "" if number else one.spec,
            length.name,
            f"{estimate.value:.2f}",
            f"{estimate.low:.2f} – {estimate.high:.2f}",
            f"{length.stats.mean_acceptance_length:.2f}",
            "either way" if estimate.verdict == NO_DIFFERENCE else estimate.verdict,
        )


def _advise(seen: Outlook) -> None:
    out = show.console(sys.stdout)
    found = forecast.recommended(seen.made)
    if found is None:
        out.print("Recommended: off. No draft is expected to be faster than plain decoding.", style="yellow")
    else:
        one, length = found
        method = f"{one.spec}, {'γ by cost' if length.gamma is None else f'γ {length.gamma}'}, rule {seen.rule}"
        estimate = length.overall
        unsure = "; the interval holds 1, so it may bring nothing" if estimate.verdict == NO_DIFFERENCE else ""
        out.print(f"Recommended: {method}: {estimate.value:.2f} times plain decoding's speed{unsure}.", style="green")
        kinds = ", ".join(f"{name} {each.value:.2f}" for name, each in length.categories.items())
        out.print(f"By kind of text: {kinds}.")
    out.print(f"  {seen.command}", soft_wrap=True)
