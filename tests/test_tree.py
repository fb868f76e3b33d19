from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftproof import tree

PARENTS = st.integers(0, 12).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n))))


@given(PARENTS)
def test_a_path_begins_at_the_root_and_has_the_nodes_depth(parents: tuple[int, ...]) -> None:
    for node, depth in enumerate(tree.depths(parents)):
        path = tree.path(parents, node)
        assert len(path) == depth and path[-1] == node
        assert [parents[i] for i in path] == [tree.ROOT, *path[:-1]]


@given(PARENTS)
def test_every_node_is_the_child_of_its_parent_once(parents: tuple[int, ...]) -> None:
    kids = tree.children(parents)
    assert sorted(kid for row in kids.values() for kid in row) == list(range(len(parents)))
    assert all(parents[kid] == node for node, row in kids.items() for kid in row)


def test_follow_takes_the_longest_path_that_spells_the_text() -> None:
    parents, tokens = (-1, -1, 1, 1, 3), (5, 6, 7, 8, 9)
    assert tree.follow(parents, tokens, [6, 8, 9, 1]) == (1, 3, 4)
    assert tree.follow(parents, tokens, [6, 9]) == (1,)
    assert tree.follow(parents, tokens, [1]) == ()


def test_only_a_tree_without_branches_is_a_chain() -> None:
    assert tree.is_chain(()) and tree.is_chain((-1, 0, 1))
    assert not tree.is_chain((-1, -1)) and not tree.is_chain((-1, 0, 0))
