"""Controls: combinations with one mistake each, all seen in the field. The audit must find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftproof.audit import wrong
from draftproof.audit.laws import AnyRule, Fast, law_of, plain_law, total_variation
from draftproof.audit.matrix import PROMPT, TOKENS, draft_model, target
from draftproof.audit.scene import Scene
from draftproof.contracts import Drafter
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.types import SamplingParams
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule

CAUGHT = 0.01


@dataclass(frozen=True)
class Control:
    """A mistake, one sentence on where users met it, and the pieces with the mistake in them."""

    name: str
    mirrors: str
    pieces: Callable[[], tuple[Drafter, AnyRule, dict[str, Any]]]


@dataclass(frozen=True)
class Finding:
    """How far the control's law lies from plain decoding's."""

    name: str
    mirrors: str
    total_variation: float

    @property
    def caught(self) -> bool:
        """Far enough to be beyond doubt."""
        return self.total_variation >= CAUGHT


def drawn(shape: str = "1x1") -> ModelDrafter:
    """The right drafter that the mistakes are put into."""
    return ModelDrafter(draft_model(), 3, Shape.of(1, shape, "drawn"))


def _rule(twist: Any) -> Callable[[], tuple[Drafter, AnyRule, dict[str, Any]]]:
    return lambda: (drawn(), wrong.WrongRule(twist), {})


def _drafter(
    ask: Any = None, proposal: Any = None, shape: str = "1x1", rule: AnyRule | None = None
) -> Callable[[], tuple[Drafter, AnyRule, dict[str, Any]]]:
    return lambda: (wrong.WrongDrafter(drawn(shape), ask, proposal), rule or TokenRule(), {})


def _scene(rule: AnyRule, shape: str = "1x1", **changes: Any) -> Callable[[], tuple[Drafter, AnyRule, dict[str, Any]]]:
    return lambda: (drawn(shape), rule, changes)


_PENALTIES = SamplingParams(temperature=1.0, repetition_penalty=1.7, frequency_penalty=0.6, max_tokens=TOKENS)

CONTROLS: tuple[Control, ...] = (
    Control(
        "correction from the target",
        "the commonest slip in home-made loops: the residual is left out and a rejection falls back to p",
        _rule(wrong.correction_from_target),
    ),
    Control(
        "correction one step late",
        "rejection handled one iteration late: a word is dropped, its continuation kept (openvino.genai#4190)",
        _rule(wrong.correction_late),
    ),
    Control(
        "first draft token never checked",
        "an n-gram path committed its first token unverified (lattice#243)",
        _rule(wrong.first_unchecked),
    ),
    Control(
        "accept if in top-k",
        "lossy acceptance sold as lossless (typical acceptance, thresholds)",
        _rule(wrong.accept_in_top_k),
    ),
    Control(
        "compare with argmax",
        "a verifier that is greedy at T > 0, with a sampled bonus token (mlx-swift-lm#459, sglang#31214)",
        _rule(wrong.compare_with_argmax),
    ),
    Control(
        "block, last ratio uncapped",
        "a published variant accepts the last position with the uncapped joint ratio (code of 2601.05724)",
        _rule(wrong.block_uncapped),
    ),
    Control(
        "argmax drawn, softmax told",
        "argmax drafts verified as if sampled (transformers#47932, dflash#74)",
        _drafter(wrong.drawn_from(wrong.argmax_of)),
    ),
    Control(
        "filtered drawn, raw told",
        "the draft was filtered by top-k but the unfiltered row was reported (transformers#47932)",
        _drafter(wrong.drawn_from(wrong.top_two)),
    ),
    Control(
        "raw drawn, filtered told",
        "sampling parameters reached the reported row, not the draw",
        _drafter(proposal=wrong.told(wrong.top_two)),
    ),
    Control(
        "draft temperature misreported",
        "the draft row was told at another temperature than drawn at, here under the block rule (DeepSpec#31)",
        _drafter(proposal=wrong.told(wrong.flatter), rule=BlockRule()),
    ),
    Control(
        "drawn token withdrawn",
        "the draft was cut where its drawn token turned out unlikely: a confidence threshold after the draw",
        _drafter(proposal=wrong.unlikely_withdrawn),
    ),
    Control(
        "siblings told with replacement",
        "a tree drawn without replacement but verified with one row for all siblings",
        _drafter(proposal=wrong.row_of_the_eldest, shape="2x1", rule=TreeRule()),
    ),
    Control(
        "uniform reused",
        "one random number drew the draft token and decided about accepting it",
        _scene(TokenRule(), wrap=wrong.UniformReused),
    ),
    Control(
        "shared noise under the ratio rule",
        "draft and correction picked with the same Gumbel noise, acceptance by ratio (vllm PR#47386)",
        _scene(TokenRule(), wrap=wrong.SharedNoise),
    ),
    Control(
        "noise not keyed by position",
        "neighbouring positions got the same noise, so tokens depend on each other",
        _scene(CoupledRule(), shape="1", wrap=wrong.StuckNoise),
    ),
    Control(
        "garbage temperature at draft positions",
        "a request's temperature was expanded to the wrong rows (vllm on CPU)",
        _scene(TokenRule(), sampler=wrong.GarbageTemperature),
    ),
    Control(
        "penalties from a wrong prefix",
        "penalties saw the committed text only, not the draft tokens before a position (sglang#33643, vllm#18902)",
        _scene(TokenRule(), sampler=wrong.WrongPrefix, params=_PENALTIES),
    ),
)
"""The references are to public reports."""


def measure(control: Control) -> Finding:
    """The control's law against plain decoding, enumerated."""
    drafter, rule, changes = control.pieces()
    settings = {"params": SamplingParams(temperature=1.0, max_tokens=TOKENS), **changes}
    scene = Scene(target(), drafter, prompt=PROMPT, **settings)
    return Finding(control.name, control.mirrors, total_variation(plain_law(scene), law_of(Fast(), scene, rule)))
