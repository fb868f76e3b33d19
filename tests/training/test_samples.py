"""Texts to learn from, what is played through them, and what is written of a head."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
import torch
from models.hf_models import tokens
from torch import Tensor
from training.pupils import COUNT, HIDDEN, greedy, new_head

from draftproof.catalog import Loaded
from draftproof.drafters.children import Shape
from draftproof.drafters.eagle_write import Origin, write_head
from draftproof.heads import load_eagle
from draftproof.prompts import Prompt
from draftproof.session import Session
from draftproof.training.capture import given
from draftproof.training.course import played
from draftproof.training.losses import accepted_length
from draftproof.training.samples import Sample, batches
from draftproof.training.store import Store, estimate, refuse_short
from draftproof.training.teacher import expected_counts
from draftproof.types import InputError


def test_the_length_is_the_rules_own_with_roles_exchanged() -> None:
    p, q = torch.rand(50, 4), torch.rand(50, 4)
    ratio = (q / p).clamp(max=1).double()
    assert torch.allclose(accepted_length(p, q), ratio.cumprod(1).sum(1))
    # Over texts of the target it is the mass that both rows share (Leviathan et al., theorem 3.5).
    rows = torch.rand(2, 6, dtype=torch.float64)
    one, other = rows / rows.sum(1, keepdim=True)
    mean = (one * accepted_length(one[:, None].float(), other[:, None].float())).sum()
    assert torch.isclose(mean, torch.minimum(one, other).sum(), atol=1e-6)


def test_drafts_played_through_a_text_by_hand() -> None:
    sample = Sample("", torch.arange(9, dtype=torch.int32), 2, torch.empty(8, 1, 1))
    hits = torch.zeros(2, 8, dtype=torch.bool)
    hits[0, [1, 4, 5]] = hits[1, [2, 5]] = True
    # From entry 1 both drafts are right; from 4 both; nothing is left behind.
    stats = played(sample, hits)
    assert (stats.steps, stats.accepted_tokens, stats.tokens) == (2, 4, 6)


def test_stored_samples_come_back(target: Loaded, tmp_path: Path) -> None:
    store, samples = Store(tmp_path), greedy(target, 3)
    store.add(samples[:2])
    store.add(samples[2:])
    back = store.write(1) + store.write(1)
    assert [one.name for one in back] == [one.name for one in samples]
    assert all(
        torch.equal(a.states, b.states) and torch.equal(a.tokens, b.tokens) for a, b in zip(back, samples, strict=True)
    )
    written = sum(len(one.tokens) for one in samples)
    size = sum(file.stat().st_size for file in store.files)
    assert abs(size - estimate(written, 4, HIDDEN)) < 0.2 * size
    with pytest.raises(InputError, match="store fewer"):
        refuse_short(tmp_path, 10**18)


def test_batches_hold_every_sample_once(target: Loaded) -> None:
    samples = greedy(target, 6)
    made = list(batches(samples, 64, random.Random(0)))
    assert sorted(s.name for group in made for s in group) == sorted(s.name for s in samples)
    assert all(len(group) * max(len(s.tokens) for s in group) <= 64 for group in made)


def test_expected_counts_are_the_targets_rows(target: Loaded) -> None:
    text = tokens(12, 5)
    (output,) = target.model.forward([dataclasses.replace(Session(target.model).plan(text), rows=12)], (COUNT,))
    assert output.hidden is not None
    counts = expected_counts(target.model.shared(), output.hidden[:, 0], 5)  # type: ignore[attr-defined]
    assert torch.allclose(counts, output.logits.softmax(-1).sum(0).double(), atol=1e-4)


def test_given_conversations_end_with_the_assistant() -> None:
    with pytest.raises(InputError, match="ends with a message of the assistant"):
        given(None, Prompt(messages=({"role": "user", "content": "hi"},)))  # type: ignore[arg-type]
    assert given(None, Prompt(token_ids=(1, 2, 3))).answer == 1  # type: ignore[arg-type]


def test_notes_of_an_exported_head(target: Loaded, ids: Tensor, tmp_path: Path) -> None:
    write_head(new_head(target, ids), tmp_path, Origin("print", "", {"steps": 2}))
    assert json.loads((tmp_path / "config.json").read_text())["draftproof"] == {"tokenizer": "print", "steps": 2}
    assert load_eagle(str(tmp_path), target, Shape.of(2, "", "drawn")).gamma == 2
