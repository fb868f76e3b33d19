"""A reduced head is given the rows of the text's own words: they are the target's, and drafts use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from models.hf_models import build, tokens
from models.native_models import FAMILIES
from torch import Tensor

from draftproof.drafters.children import Shape
from draftproof.drafters.lowbit import LowBitDrafter
from draftproof.drafters.text_rows import TextRows, text_rows
from draftproof.engine import Engine
from draftproof.models import native
from draftproof.models.hf import HfModel
from draftproof.models.lowbit.settings import Calibration, LowBit
from draftproof.session import Session, score
from draftproof.types import Output, SamplingParams, Segment, chain
from draftproof.verify import TokenRule

KNOWN = torch.arange(0, 90, 10)
needs_native = pytest.mark.skipif(not native.available(), reason="the compiled kernels are not built")


def isas() -> list[str]:
    if not native.available():
        return []
    from draftproof import _kernels

    return _kernels.isas()


def rows_and_logits(model: Any) -> tuple[Tensor, Tensor]:
    """Of the tokens of a text that KNOWN lacks: products of the rows, and the target's own logits."""
    found = text_rows(model, KNOWN)
    assert found is not None
    rows, context = TextRows(*found, model.device), tokens(30, 3)
    rows.read(context[:12])
    rows.read(context)
    (output,) = score(model, [Session(model)], [context], [chain([])], (model.num_layers,))
    assert output.hidden is not None and set(rows.ids.tolist()) == set(context) - set(KNOWN.tolist())
    return rows.logits(output.hidden[-1:, 0]), output.logits[-1:, rows.ids].float()


@needs_native
@pytest.mark.parametrize("family", [name for name in FAMILIES if "int" not in name])
def test_native_rows_are_the_targets(family: str, native_folders: dict[str, Path]) -> None:
    made, expected = rows_and_logits(native.load_native(native_folders[family], threads=1))
    assert torch.allclose(made, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2"])
def test_hf_rows_are_the_targets(family: str) -> None:
    made, expected = rows_and_logits(HfModel.wrap(build(family), family))
    assert torch.allclose(made, expected, rtol=1e-3, atol=1e-3)


class Doubled:
    """A model whose logits are not the products of its head."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, segments: Sequence[Segment], layers: Sequence[int] = ()) -> list[Output]:
        return [Output(2 * one.logits, one.hidden) for one in self._model.forward(segments, layers)]


def test_a_model_with_a_scale_behind_its_head_is_left_alone() -> None:
    model = HfModel.wrap(build("llama"), "llama")
    assert text_rows(Doubled(model), KNOWN) is None and text_rows(model, None) is None


@needs_native
@pytest.mark.parametrize("widths", ["", "2x2x1"])
def test_words_of_the_text_are_drafted_and_no_others(widths: str, native_folders: dict[str, Path]) -> None:
    model = native.load_native(native_folders["llama"], threads=1)
    twin = model.lowbit(LowBit(group=32, vocab=8, rounding="nearest"), Calibration(list, (3,)))
    assert twin.ids is not None
    engine = Engine(model, LowBitDrafter(model, twin, Shape.of(4, widths, "mixed")), TokenRule())
    requests = [
        engine.submit(tokens(20, seed), SamplingParams(temperature=1, max_tokens=40, seed=1)) for seed in (1, 2)
    ]
    beyond = 0
    while any(request.finish_reason is None for request in requests):
        contexts = [set(request.context) for request in requests]
        for step, context in zip(engine.step(requests), contexts, strict=True):
            drafted = set(step.draft_tokens)
            assert drafted <= context | set(twin.ids.tolist())
            beyond += len(drafted - set(twin.ids.tolist()))
    assert beyond > 10


class Plain:
    """Rows that tell their tokens."""

    width = 1

    def head_rows(self, ids: Tensor) -> Tensor:
        return ids[:, None].float()

    def final_norm(self, states: Tensor) -> Tensor:
        return states


def test_of_many_words_the_latest_are_kept() -> None:
    rows = TextRows(Plain(), [False] * 5000, torch.device("cpu"))  # type: ignore[arg-type]
    context = list(range(3000))
    rows.read(context)
    context += [5, 2999]
    rows.read(context)
    assert rows.ids.tolist() == [*range(1977, 3000), 5]
    assert rows.logits(torch.ones(1, 1)).tolist() == [[float(i) for i in rows.ids]]


@needs_native
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("vocab", [1, 8, 100, 0])
def test_a_copys_logits_stand_for_the_whole_vocabulary(vocab: int, isa: str, native_folders: dict[str, Path]) -> None:
    """The head's where it has the token, the text's rows beside them, nothing elsewhere; for chains and in company."""
    model = native.load_native(native_folders["llama"], threads=2, isa=isa)
    everything, some = (
        model.lowbit(LowBit(group=32, vocab=size, rounding="nearest"), Calibration(list, (3,))) for size in (0, vocab)
    )
    assert everything.whole is not None and some.whole is not None
    sessions, contexts = [Session(model), Session(model)], [tokens(30, 3), tokens(9, 4)]
    for session, context in zip(sessions, contexts, strict=True):
        score(model, [session], [context[:-1]], [chain([])])
    ids = torch.tensor([5, 50]) if vocab == 0 else torch.tensor([t for t in (2, 41, 202) if t not in some.ids])  # type: ignore[operator]
    text = None if vocab == 0 else (ids, model.shared().head_rows(ids))
    both = [session.plan_borrowed(context) for session, context in zip(sessions, contexts, strict=True)]
    full = everything.whole(both, [None, None])
    both = [session.plan_borrowed(context) for session, context in zip(sessions, contexts, strict=True)]
    made = some.whole(both, [text, None])
    known = torch.arange(model.vocab_size) if some.ids is None else some.ids
    for row, whole, extra in zip(made, full, (ids if text else ids[:0], ids[:0]), strict=True):
        assert torch.equal(row[:, known], whole[:, known])
        assert torch.allclose(row[:, extra], whole[:, extra], rtol=0.05, atol=0.2)
        empty = torch.ones(model.vocab_size, dtype=torch.bool)
        empty[known] = empty[extra] = False
        assert row[:, empty].eq(float("-inf")).all() and row[:, ~empty].isfinite().all()
