"""Generate text and see which tokens were drafted.

python examples/generate.py [TARGET [DRAFTER [PROMPT]]]; without arguments a toy model writes letters.
"""

from __future__ import annotations

import sys

from draftproof import SamplingParams, Stats, Text, load_engine

MARKS = {"accepted": "+", "correction": "x", "bonus": "*", "plain": " "}


def main(target: str = "toy:7", drafter: str = "early-exit:layer=3,gamma=4", prompt: str = "a cab") -> None:
    """Stream one reply, a line a step: + accepted draft token, x correction, * bonus token."""
    engine = load_engine(target, drafter)
    assert isinstance(engine.text, Text)
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=40, seed=1)
    stats = Stats()
    for step in engine.generate(engine.text.encode(prompt), params):
        stats.add(step)
        marked = zip(step.tokens, step.origins, strict=True)
        print(" ".join(f"{MARKS[origin]}{engine.text.label(token)!r}" for token, origin in marked))
    print(
        f"{stats.tokens} tokens in {stats.target_calls} target calls; "
        f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted, "
        f"mean acceptance length {stats.mean_acceptance_length:.2f} (expected {stats.expected_acceptance_length:.2f})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
