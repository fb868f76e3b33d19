"""A low-bit copy drafts on the target's own cache: the text is the target's, and so is every entry that stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models.hf_models import build, tokens
from models.native_models import FAMILIES

from draftproof.calibration import load_lowbit
from draftproof.catalog import Loaded, load_drafter, load_model, load_rule
from draftproof.contracts import Ask, Twin
from draftproof.drafters.children import Shape
from draftproof.drafters.lowbit import LowBitDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.models import native
from draftproof.models.hf import HfModel
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.models.lowbit.store import vocabulary
from draftproof.session import Session, score
from draftproof.types import InputError, SamplingParams, chain
from draftproof.verify import CoupledRule, TokenRule

SETTINGS = LowBit(group=32, vocab=120, rounding="nearest")
TEXTS = [tokens(40, 1), tokens(30, 2)]
CALIBRATION = Calibration(lambda: TEXTS, (3,))
PROMPTS = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [7], [5, 5, 5, 9])
needs_native = pytest.mark.skipif(not native.available(), reason="the compiled kernels are not built")


def drafter(model: Any, gamma: int = 4, widths: str = "", settings: LowBit = SETTINGS) -> LowBitDrafter:
    return LowBitDrafter(model, model.lowbit(settings, CALIBRATION), Shape.of(gamma, widths, "mixed"))


def emitted(model: Any, made: Any, params: SamplingParams, rule: str = "auto") -> list[list[int]]:
    """All prompts as one batch."""
    engine = Engine(model, made, load_rule(rule, made))
    requests = [engine.submit(prompt, params) for prompt in PROMPTS]
    while any(request.finish_reason is None for request in requests):
        engine.step(requests)
    return [request.output for request in requests]


@needs_native
@pytest.mark.parametrize("family", list(FAMILIES))
def test_native_text_is_plain_text(family: str, native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders[family], threads=1)
    for made in (drafter(model), drafter(model, widths="2x2x1")):
        assert emitted(model, made, SamplingParams(max_tokens=40)) == emitted(
            model, NullDrafter(), SamplingParams(max_tokens=40)
        )
        coupled = SamplingParams(temperature=1, max_tokens=30, seed=5)
        assert emitted(model, made, coupled, "coupled") == emitted(model, NullDrafter(), coupled, "coupled")


@needs_native
@pytest.mark.parametrize("family, gamma", [("llama", 5), ("mistral", 12), ("mistral-wide", 150), ("gemma3", 100)])
def test_entries_that_stay_are_the_targets_bit_for_bit(
    family: str, gamma: int, native_folders: dict[str, Path]
) -> None:
    """Also where a draft is longer than what a window keeps behind it: nothing is read a second time."""
    model = native.load_native(native_folders[family], threads=1)
    engine = Engine(model, drafter(model, gamma), CoupledRule())
    session = Session(model)
    request = engine.submit(PROMPTS[0], SamplingParams(temperature=1, max_tokens=300, seed=2), session)
    drafted = steps = 0
    while request.finish_reason is None:
        (step,) = engine.step([request])
        drafted, steps = drafted + step.num_draft_tokens, steps + 1
        if steps % 8 == 1 or request.finish_reason is not None:
            assert torch.equal(rows(model, session, request.context), rows(model, Session(model), request.context))
            steps_checked = steps // 8 + 1
    assert steps_checked > 1 and drafted > 5 * gamma


def rows(model: Any, session: Session, context: list[int]) -> torch.Tensor:
    (output,) = score(model, [session], [context], [chain([3, 4])])
    return output.logits


@needs_native
def test_nothing_is_fed_to_the_target_twice(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["mistral-wide"], threads=1)
    engine, session = Engine(model, drafter(model, 150), TokenRule()), Session(model)
    request = engine.submit(PROMPTS[0], SamplingParams(max_tokens=400), session)
    drafted = steps = 0
    while request.finish_reason is None:
        (step,) = engine.step([request])
        drafted, steps = drafted + step.num_draft_tokens, steps + 1
    assert session.fed == len(PROMPTS[0]) + drafted + steps - 1


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "phi3"])
@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
def test_hf_text_is_plain_text(family: str, rounding: Any) -> None:
    model = HfModel.wrap(build(family), family)
    for widths in ("", "2x2x1"):
        made = drafter(model, 4, widths, LowBit(group=32, vocab=0, rounding=rounding))
        plain = emitted(model, NullDrafter(), SamplingParams(max_tokens=30))
        assert emitted(model, made, SamplingParams(max_tokens=30)) == plain


@pytest.mark.parametrize(
    "make", [lambda folder: native.load_native(folder, threads=1), lambda f: HfModel.wrap(read(f))]
)
@needs_native
def test_a_copy_of_its_own_head_and_bits_is_close_to_the_target(
    make: Callable[[Path], Any], native_folders: dict[str, Path]
) -> None:
    model = make(native_folders["smollm2"])
    twin: Twin = model.lowbit(LowBit(group=32, vocab=0, rounding="nearest"), CALIBRATION)
    session = Session(model)
    context = tokens(30, 4)
    (exact,) = score(model, [session], [context[:-1]], [chain([])])
    (near,) = twin.model.forward([session.plan_borrowed(context)], exit_layer=model.num_layers)
    (exact,) = score(model, [session], [context], [chain([])])
    assert twin.ids is None
    assert torch.corrcoef(torch.stack([near.logits[0].float(), exact.logits[0].float()]))[0, 1] > 0.9
    assert not torch.equal(near.logits, exact.logits)


def read(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


@needs_native
def test_a_context_the_target_has_not_read_is_read_by_the_target(native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["llama"], threads=1)
    made, session, context = drafter(model), Session(model), tokens(50, 3)
    engine = Engine(model, made, CoupledRule())
    request = engine.submit(context, SamplingParams(max_tokens=5))
    ask = Ask(made.start(session), context, 4, request.sampler, request.source)
    (proposal,) = made.propose([ask])
    assert len(proposal) == 4 and session.fed == 49
    (output,) = score(model, [session], [context], [proposal])
    (fresh,) = score(model, [Session(model)], [context], [proposal])
    assert torch.equal(output.logits, fresh.logits)


def test_only_tokens_of_the_reduced_head_are_proposed() -> None:
    target = load_model("toy:7")
    made = load_drafter("lowbit:vocab=5,gamma=6", target)
    engine = Engine(target.model, made, load_rule("auto", made))
    steps = list(engine.generate([0, 1, 0], SamplingParams(temperature=1, max_tokens=80, seed=1)))
    drafted = {token for step in steps for token in step.draft_tokens}
    assert drafted and len(drafted) <= 5


def test_the_reduced_head_knows_ends_then_frequent_then_small_ids() -> None:
    ids = vocabulary(100, LowBit(vocab=6), always=[99, 200], frequent=[50, 40, 50])
    assert ids is not None and ids.tolist() == [0, 1, 2, 40, 50, 99]
    assert vocabulary(100, LowBit(vocab=0), [], []) is None and vocabulary(100, LowBit(vocab=100), [], []) is None


@pytest.mark.parametrize(
    "options, message",
    [({"bits": 3}, "4 or 8"), ({"group": 48}, "32, 64, 128"), ({"vocab": -1}, "or 0"), ({"rounding": "up"}, "nearest")],
)
def test_settings_that_make_no_sense_are_one_sentence(options: dict[str, Any], message: str) -> None:
    target = load_model("toy:7")
    with pytest.raises(InputError, match=message):
        load_lowbit(target.model, target.text, options, Shape.of(3), lambda what, share: None)


def test_a_backend_without_the_kernels_says_so() -> None:
    model = HfModel.wrap(build("llama"), "llama")
    with pytest.raises(InputError, match="4 bits, not 8"):
        model.lowbit(LowBit(bits=8), CALIBRATION)
    with pytest.raises(InputError, match="cannot be copied"):
        twin = model.lowbit(SETTINGS, CALIBRATION).model
        load_drafter("lowbit", Loaded(twin, None))


@needs_native
def test_rounded_weights_are_made_once(native_folders: dict[str, Path], tmp_path: Path) -> None:
    model, asked = native.load_native(native_folders["smollm2"], threads=1), []

    def texts() -> list[list[int]]:
        asked.append(1)
        return TEXTS

    kept = Calibration(texts, (3,), tmp_path)
    first, again = (model.lowbit(LowBit(group=32, vocab=90), kept) for _ in range(2))
    assert asked == [1] and torch.equal(first.ids, again.ids) and len(first.ids) == 90
    assert {token for text in TEXTS for token in text} | {3} <= set(first.ids.tolist())
    other = native.load_native(native_folders["smollm2"], threads=1).lowbit(LowBit(group=32, vocab=0), kept)
    assert asked == [1] and other.ids is None and other.bytes > first.bytes
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged"):
        model.lowbit(LowBit(group=32), kept)
