"""A drafter of one's own: it draws what has followed the last token so far, and reports the row it draws from."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from draftproof import Engine, Proposal, SamplingParams, Stats, load_model, load_rule
from draftproof.contracts import Ask, DraftSession, Key
from draftproof.drafters.null import Stateless
from draftproof.types import chain


class BigramDrafter:
    name, draws, branches, gamma = "bigram", True, False, 3
    layers: tuple[int, ...] = ()

    def start(self, target: Any) -> DraftSession:
        return Stateless()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._one(list(ask.context), ask) for ask in asks]

    def _one(self, text: list[int], ask: Ask) -> Proposal:
        start, rows = len(text), []
        for i in range(ask.depth):  # how far to go is settled before anything is drawn
            followers = torch.tensor([token for last, token in pairwise(text) if last == text[-1]], dtype=torch.int64)
            rows.append(torch.softmax(4 * torch.bincount(followers, minlength=8).float().log1p(), 0))
            text.append(int(ask.source.draw(rows[-1], Key(start, "draft", i))))
        return chain(text[start:], torch.stack(rows))


if __name__ == "__main__":
    drafter = BigramDrafter()
    engine = Engine(load_model("toy:7,vocab=8,order=1").model, drafter, load_rule("auto", drafter))
    stats = Stats.of(engine.generate([1, 2, 1], SamplingParams(temperature=1, max_tokens=400, seed=1)))
    print(f"{stats.tokens} tokens in {stats.target_calls} target calls")
    print(f"accepted {stats.draft_acceptance_rate:.2f} of the draft tokens; overlap of the rows {stats.alpha:.2f}")
