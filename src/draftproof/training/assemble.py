"""From what is wanted to a training that can run: prompts held out, vocabulary, teacher, head or adapter, source."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from draftproof import memory
from draftproof.backends import Loaded
from draftproof.batch import Job, job_of
from draftproof.contracts import Shared, SharesWeights
from draftproof.drafters.eagle_head import EagleHead, HeadConfig
from draftproof.drafters.eagle_write import Origin
from draftproof.drafters.exit_adapter import AdapterConfig, ExitAdapter
from draftproof.prompts import Prompt
from draftproof.training import begin, checkpoint
from draftproof.training.capture import Given, Plan, Reader, Writer, given
from draftproof.training.course import Course, Speed
from draftproof.training.eagle_course import EagleCourse
from draftproof.training.exit_course import ExitCourse
from draftproof.training.loop import Schedule, Source, Training
from draftproof.training.losses import Loss
from draftproof.training.samples import Sample
from draftproof.training.store import Store, estimate, refuse_short
from draftproof.training.teacher import Teacher, expected_counts
from draftproof.types import InputError
from draftproof.vocab import fingerprint

Kind = Literal["eagle", "early-exit"]
KINDS: tuple[Kind, ...] = ("eagle", "early-exit")
_HELD_TOKENS, _HELD_BATCH = 128, 32
_COUNTED = 25_000  # states that the draft vocabulary is counted from
_FIRST_ROUNDS = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What is to be trained.

    folder      of the target's files; out: of the checkpoint and the result
    layers      that an eagle head reads, () for low, middle and high; layer: of the early exit, with `rank`
    steps       how deep a lesson goes; loss: "distance", or "length" to add the expected accepted length
    held_out    prompts kept apart for the simulated acceptance length
    start       a folder with a head to begin with; None: the target's last layer
    store       a folder for the states of `store_tokens` new tokens; None: online
    """

    folder: Path
    out: Path
    kind: Kind = "eagle"
    layers: tuple[int, ...] = ()
    layer: int = 0
    rank: int = 256
    draft_vocab: int = 8192
    steps: int = 3
    loss: Loss = "distance"
    held_out: int = 64
    form: str = "draftproof"
    resume: bool = False
    start: Path | None = None
    store: Path | None = None
    store_tokens: int = 1_000_000
    plan: Plan = field(default_factory=Plan)
    schedule: Schedule = field(default_factory=Schedule)


def prepare(
    wanted: Wanted, target: Loaded, writer: Loaded, prompts: Sequence[Prompt], texts: Sequence[Prompt], say: Say
) -> tuple[Training, list[Sample]]:
    """The training, and samples that are there already for its first round.

    target: whose head it will be; writer: who writes the answers, the same or a quicker form of it. texts: given
    ones, read instead of written. InputError for what does not go together, before anything is written.
    """
    began = time.monotonic()
    shared = _shared(target)
    _refuse_overwriting(wanted)
    layers, config = _layers(wanted, target)
    state = checkpoint.load(wanted.out) if wanted.resume else None
    earlier = None
    if wanted.start is not None and config is not None:
        earlier = begin.earlier_head(wanted.start, config, target.model.num_layers)
    held, jobs, read = _split(wanted, target, prompts, texts, layers)
    if wanted.store is not None:
        refuse_short(wanted.store, estimate(wanted.store_tokens, len(layers), shared.width))
    say("writing the held-out answers")
    kept = [sample for one in held for sample in one.once()]
    source = _source(wanted, writer, layers, jobs, read, say)
    first: list[Sample] = []
    ids: Tensor | None = None if state is None else state["ids"]
    if state is None and config is not None:
        say("writing what the draft vocabulary is counted from")
        first = source.write(_FIRST_ROUNDS * wanted.schedule.round_tokens)
        ids = _vocabulary(shared, first, config.draft_vocab)
    plan = None if config is None or ids is None else _HeadPlan(config, ids, earlier)
    course = _course(wanted, target, shared, plan, say)
    training = Training(course, source, kept, wanted.schedule, wanted.out, _origin(wanted, target))
    training.form = wanted.form
    if state is not None:
        training.resume()
    training.standing.seconds += time.monotonic() - began
    return training, first


def example(
    wanted: Wanted, target: Loaded, writer: Loaded, prompts: Sequence[Prompt], texts: Sequence[Prompt]
) -> Sample:
    """One sample as it would be learned from."""
    layers, _ = _layers(wanted, target)
    if texts:
        return Reader(writer, layers, _read(writer, texts)[:1]).once()[0]
    return Writer(writer, layers, [replace(_jobs(writer, prompts)[0], replies=1)], wanted.plan).once()[0]


def estimates(wanted: Wanted, parameters: int, layers: int, width: int) -> str:
    """What a run will take, for a reader: weights, gradients and the optimizer's two numbers each; states."""
    learner = parameters * 4 * 4
    text = f"memory: about {memory.size(learner)} of weights, gradients and optimizer"
    if wanted.schedule.reuse > 1 and wanted.store is None:
        text += f", up to {memory.size(wanted.schedule.pool_bytes)} of states kept for reuse"
    if wanted.store is None:
        return text + "; disk: no states are stored"
    return text + f"; disk: {memory.size(estimate(wanted.store_tokens, layers, width))} of states in {wanted.store}"


def _shared(target: Loaded) -> Shared:
    model = target.model
    if "hidden" not in model.can or not isinstance(model, SharesWeights) or target.text is None:
        raise InputError(f"{model.name} cannot be trained for: use native:FOLDER or hf:FOLDER with a tokenizer.")
    return model.shared()


def _refuse_overwriting(wanted: Wanted) -> None:
    if not wanted.resume and (wanted.out / checkpoint.NAME).exists():
        raise InputError(f"{wanted.out} holds a run already: go on with --resume, or name another folder.")


def _layers(wanted: Wanted, target: Loaded) -> tuple[tuple[int, ...], HeadConfig | None]:
    """Layers to capture, the last one at the end; the head's sizes where it is a head."""
    count = target.model.num_layers
    if wanted.kind == "early-exit":
        layer = wanted.layer or max(1, count // 4)
        if not 1 <= layer < count:
            raise InputError(f"--layer must lie between 1 and {count - 1} for this target, not {layer}.")
        return (layer, count), None
    vocab = target.model.vocab_size
    config = begin.head_config(wanted.folder, vocab, wanted.draft_vocab, wanted.layers, count)
    return (*config.layers, count), config


def _jobs(target: Loaded, prompts: Sequence[Prompt]) -> list[Job]:
    return [job_of(target.text, prompt, raw=not target.text.tokenizer.chat_template) for prompt in prompts]


def _read(target: Loaded, texts: Sequence[Prompt]) -> list[Given]:
    return [given(target.text, text) for text in texts]


def _split(
    wanted: Wanted, target: Loaded, prompts: Sequence[Prompt], texts: Sequence[Prompt], layers: Sequence[int]
) -> tuple[list[Writer | Reader], list[Job], list[Given]]:
    """What writes the held-out answers, then prompts and given texts to learn from. The target itself writes those."""
    rng = random.Random(wanted.schedule.seed)
    jobs, read = _jobs(target, prompts), _read(target, texts)
    rng.shuffle(jobs)
    count = min(wanted.held_out, len(jobs) - (0 if texts else 1))
    if count < 1:
        raise InputError("training needs two prompts at least, one of them held out: give a file with more.")
    apart = [replace(job, replies=1) for job in jobs[:count]]
    limit = min(_HELD_TOKENS, wanted.plan.max_tokens)
    writer = Writer(target, layers, apart, Plan((0.0,), limit, _HELD_BATCH, wanted.plan.seed))
    return [writer], jobs[count:], read


def _source(
    wanted: Wanted, writer: Loaded, layers: Sequence[int], jobs: Sequence[Job], read: Sequence[Given], say: Say
) -> Source:
    online: Source = Reader(writer, layers, read) if read else Writer(writer, layers, jobs, wanted.plan)
    if wanted.store is None:
        return online
    store = Store(wanted.store)
    online.begun = sum(len(store.read(file)) for file in store.files)
    while (stored := store.tokens()) < wanted.store_tokens:
        say(f"storing states: {stored:,} of {wanted.store_tokens:,} tokens")
        store.add(online.write(min(wanted.schedule.round_tokens, wanted.store_tokens - stored)))
    return store


def _vocabulary(shared: Shared, samples: Sequence[Sample], size: int) -> Tensor:
    """[size] int64: the tokens that the target expects most often, with those that it wrote."""
    states: list[Tensor] = []
    for sample in samples:
        states.append(sample.states[sample.first :, -1])
        if sum(len(one) for one in states) >= _COUNTED:
            break
    counts = expected_counts(shared, torch.cat(states))
    for sample in samples:
        counts += torch.bincount(sample.tokens[sample.answer :].long(), minlength=len(counts))
    return counts.topk(min(size, len(counts))).indices.sort().values


@dataclass(frozen=True, eq=False)
class _HeadPlan:
    """A head's sizes, the tokens it drafts, and the head it begins with."""

    config: HeadConfig
    ids: Tensor
    earlier: EagleHead | None


def _course(wanted: Wanted, target: Loaded, shared: Shared, plan: _HeadPlan | None, say: Say) -> Course:
    device = target.model.device
    speed = Speed.measured(device)
    if plan is not None:
        head = begin.new_head(plan.config, plan.ids, shared, wanted.schedule.seed)
        if plan.earlier is not None:
            begin.take_head(head, plan.earlier)
        elif not begin.take_layer(head, wanted.folder, target.model.num_layers - 1):
            say("the target's files have no layer of the usual form, so the head begins with random weights")
        head = head.to(device)
        return EagleCourse(head, Teacher(shared, plan.ids, device), wanted.steps, wanted.loss, speed)
    torch.manual_seed(wanted.schedule.seed)
    layer = _layers(wanted, target)[0][0]
    size, mark = target.model.vocab_size, fingerprint(target.text)
    eps = begin.head_config(wanted.folder, size, size, (), target.model.num_layers).eps
    adapter = ExitAdapter(AdapterConfig(layer, shared.width, wanted.rank, size, eps, mark))
    return ExitCourse(adapter.to(device), shared, speed)


def _origin(wanted: Wanted, target: Loaded) -> Origin:
    notes: dict[str, Any] = {
        "steps": wanted.steps,
        "loss": wanted.loss,
        "target": target.model.name,
        "temperatures": list(wanted.plan.temperatures),
    }
    return Origin(fingerprint(target.text), str(wanted.folder), notes)
