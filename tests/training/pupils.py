"""A small head, its course and its texts."""

from __future__ import annotations

from typing import Any

import torch
from models.hf_models import VOCABULARY, tokens
from torch import Tensor

from draftproof.batch import Job
from draftproof.catalog import Loaded
from draftproof.drafters.eagle_head import EagleHead, HeadConfig
from draftproof.drafters.eagle_write import Origin
from draftproof.training import begin
from draftproof.training.capture import Plan, Writer
from draftproof.training.course import Speed
from draftproof.training.eagle_course import EagleCourse
from draftproof.training.samples import Sample
from draftproof.training.teacher import Teacher

HIDDEN, COUNT = 32, 4
LAYERS = (1, 2, 3)
PLAIN = Speed("cpu", False)
ORIGIN = Origin("", "", {})


def config(ids: Tensor) -> HeadConfig:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    return HeadConfig("eagle3", HIDDEN, 48, 4, 2, 8, 1e-6, VOCABULARY, len(ids), HIDDEN, LAYERS, rope, 512)


def new_head(target: Loaded, ids: Tensor, spread: float = 0.3) -> EagleHead:
    head = begin.new_head(config(ids), ids, target.model.shared(), 0)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(1)
    for parameter in head.parameters():
        parameter.data += spread * torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
    return head


def course(target: Loaded, head: EagleHead, steps: int = 3, loss: Any = "distance") -> EagleCourse:
    assert head.ids is not None
    teacher = Teacher(target.model.shared(), head.ids)  # type: ignore[attr-defined]
    return EagleCourse(head, teacher, steps, loss, PLAIN)


def greedy(target: Loaded, count: int = 4, size: int = 24) -> list[Sample]:
    jobs = [Job(lambda replies, i=i: tokens(5 + i, i), 1, f"prompt {i}") for i in range(count)]  # type: ignore[misc]
    return Writer(target, (*LAYERS, COUNT), jobs, Plan((0.0,), size, 3)).once()
