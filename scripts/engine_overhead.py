"""Time a step spends outside model forwards, at a real vocabulary: models that cost nothing stand in for real ones.

    python scripts/engine_overhead.py [--vocab 49152] [--gamma 5] [--threads 1] [--steps 200]

Prints one JSON object: median milliseconds a step by drafter, rule and sampling setting.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence

import torch

from draftproof.contracts import Drafter, Rule
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.null import NullDrafter
from draftproof.engine import Engine
from draftproof.models.toy import ToyModel
from draftproof.types import Output, SamplingParams, Segment
from draftproof.verify import BlockRule, CoupledRule, TokenRule, TreeRule


class FreeModel(ToyModel):
    """Rows from a small table of peaked random logits; what a forward takes is counted apart."""

    def __init__(self, seed: int, vocab_size: int, noise: float) -> None:
        super().__init__(seed, vocab_size)
        shared = torch.Generator().manual_seed(0)
        own = torch.Generator().manual_seed(seed)
        self._table = 3 * torch.randn(64, vocab_size, generator=shared) + noise * torch.randn(
            64, vocab_size, generator=own
        )
        self.seconds = 0.0

    def forward(
        self, segments: Sequence[Segment], layers: Sequence[int] = (), exit_layer: int | None = None
    ) -> list[Output]:
        start = time.perf_counter()
        outputs = []
        for segment in segments:
            segment.cache.tokens += segment.tokens.tolist()
            ends = segment.tokens[len(segment.tokens) - segment.rows :] % 64
            outputs.append(Output(self._table[ends]))
        self.seconds += time.perf_counter() - start
        return outputs


def overhead(
    drafter: Drafter, rule: Rule | CoupledRule, target: FreeModel, params: SamplingParams, steps: int
) -> float:
    """Median milliseconds of a step, less what the models' forwards took."""
    engine = Engine(target, drafter, rule)
    draft = getattr(drafter, "model", None)
    request, samples = engine.submit(list(range(64)) * 4, params), []
    for _ in range(steps):
        before = target.seconds + (draft.seconds if draft else 0.0)
        start = time.perf_counter()
        engine.step([request])
        took = time.perf_counter() - start
        samples.append(took - (target.seconds + (draft.seconds if draft else 0.0) - before))
    return 1000 * statistics.median(samples[5:])


def main() -> None:
    """Measure every combination once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target = FreeModel(1, options.vocab, 0.0)
    settings = {
        "greedy": SamplingParams(max_tokens=100_000, seed=1),
        "temperature 1": SamplingParams(temperature=1.0, max_tokens=100_000, seed=1),
        "temperature 0.7, top-p 0.95": SamplingParams(temperature=0.7, top_p=0.95, max_tokens=100_000, seed=1),
    }
    drafters = {
        "null": (lambda: NullDrafter(), (CoupledRule(), TokenRule())),
        "ngram": (lambda: NgramDrafter(options.gamma, min=1), (CoupledRule(), TokenRule())),
        "model": (
            lambda: ModelDrafter(FreeModel(2, options.vocab, 1.0), options.vocab, Shape.of(options.gamma, "", "drawn")),
            (BlockRule(), TokenRule(), TreeRule(), CoupledRule()),
        ),
    }
    rows = [
        {
            "drafter": name,
            "rule": rule.name,
            "sampling": setting,
            "ms": round(overhead(make(), rule, target, params, options.steps), 3),
        }
        for setting, params in settings.items()
        for name, (make, rules) in drafters.items()
        for rule in rules
    ]
    print(
        json.dumps(
            {"machine": platform.processor() or platform.machine(), **vars(options), "overhead_ms_per_step": rows}
        )
    )


if __name__ == "__main__":
    main()
