"""Noise of one position for three tokens, as a point of a triangle.

Exponentials divided by their sum are uniform on the simplex, and the race argmax p_x / E_x of the coupled rule does
not depend on the sum. So what is known of a position's noise is a convex polygon; a probability is a ratio of areas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

Point = tuple[float, float, float]
Polygon = tuple[Point, ...]

TRIANGLE: Polygon = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
_SLIVER = 1e-15


def area(polygon: Polygon) -> float:
    """As a share of the triangle: shoelace over the first two barycentric coordinates."""
    if len(polygon) < 3:
        return 0.0
    x0, y0, _ = polygon[0]
    total = 0.0
    for (x1, y1, _), (x2, y2, _) in pairwise(polygon[1:]):
        total += (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    return abs(total)


def clip(polygon: Polygon, winner: int, loser: int, row: Sequence[float]) -> Polygon:
    """The part where `winner` beats `loser` in the race: E_winner * row[loser] <= E_loser * row[winner]."""
    heights = [point[winner] * row[loser] - point[loser] * row[winner] for point in polygon]
    kept: list[Point] = []
    for i, here in enumerate(heights):
        before, point, last = heights[i - 1], polygon[i], polygon[i - 1]
        if (here <= 0) != (before <= 0):
            t = before / (before - here)
            kept.append((_between(last, point, t, 0), _between(last, point, t, 1), _between(last, point, t, 2)))
        if here <= 0:
            kept.append(point)
    return tuple(kept)


def _between(a: Point, b: Point, t: float, axis: int) -> float:
    return a[axis] + t * (b[axis] - a[axis])


@lru_cache(maxsize=65536)
def winners(
    polygon: Polygon, row: tuple[float, ...], runners: tuple[int, ...]
) -> tuple[tuple[int, float, Polygon], ...]:
    """(token, probability given the polygon, its part) for every runner that can win the race among `runners`."""
    cells = []
    for token in runners:
        part = polygon
        for other in runners:
            if other != token and len(part) >= 3:
                part = clip(part, token, other, row)
        if (size := area(part)) > _SLIVER:
            cells.append((token, size, part))
    total = sum(size for _, size, _ in cells)
    return tuple((token, size / total, part) for token, size, part in cells)


def centre(polygon: Polygon) -> Point:
    """A point inside: the mean of the corners."""
    n = len(polygon)
    return sum(p[0] for p in polygon) / n, sum(p[1] for p in polygon) / n, sum(p[2] for p in polygon) / n
