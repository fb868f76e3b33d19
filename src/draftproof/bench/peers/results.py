"""What a report on peers says beyond `bench.report`: whose tokens are compared with whose, and who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.bench.compare import Item, Measured, Record, Trial
from draftproof.bench.estimates import Estimate, estimates
from draftproof.bench.peers.base import PeerMethod, Tuned
from draftproof.bench.peers.ours import OurMethod
from draftproof.bench.report import first_difference

_UNTOLD = {"alpha": None, "coverage": None, "cost_ratio_c": None}
_SIZES = (16, 8, 4)


def size_class(bits: int) -> int:
    """Methods are set side by side with those of about as many bits a weight: 16 (or more), 8, 4."""
    return next((size for size in _SIZES if bits >= size - 1), _SIZES[-1])


def reference(method: PeerMethod, ours: Sequence[OurMethod]) -> OurMethod:
    """Our plain decoding whose tokens a method's are compared with: that of about as many bits a weight."""
    plain = [one for one in ours if one.drafter == "null"]
    return next((one for one in plain if size_class(one.bits) == size_class(method.bits)), plain[0])


def complete(
    report: dict[str, Any],
    measured: Measured,
    methods: Mapping[str, Sequence[PeerMethod]],
    tuned: Mapping[str, Tuned],
) -> dict[str, Any]:
    """The report with, for each method, its project, setting and agreement, and `ahead`.

    methods: by project, ours under "draftproof" and first.
    """
    ours = [one for one in methods["draftproof"] if isinstance(one, OurMethod)]
    kinds = {one.name: (project, one) for project, group in methods.items() for one in group}
    prompts = measured.by_prompt()
    for entry in report["methods"]:
        project, method = kinds[entry["name"]]
        entry |= {"project": project, "bits": size_class(method.bits), **_setting(tuned[entry["name"]])}
        entry |= _agreement(prompts, method.name, reference(method, ours))
        if project != "draftproof":
            _forget(entry, method.counts)
    for answer in report["answers"]:
        for name, one in answer["methods"].items():
            found = next(e for e in report["methods"] if e["name"] == name)["first_differences"]
            one["first_difference"] = found.get(answer["id"], {}).get("position")
    return {**report, "ahead": ahead(report, prompts, kinds)}


def ahead(
    report: Mapping[str, Any], prompts: Mapping[Item, Sequence[Trial]], kinds: Mapping[str, tuple[str, PeerMethod]]
) -> list[dict[str, Any]]:
    """Each of our methods against the best mode of each other project, by category and size of weights."""
    speeds = {entry["name"]: entry["categories"] for entry in report["methods"]}
    projects = dict.fromkeys(project for project, _ in kinds.values() if project != "draftproof")
    sizes = {name: size_class(method.bits) for name, (_, method) in kinds.items()}
    made = []
    for ours in (name for name, (project, _) in kinds.items() if project == "draftproof"):
        for project in projects:
            modes = [n for n, (p, _) in kinds.items() if p == project and sizes[n] == sizes[ours]]
            if not modes:
                continue
            best = {c: max(modes, key=lambda name, c=c: speeds[name][c]["tokens_per_s"]) for c in speeds[ours]}  # type: ignore[misc]
            ratios, mean = _ratios(prompts, ours, best)
            categories = {c: {"best": best[c], **_numbers(one)} for c, one in ratios.items()}
            made.append(
                {
                    "name": ours,
                    "project": project,
                    "bits": sizes[ours],
                    "geomean": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "everywhere": all(one["ratio"] > 1 for one in categories.values()),
                    "categories": categories,
                }
            )
    return made


def _ratios(
    prompts: Mapping[Item, Sequence[Trial]], ours: str, best: Mapping[str, str]
) -> tuple[dict[str, Estimate], Estimate]:
    rows: dict[str, list[list[float]]] = {category: [] for category in best}
    for item, trials in prompts.items():
        pairs = [(one.records[ours], one.records[best[item.category]]) for one in trials]
        if all(a.tokens and b.tokens for a, b in pairs):
            rows[item.category].append([a.tokens_per_s / b.tokens_per_s for a, b in pairs])
    return estimates({category: row for category, row in rows.items() if row})


def _agreement(prompts: Mapping[Item, Sequence[Trial]], name: str, against: OurMethod) -> dict[str, Any]:
    """Does it write what our plain decoding of about the same weights writes, and if not, how near was the choice?"""
    apart: dict[str, dict[str, Any]] = {}
    for item, trials in prompts.items():
        for one in trials:
            plain, other = one.records[against.name], one.records[name]
            position = first_difference(plain, other)
            if position is not None:
                apart[item.id] = {"position": position, "margin": _margin(item, plain, other, position, against)}
                break
    return {
        "reference": against.name,
        "same_tokens": not apart,
        "same_tokens_share": 1 - len(apart) / len(prompts),
        "first_differences": apart,
    }


def _margin(item: Item, plain: Record, other: Record, position: int, against: OurMethod) -> float | None:
    """None where one of the two ended before the other, so that there is no pair of tokens."""
    if position >= min(len(plain.tokens), len(other.tokens)):
        return None
    context = [*item.tokens, *plain.tokens[:position]]
    return against.margin(context, plain.tokens[position], other.tokens[position])


def _setting(tuned: Tuned) -> dict[str, Any]:
    return {
        "setting": dict(tuned.setting),
        "tried": [{**setting, "tokens_per_s": speed} for setting, speed in tuned.tried],
    }


def _forget(entry: dict[str, Any], counts: bool) -> None:
    """Of another project's call only its tokens are known, and of some its draft tokens: what else was derived goes."""
    entry["timing"] = None
    known = entry["speculation"]
    if known is not None:
        keep = ("num_spec_steps", "mean_acceptance_length")
        if counts:
            keep += (
                "num_drafted_steps",
                "num_draft_tokens",
                "num_accepted_draft_tokens",
                "draft_acceptance_rate",
                "coverage",
            )  # type: ignore[assignment]
        entry["speculation"] = {key: known[key] for key in keep}
    if not counts:
        entry["acceptance_by_position"] = {}
    for one in entry["categories"].values():
        one |= _UNTOLD if not counts else dict.fromkeys(("alpha", "cost_ratio_c"))


def _numbers(one: Estimate) -> dict[str, Any]:
    return {"ratio": one.value, "low": one.low, "high": one.high, "verdict": one.verdict}
