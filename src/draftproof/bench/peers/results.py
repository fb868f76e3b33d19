"""What a report on peers says beyond `bench.report`: whose tokens are compared with whose, and who is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.bench.compare import Item, Measured, Record, Trial
from draftproof.bench.estimates import Estimate, estimates
from draftproof.bench.peers.base import PeerMethod, Tuned
from draftproof.bench.peers.ours import OurMethod
from draftproof.bench.report import first_difference

# What is known of other projects' calls: the tokens they brought, and of some (`PeerMethod.counts`) the draft tokens.
_BROUGHT = ("num_spec_steps", "mean_acceptance_length")
_DRAFTED = ("num_drafted_steps", "num_draft_tokens", "num_accepted_draft_tokens", "draft_acceptance_rate", "coverage")
_SIZES = (16, 8, 4)
_OURS = "draftproof"


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
    ours = [one for one in methods[_OURS] if isinstance(one, OurMethod)]
    kinds = {one.name: (project, one) for project, group in methods.items() for one in group}
    counted = {answer["id"] for answer in report["answers"]}
    prompts = {item: trials for item, trials in measured.by_prompt().items() if item.id in counted}
    apart: dict[str, Mapping[str, Any]] = {}
    for entry in report["methods"]:
        project, method = kinds[entry["name"]]
        entry |= {"project": project, "bits": size_class(method.bits), **_setting(tuned[entry["name"]])}
        entry |= _agreement(prompts, method.name, reference(method, ours))
        entry |= _own_plain(prompts, method, tuned)
        apart[entry["name"]] = entry["first_differences"]
        if project != _OURS:
            _forget(entry, method.counts)
    for answer in report["answers"]:
        for name, one in answer["methods"].items():
            one["first_difference"] = apart[name].get(answer["id"], {}).get("position")
    return {**report, "ahead": ahead(report, prompts, kinds)}


def ahead(
    report: Mapping[str, Any], prompts: Mapping[Item, Sequence[Trial]], kinds: Mapping[str, tuple[str, PeerMethod]]
) -> list[dict[str, Any]]:
    """Each of our methods against the best mode of each other project, by category and size of weights."""
    speeds = {entry["name"]: entry["categories"] for entry in report["methods"]}
    projects = dict.fromkeys(project for project, _ in kinds.values() if project != _OURS)
    sizes = {name: size_class(method.bits) for name, (_, method) in kinds.items()}
    made = []
    for ours in (name for name, (project, _) in kinds.items() if project == _OURS):
        for project in projects:
            modes = [n for n, (p, _) in kinds.items() if p == project and sizes[n] == sizes[ours]]
            if modes:
                best = {c: max(modes, key=lambda n, c=c: speeds[n][c]["tokens_per_s"]) for c in speeds[ours]}  # type: ignore[misc]
                made.append({"name": ours, "project": project, "bits": sizes[ours], **_lead(prompts, ours, best)})
    return made


def _lead(prompts: Mapping[Item, Sequence[Trial]], ours: str, best: Mapping[str, str]) -> dict[str, Any]:
    """Our tokens/s over those of the best mode of each category."""
    rows: dict[str, list[list[float]]] = {category: [] for category in best}
    for item, trials in prompts.items():
        pairs = [(one.records[ours], one.records[best[item.category]]) for one in trials]
        rows[item.category].append([a.tokens_per_s / b.tokens_per_s for a, b in pairs])
    ratios, mean = estimates(rows)
    return {
        "geomean": mean.value,
        "low": mean.low,
        "high": mean.high,
        "everywhere": all(one.value > 1 for one in ratios.values()),
        "categories": {category: {"best": best[category], **_numbers(one)} for category, one in ratios.items()},
    }


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


def _own_plain(
    prompts: Mapping[Item, Sequence[Trial]], method: PeerMethod, tuned: Mapping[str, Tuned]
) -> dict[str, Any]:
    """Does it write what the same project's plain decoding writes? Only asked where both run in one precision."""
    plain = method.plain
    if plain is None or plain.name not in tuned:
        return {"same_as_own_plain_share": None}
    if tuned[plain.name].setting.get("dtype") != tuned[method.name].setting.get("dtype"):
        return {"same_as_own_plain_share": None}
    same = [all(t.records[plain.name].tokens == t.records[method.name].tokens for t in ts) for ts in prompts.values()]
    return {"same_as_own_plain_share": sum(same) / len(same)}


def _setting(tuned: Tuned) -> dict[str, Any]:
    return {
        "setting": dict(tuned.setting),
        "tried": [{**setting, "tokens_per_s": speed} for setting, speed in tuned.tried],
    }


def _forget(entry: dict[str, Any], counts: bool) -> None:
    """Take out what was derived from things that are not known of other projects."""
    known, told = entry["speculation"], (*_BROUGHT, *(_DRAFTED if counts else ()))
    entry |= {"timing": None, "speculation": known and {key: known[key] for key in told}}
    if not counts:
        entry["acceptance_by_position"] = {}
    for one in entry["categories"].values():
        one |= dict.fromkeys(("alpha", "cost_ratio_c") if counts else ("alpha", "cost_ratio_c", "coverage"))


def _numbers(one: Estimate) -> dict[str, Any]:
    return {"ratio": one.value, "low": one.low, "high": one.high, "verdict": one.verdict}
