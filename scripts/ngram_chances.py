"""How often the token behind an n-gram match is the one the target writes next, by the length of the match.

    python scripts/ngram_chances.py [--target SPEC] [--prompts bundled] [--max-tokens 200]

Greedy texts; every position is looked up, drafted or not. Prints one JSON object: match length -> [taken, tries].
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

import numpy as np

from draftproof import SamplingParams, load_engine, prompts
from draftproof.demo_weights import demo_model
from draftproof.drafters.ngram import continuation, matches
from draftproof.run import encode, tokenizer

_DEPTH = 12


def count(text: list[int], start: int, taken: Counter[int], tries: Counter[int]) -> None:
    """Add the fate of a look-up at every position of text[start:], each followed until its first miss."""
    array = np.array(text)
    for end in range(start, len(text)):
        for match in matches(array[:end], 1, 32, 1):
            path = continuation(array[:end], match.start, _DEPTH)
            for i, (token, written) in enumerate(zip(path, text[end:], strict=False)):
                tries[match.length + i] += 1
                taken[match.length + i] += token == written
                if token != written:
                    break


def main() -> None:
    """Write greedy texts and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="")
    parser.add_argument("--prompts", default="bundled")
    parser.add_argument("--max-tokens", type=int, default=200)
    options = parser.parse_args()
    engine = load_engine(options.target or f"native:{demo_model()}", "null")
    taken, tries = Counter[int](), Counter[int]()
    for prompt in prompts.read(options.prompts):
        ids = encode(tokenizer(engine), [*prompt.messages, {"role": "user", "content": prompt.turns[0]}])
        steps = engine.generate(ids, SamplingParams(max_tokens=options.max_tokens))
        written = [token for step in steps for token in step.tokens]
        count([*ids, *written], len(ids), taken, tries)
    print(json.dumps({length: [taken[length], tries[length]] for length in sorted(tries)}))


if __name__ == "__main__":
    main()
