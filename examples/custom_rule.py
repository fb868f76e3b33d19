"""Is a verification rule lossless? Sum over all that can happen in a text of 4 tokens and compare with plain decoding.

The rule below accepts with min(1, 1.3 p / q): it accepts more than the token rule, and it is wrong.
"""

import torch
from torch import Tensor

from draftproof import Proposal, SamplingParams
from draftproof.audit.laws import Fast, law_of, plain_law, total_variation
from draftproof.audit.scene import Scene
from draftproof.contracts import Outcomes, Rule
from draftproof.drafters.children import Shape
from draftproof.drafters.model import ModelDrafter
from draftproof.models.toy import ToyModel
from draftproof.verify import BlockRule, TokenRule


class Lenient:
    name = "lenient"

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """A rule is a pure function: stops [N + 1], and the row of the next token at each stop."""
        return TokenRule().outcomes(proposal, 1.3 * target_probs)


if __name__ == "__main__":
    target = ToyModel(1, 3, order=0, dtype=torch.float64)
    draft = ToyModel(2, 3, order=0, near=(1, 0.5), dtype=torch.float64)
    scene = Scene(
        target, ModelDrafter(draft, 3, Shape((1, 1), "drawn")), SamplingParams(temperature=1, max_tokens=4), (0, 1)
    )
    rules: list[Rule] = [TokenRule(), BlockRule(), Lenient()]
    for rule in rules:
        fast = Fast()
        distance = total_variation(law_of(fast, scene, rule), plain_law(scene))
        print(f"{rule.name:8} total variation {distance:.1e}, accepted {fast.accepted:.3f} of 2 draft tokens a step")
