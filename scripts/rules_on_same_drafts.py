"""Expected accepted tokens a step of the token, block and tree rules on the very same drawn drafts.

    python scripts/rules_on_same_drafts.py PROMPTS.jsonl --drafter SPEC [--drafter SPEC ...] [--temperature 1]

Texts are written under the token rule; at every step the other rules judge the same proposal and the same rows. The
means are over the rules' own randomness (`verify.expected_accepted`), so that no sampling noise stands between them;
`advantage` is their mean difference to the token rule with its standard error. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
from math import sqrt

import torch
from torch import Tensor

from draftproof import SamplingParams, catalog, prompts
from draftproof.contracts import Outcomes
from draftproof.demo_weights import demo_model
from draftproof.engine import Engine
from draftproof.run import encode
from draftproof.tree import is_chain
from draftproof.types import Proposal
from draftproof.verify import BlockRule, TokenRule, TreeRule, expected_accepted


class Witness:
    """The token rule, which asks the others for their opinion."""

    name = "token"

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {"token": [], "block": [], "tree": []}

    def outcomes(self, proposal: Proposal, target_probs: Tensor) -> Outcomes:
        """The token rule's. Steps without a draft do not count."""
        own = TokenRule().outcomes(proposal, target_probs)
        if len(proposal):
            chain = is_chain(proposal.parents)
            others = {"block": BlockRule(), "tree": TreeRule()} if chain else {"tree": TreeRule()}
            self.found["token"].append(float(expected_accepted(proposal, own.stops)))
            for name, rule in others.items():
                stops = rule.outcomes(proposal, target_probs).stops
                self.found[name].append(float(expected_accepted(proposal, stops)))
        return own

    def summary(self) -> dict[str, object]:
        """Steps, mean accepted length by rule, and advantage over the token rule with its standard error."""
        token = torch.tensor(self.found["token"], dtype=torch.float64)
        made: dict[str, object] = {"steps": len(token), "token": {"accepted": float(token.mean())}}
        for name in ("block", "tree"):
            if self.found[name]:
                more = torch.tensor(self.found[name], dtype=torch.float64) - token
                error = float(more.std()) / sqrt(len(more))
                accepted = float(token.mean() + more.mean())
                made[name] = {"accepted": accepted, "advantage": float(more.mean()), "standard_error": error}
        return made


def main() -> None:
    """Write texts with every drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--target", default="")
    parser.add_argument("--drafter", action="append", required=True)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=10, help="take every n-th prompt")
    options = parser.parse_args()
    target = catalog.load_model(options.target or f"native:{demo_model()}")
    if target.text is None:
        parser.error("the target has no tokenizer")
    asked = prompts.read(options.prompts)[:: options.every]
    found = {}
    for spec in options.drafter:
        witness = Witness()
        engine = Engine(target.model, catalog.load_drafter(spec, target), witness, target.text)
        for number, one in enumerate(asked):
            ids = encode(target.text, [*one.messages, {"role": "user", "content": one.turns[0]}])
            params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens, seed=number)
            for _ in engine.generate(ids, params):
                pass
        found[spec] = witness.summary()
    print(json.dumps({"prompts": len(asked), "temperature": options.temperature, "drafters": found}))


if __name__ == "__main__":
    main()
