"""Are a drafter's rows honest? Run its real proposals through the exact audit, and once more with a common mistake.

The mistake: drop the rest of the draft where a drawn token turns out to be unlikely. Stop before drawing instead.
"""

from collections.abc import Sequence

import torch

from draftproof import Proposal, SamplingParams, load_rule
from draftproof.audit.laws import law_of, plain_law, total_variation, whole_engine
from draftproof.audit.scene import Scene
from draftproof.contracts import Ask
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.models.toy import ToyModel


class Picky(ModelDrafter):
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._cut(proposal) for proposal in super().propose(asks)]

    def _cut(self, proposal: Proposal) -> Proposal:
        assert proposal.probs is not None
        likely = [float(row[token]) > 0.3 for row, token in zip(proposal.probs, proposal.tokens, strict=True)]
        n = (*likely, False).index(False)
        return Proposal(proposal.tokens[:n], proposal.parents[:n], proposal.probs[:n])


if __name__ == "__main__":
    target = ToyModel(1, 3, order=0, dtype=torch.float64)
    draft = ToyModel(2, 3, order=0, near=(1, 0.5), dtype=torch.float64)
    for kind in (ModelDrafter, Picky):
        drafter = kind(draft, 3, Shape((1, 1), "drawn"))
        scene = Scene(target, drafter, SamplingParams(temperature=1, max_tokens=3), (0, 1))
        law = law_of(whole_engine, scene, load_rule("auto", drafter))
        print(f"{kind.__name__:12} total variation to plain decoding {total_variation(law, plain_law(scene)):.1e}")
