"""From options to an engine, and the lines that say what runs and why drafting is off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from draftproof import catalog
from draftproof.bench.forecast import recall
from draftproof.catalog import Loaded, Place
from draftproof.cli import show
from draftproof.cli.options import ModelOptions
from draftproof.contracts import Model
from draftproof.drafters.length import AutoLength
from draftproof.engine import Engine
from draftproof.memory import TOKENS, Need, Room, listed, refuse_beyond, room_on
from draftproof.models.hf_load import check_device
from draftproof.prompts import Prompt
from draftproof.run import tokenizer
from draftproof.stats import Stats
from draftproof.text import Text
from draftproof.types import InputError, SamplingParams, Step

_HOPELESS_STEPS = 32
_TEMPLATE = 128  # tokens of a chat template, at most as a rule
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Texts:
    """How long texts may become, and how many at a time: what KV caches must have room for."""

    tokens: int = TOKENS
    requests: int = 1

    @classmethod
    def of(cls, prompts: Sequence[Prompt], max_tokens: int, at_a_time: int = 1) -> Texts:
        """The longest `at_a_time` of the prompts, on average. Without a tokenizer: a token for two characters."""
        lengths = sorted(sum(len(turn) + max_tokens * 2 for turn in prompt.turns) for prompt in prompts)[-at_a_time:]
        mean = _TEMPLATE + sum(lengths) // (2 * len(lengths))
        return cls(max(TOKENS, mean), 1) if len(lengths) == 1 else cls(mean, len(lengths))


@dataclass(frozen=True)
class Setup:
    """A loaded engine, what the user asked for, and the memory its models take by role."""

    engine: Engine
    target: Loaded
    options: ModelOptions
    needs: Mapping[str, Need]

    @property
    def text(self) -> Text:
        """The target's tokenizer. InputError where it has none."""
        return tokenizer(self.engine)

    @property
    def gamma(self) -> int:
        """Draft tokens a step, at most."""
        most = self.engine.drafter.gamma
        return most if self.options.gamma is None else min(most, self.options.gamma)

    def drafting_off(self, max_tokens: int) -> str | None:
        """Why nothing will be drafted, or None."""
        if not self.options.speculative:
            return "--no-speculative was given"
        if self.engine.drafter.gamma == 0:
            return f"the {self.engine.drafter.name} drafter proposes nothing"
        if self.options.gamma == 0:
            return "--gamma 0 was given"
        if max_tokens < 3:
            return f"max tokens {max_tokens} leaves no room for a draft token"
        return None

    def forewarning(self, params: SamplingParams) -> str | None:
        """A sentence where `draftproof check` found that this drafting costs more than it brings; nothing is run."""
        if self.drafting_off(params.max_tokens) or (params.temperature and self.engine.rule.name != "coupled"):
            return None
        options = self.options
        known = recall(self.target.model, options.drafter, options.gamma, params.temperature)
        if known is None or known.high >= 1:
            return None
        return (
            f"draftproof check expects {options.drafter} to be slower than plain decoding here, {known.value:.2f} times"
            f" as fast ({known.low:.2f} to {known.high:.2f}): take another drafter, or --no-speculative."
        )

    def check_room(self, prompt: int, max_tokens: int, rooms: Callable[[str], Room] = room_on) -> None:
        """InputError for a prompt of so many tokens whose KV caches do not fit into what is free now."""
        refuse_beyond(self.needs, prompt + max_tokens, rooms=rooms, loaded=True)

    def status(self, max_tokens: int) -> str:
        """One line: target, drafter, rule, draft length, device, precision, threads."""
        drafter, rule = self.engine.drafter, self.engine.rule.name
        asked = f"{rule} (auto)" if self.options.rule == "auto" else rule
        reason = self.drafting_off(max_tokens)
        length = f"γ by cost, {self.gamma} at most" if isinstance(drafter, AutoLength) else f"γ {self.gamma}"
        method = f"drafting off: {reason}" if reason else f"drafter {drafter.name} ({length}) · rule {asked}"
        where = [str(self.target.model.device), self.target.model.dtype]
        if self.target.model.device.type == "cpu":
            where.append(show.count(threads_of(self.target.model), "thread"))
        return f"target {Path(self.target.model.name).name} · {method} · {', '.join(where)}"

    def described(self, max_tokens: int) -> dict[str, object]:
        """The same for `--json`."""
        return {
            "target": self.target.model.name,
            "drafter": self.engine.drafter.name,
            "rule": self.engine.rule.name,
            "gamma": self.gamma,
            "device": str(self.target.model.device),
            "dtype": self.target.model.dtype,
            "threads": threads_of(self.target.model),
            "drafting_off": self.drafting_off(max_tokens),
            "memory": {role: need.report() for role, need in self.needs.items()},
        }


def load(options: ModelOptions, texts: Texts = Texts(), rooms: Callable[[str], Room] = room_on) -> Setup:
    """Target, drafter and rule. InputError, before anything runs, for what does not fit together or into memory.

    rooms: the free memory of a device, by its name.
    """
    place = settle(options.device, options.dtype, options.threads)
    spec = named(options.target, place)
    options = replace(options, drafter=options.drafter or default_drafter(options, spec))
    needs = catalog.needs(spec, options.drafter, place)
    refuse_beyond(needs, texts.tokens, texts.requests, rooms)
    target = load_target(spec, place)
    with reporting(place, "loading the drafter; once a machine, measuring what a step costs") as place:
        engine = catalog.engine_for(target, options.drafter, options.rule, place, options.gamma)
    if needs:
        show.notice(f"memory: {listed(needs, texts.tokens, texts.requests)}")
    return Setup(engine, target, options, needs)


@contextmanager
def reporting(place: Place, what: str) -> Iterator[Place]:
    """The place with a progress bar, for what takes long only the first time."""
    with show.Bar(what, 1.0) as bar:
        yield replace(place, progress=lambda doing, share: bar.update(share, doing))


def settle(device: str, dtype: str, threads: int | None) -> Place:
    """The place models run at; sets the thread count of this process."""
    if threads is not None:
        if not 1 <= threads <= _MOST_THREADS:
            raise InputError(f"--threads must lie between 1 and {_MOST_THREADS}, not {threads}.")
        torch.set_num_threads(threads)
    check_device(device)
    return Place(device, dtype, threads)


def threads_of(model: Model) -> int:
    """CPU threads a model computes with: its own, or else PyTorch's."""
    return getattr(model, "threads", None) or torch.get_num_threads()


def named(spec: str, place: Place) -> str:
    """The spec, that of the demo's model for an empty one."""
    return spec or f"{default_backend(place)}:{demo_folder()}"


def default_drafter(options: ModelOptions, spec: str) -> str:
    """For the demo's model on our own kernels what was fastest there (results/); elsewhere what needs no preparation.

    spec: that of the target as `named` gives it.
    """
    demo = not options.target and spec.startswith("native:")
    return "ngram+lowbit" if demo and options.speculative else "ngram"


def load_target(spec: str, place: Place) -> Loaded:
    """The model of a spec, the demo's model for an empty one. InputError where it does not fit into memory."""
    spec = named(spec, place)
    refuse_beyond(catalog.needs(spec, place=place))
    with show.busy("loading the target"):
        loaded = catalog.load_model(spec, place)
    if loaded.model.device.type == "cpu" and getattr(loaded.model, "threads", None) is not None:
        # The model brings threads of its own; PyTorch's would only wait for each other beside them.
        torch.set_num_threads(1)
    return loaded


def default_backend(place: Place) -> str:
    """Our own kernels where they are installed and the place is theirs, else transformers."""
    from draftproof.models import native

    return "native" if native.available() and place.device == "cpu" and place.dtype == "auto" else "hf"


def demo_folder() -> str:
    """The folder of the demo's model, fetched and converted on the first call."""
    from draftproof.demo_weights import demo_model

    with show.Bar("preparing the demo's model (once)", 1.0) as bar:
        return str(demo_model(lambda what, share: bar.update(share, what)))


class Watch:
    """Warns before a run when drafting is known to be no use, looks at its steps, and warns once when they say so."""

    def __init__(self, forewarning: str | None = None) -> None:
        self.warnings: list[str] = []
        self._hopeless = False
        self._seen = Stats()
        if forewarning is not None:
            self._warn(forewarning)

    def see(self, step: Step) -> None:
        """Count a step."""
        self._seen.add(step)
        drafted, steps = self._seen.draft_tokens, self._seen.drafted_steps
        if steps == _HOPELESS_STEPS and not self._seen.accepted_tokens and not self._hopeless:
            self._hopeless = True
            self._warn(
                f"none of {drafted} draft tokens was accepted in {steps} steps: this drafter only costs"
                " time here; try another one, or --no-speculative."
            )

    def end(self, stats: Stats, off: str | None) -> None:
        """The run is over: say so when drafting was on and not one step had a draft."""
        if stats.steps > 1 and off is None and not stats.draft_tokens:
            self._warn("no step had a draft: the drafter found nothing to propose.")

    def _warn(self, sentence: str) -> None:
        self.warnings.append(sentence)
        print(f"warning: {sentence}", file=sys.stderr)
