"""Topology of a proposal: pure functions of its parents. -1 is the last committed token, the root."""

from __future__ import annotations

from collections.abc import Sequence

ROOT = -1


def path(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """Node ids from the root's child down to `node`; the root's path is empty."""
    nodes: list[int] = []
    while node != ROOT:
        nodes.append(node)
        node = parents[node]
    return tuple(reversed(nodes))


def depths(parents: Sequence[int]) -> tuple[int, ...]:
    """Length of every node's path: 1 for a child of the root."""
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return tuple(result)


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """Children of the root and of every node, eldest first; every id is a key."""
    result: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        result[parent].append(node)
    return result


def is_chain(parents: Sequence[int]) -> bool:
    """True when no node has two children."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def follow(parents: Sequence[int], tokens: Sequence[int], text: Sequence[int]) -> tuple[int, ...]:
    """The longest path from the root whose tokens spell the beginning of `text`."""
    kids, node, nodes = children(parents), ROOT, []
    for token in text:
        hit = next((child for child in kids[node] if tokens[child] == token), None)
        if hit is None:
            break
        nodes.append(node := hit)
    return tuple(nodes)
