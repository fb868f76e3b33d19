"""Do greedy and coupled texts equal plain decoding's on a target, whatever drafts and whatever shares the call?

    python scripts/same_tokens.py PROMPTS.jsonl [--target SPEC] [--drafter SPEC ...] [--max-tokens 200] [--limit N]

Plain texts are written eight at a time with the null drafter, speculative ones five at a time, so that the calls have
different shapes. Prints one JSON object: texts, tokens and differences by drafter and temperature (1: rule coupled).
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from draftproof import SamplingParams, catalog, prompts
from draftproof.batch import generate
from draftproof.demo_weights import demo_model
from draftproof.run import Result

_PLAIN_TOGETHER = 8
_DRAFTED_TOGETHER = 5


def compare(plain: list[Result], drafted: list[Result]) -> dict[str, float]:
    """How many texts and tokens, and in how many texts a token differs."""
    pairs = zip(plain, drafted, strict=True)
    return {
        "texts": len(plain),
        "tokens": sum(len(one.token_ids) for one in plain),
        "draft_tokens": sum(one.stats.draft_tokens for one in drafted),
        "accepted_tokens": sum(one.stats.accepted_tokens for one in drafted),
        "differences": sum(a.token_ids != b.token_ids for a, b in pairs),
    }


def main() -> None:
    """Write the plain texts once a temperature, and those of every drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--target", default="")
    parser.add_argument("--drafter", action="append")
    parser.add_argument("--temperature", action="append", type=float)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = catalog.load_model(options.target or f"native:{demo_model()}")
    read = prompts.read(options.prompts)[: options.limit]
    conversations = [[*one.messages, *({"role": "user", "content": turn} for turn in one.turns[:1])] for one in read]
    found = []
    for temperature in options.temperature or [0.0]:
        params = SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=0)
        plain = generate(
            catalog.engine_for(target, "null", "coupled"), conversations, params, max_batch=_PLAIN_TOGETHER
        )
        for drafter in options.drafter or ["ngram"]:
            engine = catalog.engine_for(target, drafter, "coupled" if temperature else "auto")
            drafted = generate(engine, conversations, params, max_batch=_DRAFTED_TOGETHER)
            found.append({"drafter": drafter, "temperature": temperature, **compare(plain, drafted)})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"target": target.model.name, "command": sys.argv, "comparisons": found}))


if __name__ == "__main__":
    main()
