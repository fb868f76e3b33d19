"""What a reduced head costs the low-bit copy: its next-token agreement with the target by the size of its head.

    python scripts/reduced_head.py native:FOLDER PROMPTS.jsonl --every 40 --vocab 8192 16384 0

The target answers every so many prompts greedily. At every place of the answers, with the target's own cache behind it,
the copy is asked for the next token, without and with the rows of the text's own tokens. One JSON line a size: the
tokens its head lacks, how many of those stand in the context, and both agreements.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from draftproof.calibration import calibration
from draftproof.catalog import Loaded, load_model
from draftproof.contracts import Twin
from draftproof.drafters.null import NullDrafter
from draftproof.drafters.text_rows import TextRows, text_rows
from draftproof.engine import Engine
from draftproof.models.lowbit.settings import LowBit
from draftproof.session import Session, score
from draftproof.types import SamplingParams, Segment, chain
from draftproof.verify import TokenRule


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("prompts")
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 16384, 0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    target = load_model(given.target)
    lines = Path(given.prompts).read_text(encoding="utf-8").splitlines()[:: given.every]
    texts = answers(target, [json.loads(line)["turns"][0] for line in lines], given.max_tokens)
    for size in given.vocab:
        twin = target.model.lowbit(LowBit(vocab=size), calibration(target.model, target.text, lambda what, share: None))
        print(json.dumps({"vocab": size, "megabytes": round(twin.bytes / 1e6, 1), **agreement(target, twin, texts)}))


def answers(target: Loaded, prompts: Sequence[str], most: int) -> list[tuple[int, list[int]]]:
    """(tokens of the prompt, all tokens) of greedy answers."""
    engine = Engine(target.model, NullDrafter(), TokenRule(), target.text)
    written = []
    for prompt in prompts:
        request = engine.submit(target.text.chat(prompt), SamplingParams(max_tokens=most))
        while request.finish_reason is None:
            engine.step([request])
        written.append((request.prompt_length, list(request.context)))
    return written


def agreement(target: Loaded, twin: Twin, texts: Sequence[tuple[int, list[int]]]) -> dict[str, float]:
    """Shares of the places; of greedy answers the target's choice is the token that follows."""
    model, beyond = target.model, text_rows(target.model, twin.ids)
    known = set(range(model.vocab_size)) if twin.ids is None else set(twin.ids.tolist())
    places = lacking = in_context = alone = beside = 0
    for begin, text in texts:
        session = Session(model)
        score(model, [session], [text], [chain([])])
        for at in range(len(text) - 1, begin - 1, -1):
            rows = None if beyond is None else TextRows(*beyond, model.device)
            if rows is not None:
                rows.read(text[:at])
            pair = None if rows is None else (rows.ids, rows.rows)
            guesses = []
            for given in (None, pair):
                model.rollback(session.cache, at - 1)
                assert twin.whole is not None, "only native: has such a copy"
                segment = Segment(session.cache, torch.tensor(text[at - 1 : at]), (-1,), 1)
                guesses.append(int(twin.whole([segment], [given])[0].argmax()))
            places, lacking = places + 1, lacking + (text[at] not in known)
            in_context += text[at] not in known and text[at] in text[:at]
            alone, beside = alone + (guesses[0] == text[at]), beside + (guesses[1] == text[at])
    counts = {"lacking": lacking, "agreement": alone, "with_the_texts_own": beside}
    shares = {name: round(count / places, 4) for name, count in counts.items()}
    return {"places": places, **shares, "of_those_lacking_in_context": round(in_context / max(1, lacking), 4)}


if __name__ == "__main__":
    main()
