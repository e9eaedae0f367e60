"""The rules of deltas on small trees: which leaf is read at which version, and with which sign."""

from __future__ import annotations

from itertools import combinations

import pytest

from runnel.delta.outer_join import padding_join
from runnel.delta.parts import Anti, leaf_set
from runnel.delta.telescope import from_nothing, telescope
from runnel.plan.stage import Equi, Inner, LeafNode, Outer, Residual, tree_leaves


def equal(left: int, right: int, *, null_safe: bool = False) -> Equi:
    return Equi(left, 0, right, 0, "int8", f"l{left}.k", f"l{right}.k", null_safe)


A, B, C = LeafNode(0), LeafNode(1), LeafNode(2)
CHAIN = Inner((A, B, C), (equal(0, 1), equal(1, 2)))


@pytest.mark.parametrize("changed", [c for n in (1, 2, 3) for c in combinations((0, 1, 2), n)])
def test_leaves_before_the_changed_one_are_after_those_behind_still_before(changed: tuple[int, ...]) -> None:
    terms = telescope(CHAIN, changed)
    assert [t.leaf for t in terms] == list(changed)
    for term in terms:
        (part,) = term.parts
        assert part.sign == 1
        for leaf, version in part.versions.items():
            if leaf == term.leaf:
                assert version == "delta"
            elif leaf in changed and leaf > term.leaf:
                assert version == "before"
            else:
                assert version == "after"


def test_nothing_changed_means_no_terms() -> None:
    assert telescope(CHAIN, []) == []


def test_a_build_reads_everything_as_it_is() -> None:
    term = from_nothing(CHAIN)
    assert not term.restricted
    assert set(term.parts[0].versions.values()) == {"after"}


def test_a_left_join_is_linear_in_the_side_it_preserves() -> None:
    tree = Outer("left", A, B, (equal(0, 1),))
    assert padding_join(tree, 0) is None
    assert padding_join(tree, 1) == tree
    (term,) = telescope(tree, [0])
    assert [p.versions[0] for p in term.parts] == ["delta"]


def test_a_full_join_pads_both_sides() -> None:
    tree = Outer("full", A, B, (equal(0, 1),))
    assert padding_join(tree, 0) == padding_join(tree, 1) == tree


def test_the_topmost_padding_join_counts() -> None:
    inner = Outer("left", A, B, (equal(0, 1),))
    tree = Outer("left", C, inner, (equal(2, 0),))
    assert padding_join(tree, 1) == tree
    assert padding_join(tree, 0) == tree
    assert padding_join(tree, 2) is None
    assert padding_join(Inner((inner, C), (equal(1, 2),)), 1) == inner


def test_the_padded_side_of_a_left_join_gives_matches_and_flipping_padding() -> None:
    tree = Outer("left", A, B, (equal(0, 1),))
    (term,) = telescope(tree, [1])
    matched, now, then = term.parts
    assert (matched.sign, now.sign, then.sign) == (1, 1, -1)
    assert (matched.versions[1], now.versions[1], then.versions[1]) == ("delta", "after_keys", "before_keys")
    assert isinstance(matched.tree, Inner)
    assert isinstance(now.tree, Anti)
    assert now.tree == then.tree
    assert leaf_set(now.tree) == {0, 1}


def test_other_conditions_and_joined_sides_are_compared_whole() -> None:
    for tree in (
        Outer("left", A, B, (equal(0, 1),), (Residual("l0_1 < l1_1", frozenset({0, 1})),)),
        Outer("left", A, Inner((B, C), (equal(1, 2),)), (equal(0, 1),)),
    ):
        (term,) = telescope(tree, [1])
        assert [(p.sign, p.versions[1]) for p in term.parts] == [(1, "after"), (-1, "before")]
        assert term.restricted
        assert len(term.seeds) == 2


def test_without_an_equality_nothing_narrows_the_reads() -> None:
    tree = Outer("left", A, B, (), (Residual("l0_0 < l1_0", frozenset({0, 1})),))
    (term,) = telescope(tree, [1])
    assert not term.restricted


def test_null_safe_keys_narrow_reads_and_ask_for_the_rows_without_a_key() -> None:
    tree = Outer("left", A, B, (equal(0, 1, null_safe=True),), (Residual("l0_0 < l1_0", frozenset({0, 1})),))
    (term,) = telescope(tree, [1])
    assert term.restricted
    assert all(seed.include_null for seed in term.seeds)


def test_leaves_are_listed_left_to_right() -> None:
    assert list(tree_leaves(Outer("left", Inner((C, A)), B))) == [2, 0, 1]
