"""The speed-up of drafters before they run: costs measured, acceptance read off one plain run, the rest computed.

Measured: seconds of a step by its draft tokens (`costs.measure`), and at every place of texts that the target writes
itself how many of a drafter's tokens it takes (`replay.record`). Computed: the steps in which a request would write
these texts (`replay.replay`), and tokens / cost of them (`predict.from_lengths`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftproof import catalog, specs
from draftproof.bench import predict
from draftproof.bench.compare import Item
from draftproof.bench.estimates import Estimate, estimates
from draftproof.bench.replay import Depth, Told, Transcript, Writing, record, replay
from draftproof.catalog import Loaded, Place
from draftproof.contracts import Drafter, Model
from draftproof.cost_memory import memory_of, write_down
from draftproof.drafters.chained import ChainedDrafter
from draftproof.drafters.children import DEFAULT_GAMMA
from draftproof.drafters.cost_curves import Costs
from draftproof.drafters.length import AUTO_GAMMA, AutoLength
from draftproof.entries import possible
from draftproof.files import cache_folder, read_object
from draftproof.stats import Stats
from draftproof.types import InputError, SamplingParams, Step

AUTO = catalog.AUTO
_GAMMAS = (1, 2, 3, 4, 5, 6, 8, 12, 16, AUTO_GAMMA)
_HOPED = 0.95  # no drafter is asked much deeper than would pay with this acceptance rate
_HOPELESS = 0.5  # below this acceptance rate no deeper than pays: longer drafts are hardly ever taken whole
_MARGIN = 1.05  # a fixed length must promise so much more than lengths by cost, which adapt to each text
_TREE = {"shape", "width", "nodes"}

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Candidate:
    """A drafter that is forecast: its parts by cost, and the look-ups of each fixed length.

    links  the parts' specs in their order; looks(link, gamma): a look-up, None for a part whose tokens cost a forward
    gamma  a fixed length that is wanted in any case
    """

    links: tuple[str, ...]
    auto: AutoLength
    looks: Callable[[str, int], Drafter | None] = lambda link, gamma: None
    gamma: int | None = None

    @property
    def spec(self) -> str:
        """As `--drafter` takes it."""
        return "+".join(self.links)


@dataclass(frozen=True)
class Length:
    """What is expected of one draft length; gamma None: by cost. overall: geometric mean of the categories."""

    gamma: int | None
    overall: Estimate
    categories: Mapping[str, Estimate]
    stats: Stats

    @property
    def name(self) -> str:
        """As the option gamma takes it."""
        return AUTO if self.gamma is None else str(self.gamma)


@dataclass(frozen=True)
class Forecast:
    """One drafter: what its steps cost, and what is expected of every draft length, that by cost first."""

    spec: str
    costs: Costs
    lengths: tuple[Length, ...]

    @property
    def best(self) -> Length:
        """Lengths by cost, unless a fixed one promises clearly more."""
        auto = self.lengths[0]
        fixed = max(self.lengths, key=lambda one: one.overall.value)
        return fixed if fixed.overall.value > _MARGIN * auto.overall.value else auto

    @property
    def draft_seconds(self) -> float:
        """Drafting one token; 0 where all parts look up."""
        return max((curve.at(1) for curve in self.costs.drafts.values()), default=0.0)


def recommended(forecasts: Sequence[Forecast]) -> tuple[Forecast, Length] | None:
    """The drafter and length of the highest expected speed-up; None, drafting off, where none is above 1."""
    best = max(forecasts, key=lambda one: one.best.overall.value)
    return (best, best.best) if best.best.overall.value > 1 else None


def candidates(target: Loaded, place: Place, spec: str | None = None) -> list[Candidate]:
    """The drafter of this spec by cost, or all that the catalogue has for the target. InputError for one of trees."""

    def looks(link: str, gamma: int) -> Drafter | None:
        entry = catalog.drafters()[specs.parse(link).name]
        return catalog.load_drafter(link, target, place, gamma) if entry.looks else None

    def load(link: str) -> AutoLength:
        drafter = catalog.load_drafter(link, replace(target, timed=True), place)
        if not isinstance(drafter, AutoLength):
            raise InputError(f"shapes are not forecast: measure {link} by draftproof bench run.")
        return drafter

    if spec is not None:
        bare, given = without_gamma(spec)
        gamma = None if given in (None, AUTO) else _number(str(given))
        return [Candidate(tuple(specs.links(bare, catalog.drafters())), load(bare), looks, gamma)]
    loaded: dict[str, AutoLength] = {}
    for name in possible(catalog.drafters(), target.model.can):
        links = name.split("+")
        loaded[name] = load(name) if len(links) == 1 else _joined([loaded[link] for link in links])
    return [Candidate(tuple(name.split("+")), auto, looks) for name, auto in loaded.items()]


def _joined(parts: Sequence[AutoLength]) -> AutoLength:
    """Look-ups before one drafter, at the costs of that drafter."""
    drafts = [draft for part in parts for draft in part.drafts]
    return AutoLength([look for part in parts for look in part.looks], drafts, parts[-1].costs)


def _number(gamma: str) -> int:
    if not gamma.isdecimal() or not 1 <= int(gamma) <= AUTO_GAMMA:
        raise InputError(
            f"a draft length that can be forecast is auto or a number from 1 to {AUTO_GAMMA}, not {gamma}."
        )
    return int(gamma)


def without_gamma(spec: str) -> tuple[str, str | None]:
    """The spec without its draft length, and that length; None where it gives none."""
    links = [specs.parse(link) for link in specs.links(spec, catalog.drafters())]
    given = [link.options["gamma"] for link in links if "gamma" in link.options]
    bare = [replace(link, options={k: v for k, v in link.options.items() if k != "gamma"}) for link in links]
    return "+".join(map(str, bare)), given[0] if given else None


def forecasts(
    target: Loaded, made: Sequence[Candidate], items: Sequence[Item], params: SamplingParams, progress: Progress
) -> list[Forecast]:
    """What is to be expected of every candidate on these prompts. InputError where the target writes nothing on them.

    progress: what is being done, and the share of that.
    """
    asked = {part.name: (part, _depth(one, part)) for one in made for part in one.auto.drafts}
    writing = Writing(
        params, target.text, lambda share: progress("letting the target write, and drafters guess", share)
    )
    written = [one for one in record(target.model, items, writing, list(asked.values())) if one.written > 1]
    if not written:
        raise InputError(f"{target.model.name} ends every prompt at once, so there is nothing to forecast.")
    done = []
    for number, one in enumerate(made):
        progress("computing what each draft length would bring", number / len(made))
        done.append(forecast(one, written, min((_deepest(one, part) for part in one.auto.drafts), default=AUTO_GAMMA)))
    return done


def forecast(candidate: Candidate, written: Sequence[Transcript], deepest: int) -> Forecast:
    """What is to be expected of one candidate with lengths by cost, and with fixed ones up to the deepest."""
    fixed = {gamma for gamma in (*_GAMMAS, candidate.gamma) if gamma is not None and gamma < deepest} | {deepest}
    costs = candidate.auto.costs
    lengths = tuple(
        _length(costs, _drafter(candidate, gamma, deepest), gamma, written) for gamma in [None, *sorted(fixed)]
    )
    return Forecast(candidate.spec, costs, lengths)


def _length(
    costs: Costs, made: Callable[[Transcript], Drafter], gamma: int | None, written: Sequence[Transcript]
) -> Length:
    categories: dict[str, list[list[float]]] = {}
    counts = []
    for one in written:
        steps = replay(one, made(one))
        categories.setdefault(one.item.category, []).append([speedup(steps, costs)])
        counts.append(Stats.of(steps))
    each, overall = estimates(categories)
    return Length(gamma, overall, each, Stats.pooled(counts))


def _drafter(candidate: Candidate, gamma: int | None, deepest: int) -> Callable[[Transcript], Drafter]:
    """The drafter of a replay: look-ups look up again, the others say what is written down, up to the deepest."""
    auto = candidate.auto
    if gamma is None:
        return lambda one: AutoLength(auto.looks, [Told(part.name, deepest, one) for part in auto.drafts], auto.costs)
    looks = [candidate.looks(link, gamma) for link in candidate.links]

    def parts(one: Transcript) -> Iterator[Drafter]:
        paid = iter(auto.drafts)
        for look in looks:
            yield Told(next(paid).name, gamma, one) if look is None else look

    return lambda one: next(parts(one)) if len(looks) == 1 else ChainedDrafter(list(parts(one)))


def speedup(steps: Sequence[Step], costs: Costs) -> float:
    """Of decoding, by `predict.from_lengths`: tokens of these steps behind the prompt / their cost in plain calls."""
    behind = [step for step in steps if not step.prefill]
    unit = costs.step(0, "")
    drafting = sum(costs.draft(step.draft_depth, step.drafter) for step in behind) / unit
    shapes = Counter((step.num_draft_tokens, step.draft_depth) for step in behind)
    tokens = sum(len(step.tokens) for step in behind)
    return predict.from_lengths(shapes, tokens / len(behind), drafting, _curve(costs))


def _curve(costs: Costs) -> dict[int, float]:
    return {rows: costs.verify.at(rows) / costs.verify.at(1) for rows in range(1, AUTO_GAMMA + 2)}


def _best(costs: Costs, part: Drafter, rate: float) -> int:
    """The draft length of the largest speed-up at this acceptance rate."""
    curve, unit = _curve(costs), costs.verify.at(1)

    def hoped(gamma: int) -> float:
        return predict.from_alpha({(gamma, gamma): 1}, rate, costs.draft(gamma, part.name) / unit, curve)

    return max(range(1, min(part.gamma, AUTO_GAMMA) + 1), key=hoped)


def _deepest(candidate: Candidate, part: Drafter) -> int:
    """What would be best if nearly all were accepted; no less than what is usual, or wanted."""
    best = _best(candidate.auto.costs, part, _HOPED)
    return min(part.gamma, AUTO_GAMMA, max(DEFAULT_GAMMA, candidate.gamma or 1, best))


def _depth(candidate: Candidate, part: Drafter) -> Depth:
    """What the drafter is asked for while the target writes: all that is forecast, less where it is mostly wrong."""
    deepest = _deepest(candidate, part)

    def depth(rate: float) -> int:
        return deepest if rate >= _HOPELESS else min(deepest, _best(candidate.auto.costs, part, rate))

    return depth


def remember(model: Model, temperature: float, made: Sequence[Forecast]) -> None:
    """For the warning before a later run."""
    for one in made:
        known = {length.name: asdict(length.overall) for length in one.lengths}
        write_down(_file(model, one.spec, temperature), {"name": one.spec, "lengths": known})


def recall(model: Model, spec: str, gamma: int | None, temperature: float) -> Estimate | None:
    """What was forecast on this machine for this drafter, draft length and temperature; None where nothing was.

    gamma: what the user gave beside the spec, where that gives none.
    """
    bare, own = without_gamma(spec)
    try:
        found = read_object(_file(model, bare, temperature))["lengths"][own or str(gamma or AUTO)]
        return Estimate(float(found["value"]), float(found["low"]), float(found["high"]))
    except (InputError, KeyError, TypeError, ValueError):
        return None


def _file(model: Model, spec: str, temperature: float) -> Any:
    threads = getattr(model, "threads", None)
    name = f"{model.name} {model.dtype} {model.device} {threads} {spec} {float(temperature)}"
    return memory_of(name, cache_folder() / "forecasts")
