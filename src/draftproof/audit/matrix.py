"""What the exact audit enumerates: rules x drafters x shapes x sampling parameters, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftproof.catalog import load_rule
from draftproof.contracts import Ask, Drafter
from draftproof.drafters.children import Shape
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.models.toy import ToyModel
from draftproof.types import Proposal, SamplingParams

VOCAB = 3
SEED = 20
PROMPT = (0, 2, 0, 1, 0)
TOKENS = 4
_LIKELY = 0.3
RULES = ("token", "block", "tree", "coupled", "auto")

Make = Callable[[ToyModel, Shape], Drafter]


@dataclass(frozen=True)
class Case:
    """One combination, by names; `engine`: the whole engine is enumerated too."""

    rule: str
    drafter: str
    shape: str
    sampling: str
    engine: bool = False


class Opposite(ToyModel):
    """Prefers what its target shuns: a hostile draft model."""

    def _make_row(self, prefix: tuple[int, ...], layer: int) -> Tensor:
        return -super()._make_row(prefix, layer)


def target() -> ToyModel:
    """Three tokens, a row of its own for every prefix, float64."""
    return ToyModel(SEED, VOCAB, order=0, dtype=torch.float64)


def draft_model(size: int = VOCAB, seed: int = 70) -> ToyModel:
    """Half like the target, half its own."""
    return ToyModel(seed, size, order=0, near=(SEED, 0.5), dtype=torch.float64)


def _drafted_by(model: Callable[[], ToyModel], allowed: tuple[bool, ...] | None = None) -> Make:
    return lambda target, shape: ModelDrafter(model(), VOCAB, shape, allowed)


class WhileSure(ModelDrafter):
    """Draws on only behind tokens that were likely: its lengths depend on what it drew."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Each chain ends behind its first unlikely token, which stays."""
        return super().propose([replace(ask, go_on=lambda sure: sure > _LIKELY) for ask in asks])


def drafters() -> Mapping[str, tuple[str, Make]]:
    """Name -> (how children are taken, factory). An n-gram drafter takes the width of its shape's first level."""
    return {
        "drawn": ("drawn", _drafted_by(draft_model)),
        "without replacement": ("drawn", _drafted_by(draft_model)),
        "mixed": ("mixed", _drafted_by(draft_model)),
        "chosen": ("chosen", _drafted_by(draft_model)),
        "n-gram": ("chosen", _ngram),
        "while sure": ("drawn", lambda target, shape: WhileSure(draft_model(), VOCAB, shape)),
        "early exit": ("drawn", lambda target, shape: EarlyExitDrafter(target, 2, shape)),
        "early exit mixed": ("mixed", lambda target, shape: EarlyExitDrafter(target, 3, shape)),
        "small vocabulary": ("drawn", _drafted_by(lambda: draft_model(2))),
        "forbidden ids": ("mixed", _drafted_by(lambda: draft_model(5), (True, False, True, True, True))),
        "draft = target": ("drawn", _drafted_by(target)),
        "hostile": ("drawn", _drafted_by(lambda: Opposite(SEED, VOCAB, order=0, dtype=torch.float64))),
    }


def _ngram(target: ToyModel, shape: Shape) -> Drafter:
    return NgramDrafter(gamma=len(shape.widths), min=1, max=4, width=shape.widths[0])


SHAPES: Mapping[str, tuple[str, ...]] = {
    "drawn": ("1", "1x1", "1x1x1"),
    "without replacement": ("2", "3", "2x1", "3x1", "1x2"),
    "mixed": ("2", "2x1", "3x1", "2x2", "2x1x1"),
    "chosen": ("1", "1x1", "1x1x1", "2x1", "2x2", "3x1"),
    "n-gram": ("1", "1x1", "1x1x1", "2x2"),
    "while sure": ("1x1", "1x1x1"),
    "early exit": ("1", "1x1", "1x1x1", "2x1"),
    "early exit mixed": ("2x1", "2x2"),
    "small vocabulary": ("1x1", "2x1"),
    "forbidden ids": ("1x1", "2x1"),
    "draft = target": ("1", "1x1", "1x1x1", "2x1"),
    "hostile": ("1", "1x1", "1x1x1", "2x1"),
}

CROSSED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("drawn", "1x1", ("token", "block", "tree", "coupled")),
    ("mixed", "2x1", ("token", "tree", "coupled")),
    ("without replacement", "2", ("token", "tree")),
    ("chosen", "1x1", ("token", "coupled")),
    ("n-gram", "1x1", ("token", "coupled")),
    ("early exit", "1x1", ("block", "coupled")),
)
"""(drafter, shape, rules) that meet every kind of sampling parameters."""


def sampling() -> Mapping[str, SamplingParams]:
    """Names of sampling parameters; all emit at most TOKENS tokens."""
    base = SamplingParams(temperature=1.0, max_tokens=TOKENS)
    bias = ((0, 1.5), (2, -1.0))
    kinds: dict[str, dict[str, Any]] = {
        "T=1": {},
        "T=0.5": {"temperature": 0.5},
        "T=1.5": {"temperature": 1.5},
        "greedy": {"temperature": 0.0},
        "top-k 2": {"top_k": 2},
        "top-p 0.8": {"top_p": 0.8},
        "min-p 0.2": {"min_p": 0.2},
        "typical-p 0.7": {"typical_p": 0.7},
        "logit bias": {"logit_bias": bias},
        "repetition": {"repetition_penalty": 1.7},
        "presence": {"presence_penalty": 0.9},
        "frequency": {"frequency_penalty": 0.6},
        "no-repeat 3": {"no_repeat_ngram": 3},
        "end tokens": {"stop_tokens": (1, 2)},
        "min tokens": {"stop_tokens": (1,), "min_tokens": 2},
        "processor": {"processors": (favour_change,)},
        "stateful processor": {"processors": (Counting(),)},
        "greedy, penalties": {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.6},
        "all together": {
            "temperature": 0.8,
            "top_p": 0.97,
            "min_p": 0.02,
            "logit_bias": bias,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "no_repeat_ngram": 4,
            "stop_tokens": (1,),
            "min_tokens": 1,
            "processors": (favour_change,),
        },
    }
    return {name: replace(base, **changes) for name, changes in kinds.items()}


def favour_change(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A user's processor: the last token becomes less likely, one that stood two places before is forbidden."""
    scores = scores.clone()
    scores[0, input_ids[0, -1]] -= 1.0
    scores[0, input_ids[0, -2]] = float("-inf")
    return scores


class Counting:
    """A processor with state, as a grammar matcher has: it follows the text token by token and counts.

    It goes back when the text it is shown is no continuation, which is what nodes of one proposal need.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._counts = [0.0] * VOCAB

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores minus 0.4 for every occurrence of a token in the text."""
        text = input_ids[0].tolist()
        if text[: len(self._text)] != self._text:
            self._text, self._counts = [], [0.0] * VOCAB
        for token in text[len(self._text) :]:
            self._counts[token] += 1
        self._text = text
        return scores - 0.4 * torch.tensor(self._counts, dtype=scores.dtype)


def make(case: Case) -> tuple[ToyModel, Drafter, Any, SamplingParams]:
    """(target, drafter, rule, sampling parameters) of a combination."""
    scheme, factory = drafters()[case.drafter]
    model = target()
    drafter = factory(model, Shape.of(1, case.shape, scheme))
    return model, drafter, load_rule(case.rule, drafter), sampling()[case.sampling]


def cases(quick: bool = False) -> Iterator[Case]:
    """All combinations; quick: every drafter with its smallest shape, every kind of parameters once."""
    for drafter, shapes in SHAPES.items():
        for shape in shapes[:1] if quick else shapes:
            for rule in RULES:
                chain, coupled = set(shape) <= {"1", "x"}, rule == "coupled" or drafter in ("chosen", "n-gram")
                if (rule == "block" and not chain) or (rule == "auto" and shape not in shapes[:2]):
                    continue
                yield Case(rule, drafter, shape, "T=1", engine=shape == "1" if coupled else len(shape) <= 3)
    names = list(sampling())[1:]
    crossed = [
        Case(rule, drafter, shape, name) for name in names for drafter, shape, rules in CROSSED for rule in rules
    ]
    yield from crossed[:: len(CROSSED) * 2 + 1] if quick else crossed
