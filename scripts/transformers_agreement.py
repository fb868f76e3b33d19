"""How far `native:` is from transformers on the same float32 weights: greedy tokens and logits of whole texts.

    python scripts/transformers_agreement.py PROMPTS.jsonl [--folder FOLDER] [--texts 50] [--max-tokens 200]

Texts are greedy ones of `native:…,weights=f32`, every N-th prompt. transformers reads each in one call; a token agrees
where its own first choice behind the same prefix is that token. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
from transformers import AutoModelForCausalLM

from draftproof import SamplingParams, load_engine, prompts
from draftproof.demo_weights import demo_model
from draftproof.run import encode, tokenizer
from draftproof.session import Session, score
from draftproof.types import chain


def main() -> None:
    """Compare text by text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--folder", default="")
    parser.add_argument("--texts", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder or str(demo_model())
    engine = load_engine(f"native:{folder},weights=f32", "null")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    read = prompts.read(options.prompts)
    worst, tokens, others = 0.0, 0, []
    for one in read[:: max(1, len(read) // options.texts)][: options.texts]:
        ids = encode(tokenizer(engine), [{"role": "user", "content": one.turns[0]}])
        made = engine.generate(ids, SamplingParams(max_tokens=options.max_tokens))
        text = [token for step in made for token in step.tokens]
        with torch.no_grad():
            rows = theirs(torch.tensor([[*ids, *text[:-1]]])).logits[0, len(ids) - 1 :]
        (ours,) = score(engine.target, [Session(engine.target)], [ids], [chain(text[:-1])])
        worst = max(worst, float((rows - ours.logits).abs().max()))
        tokens += len(text)
        for i in (rows.argmax(-1) != torch.tensor(text)).nonzero().flatten().tolist():
            best = rows[i].topk(2).values
            others.append({"id": one.id, "position": i, "margin": float(best[0] - best[1])})
        print(f"{one.id}: largest difference so far {worst:.1e}", file=sys.stderr, flush=True)
    report = {"texts": options.texts, "tokens": tokens, "largest_logit_difference": worst, "other_choices": others}
    print(json.dumps({"folder": folder, "command": sys.argv, **report}))


if __name__ == "__main__":
    main()
