"""Training: states as a direct forward has them, lessons as serving computes, drafts foretold, runs that go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from models.hf_models import VOCABULARY, tokens
from torch import Tensor
from training.pupils import COUNT, HIDDEN, LAYERS, ORIGIN, PLAIN, course, greedy, new_head

from draftproof.batch import Job
from draftproof.catalog import Loaded, load_drafter, load_rule
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle_files import read_head
from draftproof.drafters.eagle_head import EagleHead
from draftproof.drafters.eagle_write import FORMATS, write_head
from draftproof.drafters.exit_adapter import AdapterConfig, ExitAdapter
from draftproof.engine import Engine
from draftproof.int8 import quantise_int8
from draftproof.session import Session
from draftproof.stats import Stats
from draftproof.training import checkpoint
from draftproof.training.capture import Given, Plan, Reader, Writer
from draftproof.training.exit_course import ExitCourse
from draftproof.training.loop import Schedule, Training
from draftproof.training.samples import Sample, collate
from draftproof.training.teacher import Teacher
from draftproof.training.unroll import Runs, unroll
from draftproof.types import InputError, SamplingParams


@pytest.mark.parametrize("batch", [1, 8])
def test_captured_states_are_those_of_a_direct_forward(target: Loaded, batch: int) -> None:
    jobs = [Job(lambda replies, i=i: tokens(3 + 2 * i, i), 1, str(i)) for i in range(8)]  # type: ignore[misc]
    samples = Writer(target, (*LAYERS, COUNT), jobs, Plan((0.0, 1.0), 12, batch)).once()
    assert len(samples) == 8
    for sample in samples:
        (output,) = target.model.forward([Session(target.model).plan(sample.tokens.tolist())], (*LAYERS, COUNT))
        assert output.hidden is not None
        close = output.hidden[:-1].to(torch.bfloat16).float() - sample.states.float()
        assert close.abs().max() <= 0.01 * sample.states.float().abs().max()
    exact = Reader(target, LAYERS, [Given("", tuple(samples[0].tokens.tolist()), 1)], torch.float32).once()[0]
    (output,) = target.model.forward([Session(target.model).plan(exact.tokens.tolist())], LAYERS)
    assert output.hidden is not None and torch.allclose(output.hidden[:-1], exact.states, atol=1e-4)


def test_lessons_compute_what_serving_computes(target: Loaded, ids: Tensor) -> None:
    head, text = new_head(target, ids), tokens(20, 3)
    shared = target.model.shared()  # type: ignore[attr-defined]
    sample = Reader(target, (*LAYERS, COUNT), [Given("", tuple(text), 8)], torch.float32).once()[0]
    batch = collate([sample, dataclasses.replace(sample, answer=12)])
    made = unroll(head, Teacher(shared, ids).embed(batch.tokens[:, 1:]), batch.states[:, :, :3], batch.mask, 3)
    runs = Runs.of(batch.mask)
    drafter = load_eagle_of(head, target)
    for row in range(len(runs.text)):
        entry, offset = int(runs.entry[row]), int(runs.offset[row])
        for step in range(min(3, offset + 1)):
            served = serve(drafter, target, text[: entry - step + 2], text[entry - step + 2 : entry + 2])
            assert torch.allclose(head.logits(made[step][row : row + 1]), served[ids][None], atol=1e-4)


def load_eagle_of(head: EagleHead, target: Loaded) -> Any:
    import copy

    from draftproof.drafters.eagle import EagleDrafter

    shared = target.model.shared()  # type: ignore[attr-defined]
    return EagleDrafter(copy.deepcopy(head), shared, Shape.of(3, "", "chosen"))


def serve(drafter: Any, target: Loaded, context: list[int], drafted: list[int]) -> Tensor:
    """[V]: the drafter's logits behind a context and the tokens drafted so far."""
    from draftproof.types import chain

    session = Session(target.model)
    mine = drafter.start(session)
    (output,) = target.model.forward([session.plan(context)], LAYERS)
    assert output.hidden is not None
    mine.observe(context, (), output.hidden[:-1])
    (logits,) = drafter.call([mine.plan(context)])
    for count in range(1, len(drafted) + 1):
        (logits,) = drafter.call([mine.plan_more(chain(drafted[:count]))])
    row: Tensor = logits[-1]
    return row


@pytest.mark.parametrize("loss", ["distance", "length"])
def test_one_text_learned_by_heart_is_drafted_whole(target: Loaded, ids: Tensor, loss: Any, tmp_path: Path) -> None:
    samples = greedy(target, 1, 16)
    every = torch.arange(VOCABULARY)
    made = course(target, new_head(target, every, 0.0), 3, loss)
    schedule = Schedule(rounds=150, round_tokens=1, reuse=1, evaluations=1, gamma=3, rate=0.03)
    standing = Training(made, Again(samples), samples, schedule, tmp_path, ORIGIN).run(lambda share, standing: None)
    assert standing.evaluations[-1]["acceptance"] == [1.0, 1.0, 1.0]
    stats = served(tmp_path, target, samples)
    assert stats.accepted_tokens == stats.draft_tokens > 10


class Again:
    """The same samples each round."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples, self.begun = samples, 0

    def write(self, count: int) -> list[Sample]:
        self.begun += 1
        return list(self.samples)


def served(folder: Path, target: Loaded, samples: list[Sample], gamma: int = 3) -> Stats:
    """The engine on the samples' prompts."""
    drafter = load_drafter(f"eagle:{folder},gamma={gamma},children=chosen", target)
    engine = Engine(target.model, drafter, load_rule("auto", drafter))
    stats = Stats()
    for sample in samples:
        length = len(sample.tokens) - sample.answer
        for step in engine.generate(sample.tokens[: sample.answer].tolist(), SamplingParams(max_tokens=length)):
            stats.add(step)
    return stats


def test_simulated_acceptance_is_the_served_one(target: Loaded, ids: Tensor, tmp_path: Path) -> None:
    samples = greedy(target, 6, 40)
    made = course(target, new_head(target, ids, 0.05), 2)
    schedule = Schedule(rounds=120, round_tokens=1, reuse=1, evaluations=1, gamma=3, rate=0.02)
    standing = Training(made, Again(samples[:3]), samples, schedule, tmp_path, ORIGIN).run(lambda share, standing: None)
    found = served(tmp_path, target, samples).mean_acceptance_length
    assert found > 1.2 and abs(standing.best - found) <= 0.05 * found


def test_a_killed_run_goes_on(target: Loaded, ids: Tensor, tmp_path: Path) -> None:
    samples = greedy(target, 4, 24)
    schedule = Schedule(rounds=6, round_tokens=1, reuse=1, evaluations=2, gamma=3, rate=0.01)

    def training(folder: str, limit: int | None = None) -> Training:
        class Killed(Again):
            def write(self, count: int) -> list[Sample]:
                if self.begun == limit:
                    raise KeyboardInterrupt
                return super().write(count)

        made = course(target, new_head(target, ids, 0.0), 2)
        return Training(made, Killed(samples), samples, schedule, tmp_path / folder, ORIGIN)

    whole = training("whole").run(lambda share, standing: None)
    with pytest.raises(KeyboardInterrupt):
        training("killed", 3).run(lambda share, standing: None)
    again = training("killed")
    again.resume()
    assert again.standing.rounds == 3
    resumed = again.run(lambda share, standing: None)
    one, other = (run.evaluations[-1]["mean_acceptance_length"] for run in (whole, resumed))
    assert abs(one - other) <= 0.01 * one and resumed.batches == whole.batches
    with pytest.raises(InputError, match="resume"):
        checkpoint.load(tmp_path / "nowhere")


def test_a_loss_that_is_no_number_names_the_sample(target: Loaded, ids: Tensor, tmp_path: Path) -> None:
    samples = greedy(target, 3)
    bad = dataclasses.replace(samples[1], states=torch.full_like(samples[1].states, float("nan")))
    made = course(target, new_head(target, ids))
    schedule = Schedule(rounds=2, round_tokens=1, reuse=1)
    training = Training(made, Again([samples[0], bad]), samples, schedule, tmp_path, ORIGIN)
    with pytest.raises(InputError, match=bad.name):
        training.run(lambda share, standing: None)


def test_batches_with_nothing_to_learn_are_counted(target: Loaded, ids: Tensor, tmp_path: Path) -> None:
    samples = greedy(target, 2)
    empty = dataclasses.replace(samples[0], answer=len(samples[0].tokens))
    schedule = Schedule(rounds=3, round_tokens=1, reuse=1, batch_tokens=16, evaluations=1)
    made = course(target, new_head(target, ids))
    standing = Training(made, Again([samples[1], empty]), samples, schedule, tmp_path, ORIGIN).run(lambda *_: None)
    assert (standing.skipped, standing.batches) == (3, 3)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_read_back(target: Loaded, ids: Tensor, form: str, tmp_path: Path) -> None:
    head = new_head(target, ids)
    write_head(head, tmp_path, ORIGIN, form)
    read = read_head(tmp_path, COUNT)
    assert not [name for name in read.unused if name != "t2d"] and read.head.config.layers == LAYERS
    assert read.head.ids is not None and torch.equal(read.head.ids, ids)
    rounded = {name: as_stored(value, form) for name, value in weights(head)}
    assert all(torch.equal(rounded[name], value) for name, value in weights(read.head))
    with pytest.raises(InputError, match="format"):
        write_head(head, tmp_path, ORIGIN, "gguf")


def as_stored(value: Tensor, form: str) -> Tensor:
    if form == "int8" and value.dim() == 2:
        codes, scales = quantise_int8(value)
        return codes.float() * scales[:, None]
    return value if form in ("draftproof", "int8") else value.bfloat16().float()


def weights(head: EagleHead) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in head.named_parameters()]


def test_an_adapter_learns_and_drafts(target: Loaded, tmp_path: Path) -> None:
    layers = (2, COUNT)
    jobs = [Job(lambda replies, i=i: tokens(5, i), 1, str(i)) for i in range(3)]  # type: ignore[misc]
    samples = Writer(target, layers, jobs, Plan((0.0,), 24, 3)).once()
    adapter = ExitAdapter(AdapterConfig(2, HIDDEN, 16, VOCABULARY, 1e-6))
    made = ExitCourse(adapter, target.model.shared(), PLAIN)  # type: ignore[attr-defined]
    before = made.examine(samples, 3, 512).mean_acceptance_length
    schedule = Schedule(rounds=30, round_tokens=1, reuse=1, evaluations=1, gamma=3, rate=0.02)
    standing = Training(made, Again(samples), samples, schedule, tmp_path, ORIGIN).run(lambda *_: None)
    assert standing.best > before
    drafter = load_drafter(f"early-exit:layer=2,adapter={tmp_path},gamma=3,children=chosen", target)
    engine, stats = Engine(target.model, drafter, load_rule("auto", drafter)), Stats()
    for sample in samples:
        written = []
        for step in engine.generate(sample.tokens[:5].tolist(), SamplingParams(max_tokens=24)):
            stats.add(step)
            written += step.tokens
        assert written == sample.tokens[5:].tolist()
    assert abs(stats.mean_acceptance_length - standing.best) <= 0.05 * standing.best
    with pytest.raises(InputError, match="layer 2, not 1"):
        load_drafter(f"early-exit:layer=1,adapter={tmp_path}", target)
