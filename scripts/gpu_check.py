"""Run the accelerator's checks and a short benchmark; needs torch and transformers, no network, under eight minutes.

    python scripts/gpu_check.py [--device cuda] [--small]

The last line is one JSON object: checks, waits a step, seconds of a forward over 1 ... 16 tokens, tokens a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import gpu_checks  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

from draftproof.catalog import Loaded, load_drafter, load_rule  # noqa: E402
from draftproof.engine import Engine  # noqa: E402
from draftproof.models.hf import HfModel  # noqa: E402
from draftproof.session import Session, score  # noqa: E402
from draftproof.stats import Stats  # noqa: E402
from draftproof.types import SamplingParams, chain  # noqa: E402


def wait(device: str) -> None:
    """Until the device has done what was queued."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def random_model(device: str, small: bool) -> HfModel:
    """A Llama of about a billion parameters in bfloat16 (a tiny one with `small`)."""
    shape = (64, 128, 2, 4, 2, 512) if small else (2048, 8192, 16, 32, 8, 32000)
    hidden, inner, layers, heads, kv, vocab = shape
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=vocab,
        max_position_embeddings=4096,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    return HfModel.wrap(model, "random llama")


def cost_curve(model: HfModel, device: str, context: int = 512) -> dict[str, float]:
    """Median seconds of a call that scores 1 ... 16 tokens behind a context."""
    text = [i % 500 for i in range(context)]
    curve = {}
    for count in (1, 2, 4, 6, 8, 12, 16):
        session, proposal, times = Session(model), chain([1] * (count - 1), device=model.device), []
        for _ in range(25):
            wait(device)
            start = time.perf_counter()
            score(model, [session], [text], [proposal])
            wait(device)
            times.append(time.perf_counter() - start)
        curve[str(count)] = statistics.median(times[5:])
    return curve


def speeds(model: HfModel, length: int = 96) -> dict[str, dict[str, float]]:
    """Tokens a second of plain and speculative decoding on one looping text, interleaved, median of five."""
    rates: dict[str, list[float]] = {}
    lengths: dict[str, float] = {}
    prompt = [7, 8, 9, 10, 11, 12] * 20
    for _ in range(6):
        for spec in ("null", "ngram:gamma=8", f"early-exit:layer={max(1, model.num_layers // 4)},gamma=4"):
            drafter = load_drafter(spec, Loaded(model, None))
            engine = Engine(model, drafter, load_rule("auto", drafter))
            start = time.perf_counter()
            steps = list(engine.generate(prompt, SamplingParams(max_tokens=length)))
            rates.setdefault(spec, []).append(length / (time.perf_counter() - start))
            lengths[spec] = Stats.of(steps).mean_acceptance_length
    return {
        spec: {"tokens_per_s": statistics.median(values[1:]), "mean_acceptance_length": lengths[spec]}
        for spec, values in rates.items()
    }


def main() -> None:
    """Checks first, then the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    report: dict[str, object] = {"device": options.device, "torch": torch.__version__}
    if options.device.startswith("cuda"):
        report["name"] = torch.cuda.get_device_name()
        report["waits_per_step"] = gpu_checks.synchronisations(options.device)
    report["greedy_texts_equal"] = gpu_checks.greedy_equals_transformers(options.device)
    report["seeded_texts_equal"] = gpu_checks.seeds_give_the_text_of_the_cpu(options.device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        gpu_checks.ratio_rules_run(options.device, dtype)
    model = random_model(options.device, options.small)
    report["forward_seconds"] = cost_curve(model, options.device)
    report["speeds"] = speeds(model)
    report["seconds"] = time.perf_counter() - started
    print(json.dumps(report))


if __name__ == "__main__":
    main()
