"""What theory says of a speed-up, from the acceptance rate, the cost of drafting and that of a verification."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Shapes = Mapping[tuple[int, int], int]
"""(draft tokens, depth) of a step -> how many steps had it."""


def expected_length(alpha: float, gamma: int) -> float:
    """Tokens of a step with a chain of gamma draft tokens, each accepted with alpha if those before it were.

    (1 - alpha^(gamma + 1)) / (1 - alpha), Leviathan et al. 2023, equation 1.
    """
    return float(sum(alpha**depth for depth in range(gamma + 1)))


def cost(shapes: Shapes, drafting: float, curve: Mapping[int, float]) -> float:
    """Time of these steps in units of a plain target call.

    drafting  time of all drafting in the same unit: draft tokens x c
    curve     k -> time of a target call over k tokens / over one; between two k a straight line, flat beyond them
    """
    counts = sorted(curve)
    known = [curve[k] for k in counts]
    verifying = sum(n * float(np.interp(1 + nodes, counts, known)) for (nodes, _), n in shapes.items())
    return verifying + drafting


def from_alpha(shapes: Shapes, alpha: float, drafting: float, curve: Mapping[int, float]) -> float:
    """Speed-up of decoding: sum of E(alpha, depth) / sum of (verification + drafting), over these steps.

    With one depth for all steps it is E / (gamma c + v(gamma + 1)); Leviathan et al., theorem 3.8, has v = 1.
    """
    tokens = sum(n * expected_length(alpha, depth) for (_, depth), n in shapes.items())
    return tokens / cost(shapes, drafting, curve)


def from_lengths(shapes: Shapes, mean_length: float, drafting: float, curve: Mapping[int, float]) -> float:
    """The same with the mean acceptance length that was counted, so that only the cost is theory."""
    return mean_length * sum(shapes.values()) / cost(shapes, drafting, curve)
