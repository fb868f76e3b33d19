"""What a probe feeds, in which order, and what is computed from the times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from draftproof.bench import cost
from draftproof.bench.cost import Contender, Curve, Plan, Probe, measure, report
from draftproof.models.toy import ToyModel
from draftproof.types import InputError, Output, Segment


class Recording(ToyModel):
    """Writes down how many tokens each call fed and how long the cache was before it."""

    def __init__(self, seed: int = 1, max_context: int | None = None) -> None:
        super().__init__(seed, max_context=max_context)
        self.seen: list[tuple[int, int]] = []

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        self.seen += [(segment.cache.length, len(segment.tokens)) for segment in segments]
        return super().forward(segments, layers, exit_layer)

    def memory(self) -> dict[str, int]:
        return {"weights": 4_000_000_000}


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_READ_BYTES", 1 << 20)


def test_a_probe_feeds_k_tokens_behind_the_same_context_every_time() -> None:
    model = Recording()
    probe = Probe(model, 40, 16)
    model.seen.clear()
    assert all(probe.seconds(tokens) > 0 for tokens in (5, 1, 16, 2, 5))
    assert model.seen == [(40, 5), (40, 1), (40, 16), (40, 2), (40, 5)]


def test_a_long_context_is_read_in_parts() -> None:
    model = Recording()
    Probe(model, 2500, 2).seconds(1)
    assert model.seen[-1] == (2500, 1) and max(fed for _, fed in model.seen) <= 1024


def test_models_sizes_and_contexts_are_interleaved_and_a_call_before_them_is_dropped() -> None:
    first, second = Recording(1), Recording(2)
    contenders = [Contender("a", first, 1, 1), Contender("b", second, 1, 1)]
    ticks: list[int] = []
    plan = Plan((1, 2, 4), (10, 20), 3)
    curves, bandwidth = measure(contenders, plan, ticks.append)
    for model in (first, second):
        calls = model.seen[-3 * 2 * 4 :]
        assert [fed for _, fed in calls] == [1, 1, 2, 4] * 2 + [1, 4, 2, 1] * 2 + [1, 1, 2, 4] * 2
        assert [length for length, _ in calls[:8]] == [10] * 4 + [20] * 4
    assert all(len(times) == 3 for one in curves.values() for curve in one for times in curve.times.values())
    assert ticks[-1] == plan.size * 2 and bandwidth.of(contenders[0]) > 0


def test_the_report_computes_from_medians() -> None:
    model, curve = Recording(), Curve(100, {1: [2.0, 1.0, 9.0], 6: [3.0, 2.5, 3.0]})
    one = Contender("toy", model, 2, 1)
    made = report([one], {"toy": [curve]}, cost.Bandwidth({("cpu", 2): [3e9, 4e9, 2e9]}))
    (entry,) = made["models"]
    assert entry["tokens"] == {"1": 2.0, "6": 3.0} and entry["minimum"] == {"1": 1.0, "6": 2.5}
    assert entry["ratio"] == {"1": 1.0, "6": 1.5} and entry["by_context"]["100"]["ratio"] == entry["ratio"]
    assert (entry["achieved_gb_s"], entry["best_gb_s"], entry["bandwidth_share"]) == (2.0, 4.0, 0.5)
    assert (made["bandwidth_gb_s"], entry["bandwidth_gb_s"], entry["threads"]) == (4.0, 4.0, 2)


def test_a_model_that_does_not_tell_its_weights_has_no_bandwidth() -> None:
    one = Contender("toy", ToyModel(1), 1, 1)
    (entry,) = report([one], {"toy": [Curve(1, {1: [1.0]})]}, cost.Bandwidth({("cpu", 1): [1e9]}))["models"]
    assert entry["achieved_gb_s"] is entry["bandwidth_share"] is None


def test_one_token_is_always_among_them_and_threads_are_given_back() -> None:
    assert Plan((8, 2, 2), (5,), 1).tokens == (1, 2, 8)
    before = torch.get_num_threads()
    measure([Contender("a", ToyModel(1), 1, before + 1)], Plan((1,), (5,), 1))
    assert torch.get_num_threads() == before
    assert cost.best_threads(ToyModel(1), 2) in (1, 2) and torch.get_num_threads() == before


@pytest.mark.parametrize("plan", [((), (), 1), ((0,), (5,), 1), ((1,), (0,), 1), ((1,), (5,), 0)])
def test_plans_that_measure_nothing_are_refused(plan: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
    with pytest.raises(InputError):
        Plan(*plan)


def test_a_context_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="context of 50 tokens"):
        Probe(Recording(max_context=50), 40, 16)
    Probe(Recording(max_context=50), 34, 16).seconds(16)


@pytest.mark.parametrize("threads", [1, 3])
def test_reading_memory_is_a_speed(threads: int) -> None:
    assert cost.Reader("cpu", threads).speed() > 0
