"""Training prompts of more kinds: every prompt that is no arithmetic goes on with a second request about its answer.

    python scripts/varied_prompts.py PROMPTS.jsonl > VARIED.jsonl

The target answers both, so it also writes summaries, rewritten text, answers about a text and translations. Of a
category that fills more than a fifth of the file only so much is kept.
"""

from __future__ import annotations

import collections
import json
import random
import sys
from pathlib import Path

_SHARE = 0.2
_ABOUT_TEXT = (
    "Summarize your answer in three sentences.",
    "Shorten your answer to half its length, and keep its wording where you can.",
    "Rewrite your answer with simpler words.",
    "List the main points of your answer.",
    "Which names, places and numbers are in your answer? Write them as a list.",
    "Repeat your answer, and correct its mistakes.",
    "Write the same as an email to a friend.",
    "What does your answer leave out?",
    "Is your answer right? Check each of its sentences.",
    "Translate your answer to French.",
    "Read the text above and ask three questions about it, then answer them with the words of the text.",
    "Give an example for your second sentence.",
    "Explain it to a child.",
)
_ABOUT_CODE = (
    "Explain your code line by line.",
    "Write tests for it.",
    "Add a comment to every line, and change nothing else.",
    "Can you make it faster? Write the whole function again.",
    "Rename the variables, and write the whole function again.",
)


def main(path: str) -> None:
    """Write the prompts to standard output."""
    rng = random.Random(0)
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    kinds: dict[str, list[dict[str, object]]] = collections.defaultdict(list)
    for row in rows:
        kinds[row["category"]].append(row)
    for kind, members in kinds.items():
        most = round(_SHARE * len(rows))
        if kind == "math":
            members = rng.sample(members, min(most, len(members)))
        for row in members:
            print(json.dumps(row if kind == "math" else _longer(row, kind, rng), ensure_ascii=False))


def _longer(row: dict[str, object], kind: str, rng: random.Random) -> dict[str, object]:
    more = rng.choice(_ABOUT_CODE if kind == "coding" else _ABOUT_TEXT)
    return {**row, "turns": [*row["turns"], more]}  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1])
