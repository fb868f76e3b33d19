"""The path audit: equal where it must be, a tie only where rounding can do it, a defect where a cache is broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cli.calls import Call
from models.hf_models import build, tokens

from draftproof.audit import paths
from draftproof.audit.prompts import generated, prompt_ids
from draftproof.catalog import Loaded, engine_for, load_model
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.models.hf import HfModel
from draftproof.models.toy import ToyModel
from draftproof.types import InputError, Output, Segment
from draftproof.verify import BlockRule, CoupledRule

TOY = "toy:3,vocab=12"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(capsys, monkeypatch)


def audited(drafter: str, rule: str, temperature: float = 0.0, broken: bool = False, seeds: int = 1) -> paths.Report:
    target = load_model(TOY)
    engine = engine_for(paths.without_rollback(target) if broken else target, drafter, rule)
    prompts = list(generated(target.model.vocab_size))[:6]
    return paths.audit(engine, prompts, paths.runs(temperature, seeds, 40), target.model)


@pytest.mark.parametrize(("drafter", "rule"), [("ngram:min=1", "auto"), ("early-exit:layer=3,shape=2x2", "tree")])
def test_greedy_paths_are_identical(drafter: str, rule: str) -> None:
    report = audited(drafter, rule)
    assert report.passed
    assert report.count("identical") == 6
    assert report.summary()["accepted_tokens"] != 0


def test_coupled_paths_are_identical_at_a_temperature() -> None:
    report = audited("early-exit:layer=3,shape=2x1", "coupled", temperature=1.0, seeds=3)
    assert report.count("identical") == 18
    assert report.summary()["accepted_tokens"] != 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rollback_left_out_is_a_defect(temperature: float) -> None:
    report = audited("early-exit:layer=3,gamma=4", "coupled", temperature, broken=True)
    assert report.count("defect") >= 5
    assert not report.passed
    assert report.summary()["numeric_ties"] == 0


def test_a_rollback_left_out_of_a_transformers_model_is_a_defect() -> None:
    model = HfModel.wrap(build("llama"), "llama")
    target, prompts = Loaded(model, None), [tokens(9, 1), tokens(20, 2)]
    reports = {}
    for broken in (False, True):
        judged = paths.without_rollback(target) if broken else target
        engine = engine_for(judged, "early-exit:layer=2,gamma=3", "block")
        reports[broken] = paths.audit(engine, prompts, paths.runs(0.0, 1, 32), model)
    assert reports[False].count("identical") == 2
    assert reports[True].count("defect") > 0


class Rounding(ToyModel):
    """Rows of a call with several rows differ by `change` at the two tokens that are nearly tied, as kernels do."""

    def __init__(self, margin: float, change: float) -> None:
        super().__init__(5, 8)
        self._margin, self._change = margin, change

    def _make_row(self, prefix: tuple[int, ...], layer: int) -> torch.Tensor:
        row = super()._make_row(prefix, layer)
        top = row.topk(2)
        row[top.indices[1]] = top.values[0] - self._margin
        return row

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        outputs = super().forward(segments, layers, exit_layer)
        changed = []
        for output in outputs:
            best = output.logits.topk(2, -1).indices
            shift = torch.tensor([-self._change, self._change], dtype=output.logits.dtype).expand(len(best), 2)
            moved = output.logits.scatter_add(1, best, shift)
            changed.append(Output(moved if len(best) > 1 else output.logits))
        return changed


def compare(model: ToyModel, speculative: ToyModel | None = None) -> paths.Comparison:
    """Greedy, against a draft model that is the same table without the noise."""
    draft = ModelDrafter(ToyModel(5, 8), 8, Shape.of(3, "", "drawn"))
    engine = Engine(speculative or model, draft, BlockRule())
    return paths.audit(engine, [[1, 2, 3]], paths.runs(0.0, 1, 24), model).comparisons[0]


def test_a_margin_within_the_noise_is_a_tie() -> None:
    one = compare(Rounding(margin=1e-6, change=1e-5))
    assert one.finding == "numeric tie"
    assert one.difference is not None
    assert one.difference.plain_margin == pytest.approx(1e-6, rel=0.2)
    assert one.difference.speculative_margin == pytest.approx(1.9e-5, rel=0.1)
    assert one.difference.noise == pytest.approx(1e-5, rel=0.1)


def test_a_margin_beyond_the_noise_is_a_defect() -> None:
    """The verification really differs by 0.02, which no healthy call shows."""
    one = compare(Rounding(margin=0.01, change=0.0), Rounding(margin=0.01, change=0.02))
    assert one.finding == "defect"
    assert one.difference is not None
    assert one.difference.gap == pytest.approx(0.01, rel=0.01)
    assert one.difference.noise == 0


class Curt(Engine):
    """Ends one step early: a text that is the beginning of the other is never rounding."""

    def generate(self, prompt, params):  # type: ignore[no-untyped-def]
        yield from list(super().generate(prompt, params))[:-1]


def test_a_missing_end_is_a_defect() -> None:
    model = ToyModel(5, 8)
    engine = Curt(model, ModelDrafter(model, 8, Shape.of(3, "", "drawn")), CoupledRule())
    one = paths.audit(engine, [[1, 2]], paths.runs(0.0, 1, 12)).comparisons[0]
    assert one.finding == "defect"
    assert one.difference is not None
    assert one.difference.speculative_token is None


def test_other_rules_have_no_paths_at_a_temperature() -> None:
    with pytest.raises(InputError, match="coupled"):
        audited("early-exit:layer=3", "block", temperature=1.0)


def test_generated_prompts_are_always_the_same() -> None:
    prompts = list(generated(12))
    assert prompts == list(generated(12))
    assert [len(prompt) for prompt in prompts[:3]] == [1, 2, 3]
    assert max(map(len, prompts)) <= 40


def test_prompt_files(tmp_path: Path) -> None:
    text = load_model(TOY).text
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abc"}\n\n{"turns": ["ba", "no"]}\n')
    assert prompt_ids(str(file), text) == [text.encode("abc"), text.encode("ba")]
    assert len(prompt_ids(str(file), text, limit=1)) == 1
    file.write_text('{"token_ids": [1, 2]}\n{"token_ids": [3]}\n')
    assert prompt_ids(str(file), None) == [[1, 2], [3]]
    file.write_text('{"token_ids": [1]}\n{"prompt": "a"}\n')
    assert prompt_ids(str(file), text) == [[1], text.encode("a")]
    file.write_text('{"turns": ["ba", "no"]}\n')
    assert prompt_ids(str(file), text, raw=True) == [text.encode("ba")]


@pytest.mark.parametrize(
    "lines",
    [
        '{"token_ids": []}',
        '{"token_ids": [1.5]}',
        '{"token_ids": [true]}',
        '{"token_ids": [1], "prompt": "a"}',
        "nonsense",
        "",
        '{"text": 1}',
    ],
)
def test_bad_prompt_files_are_refused(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    with pytest.raises(InputError):
        prompt_ids(str(file), load_model(TOY).text)


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abc"}')
    with pytest.raises(InputError, match="token_ids"):
        prompt_ids(str(file), None)


def test_the_command(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("abcab", "a b a b")))
    arguments = ("audit", "paths", TOY, "--drafter", "early-exit:layer=3", "--gamma", "4", "--prompts", str(file))
    called = call(*arguments, "--max-tokens", "40", "--json")
    assert called.code == 0
    assert {name: called.json[name] for name in ("prompts", "identical", "numeric_ties", "defects")} == {
        "prompts": 2,
        "identical": 2,
        "numeric_ties": 0,
        "defects": 0,
    }
    broken = call(*arguments, "--max-tokens", "40", "--break", "rollback", "--json")
    assert broken.code == 1
    assert broken.json["defects"] > 0
    assert broken.json["details"][0]["finding"] == "defect"
    shown = call(*arguments, "--break", "rollback")
    assert "defect" in shown.out
    assert "FAILED" in shown.out


def test_bad_input_is_one_sentence(call: Call) -> None:
    for arguments in (("--break", "everything"), ("--prompts", "missing.jsonl"), ("--temperature", "-1")):
        called = call("audit", "paths", TOY, *arguments)
        assert called.code == 2
        assert called.err.count("\n") == 1
    assert call("audit", "--help").code == 0
