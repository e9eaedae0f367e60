"""Which keys narrow which read: rows without a partner in an inner join lead nowhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from runnel.delta import restrict
from runnel.delta.restrict import Met, restricted_reads
from runnel.delta.telescope import telescope
from runnel.model.types import LONG, PgType
from runnel.plan.stage import Branch, Computed, Equi, Inner, Leaf, LeafNode, Outer, StageRef, Tree
from runnel.ports.rows import Restriction

BIGINT = PgType(20, -1, "bigint")
A, B, C = LeafNode(0), LeafNode(1), LeafNode(2)


def equal(left: int, i: int, right: int, j: int, *, null_safe: bool = False) -> Equi:
    return Equi(left, i, right, j, "int8", f"l{left}.c{i}", f"l{right}.c{j}", null_safe)


def branch(tree: Tree) -> Branch:
    computed = tuple(Computed(f"c{i}", LONG, BIGINT) for i in range(2))
    leaves = tuple(Leaf(n, StageRef(n, ()), computed=computed) for n in range(3))
    return Branch(tree, leaves, (), ())


def table(leaf: int, rows: Sequence[tuple[int | None, int | None]]) -> pa.Table:
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(2)]
    return pa.table(columns, names=[f"l{leaf}_0", f"l{leaf}_1"])


def keys_read(
    tree: Tree,
    deltas: Mapping[int, list[tuple[int | None, int | None]]],
    contents: Mapping[int, list[tuple[int | None, int | None]]],
    term: int = 0,
    few: Mapping[int, float] | None = None,
) -> list[tuple[int, set[object] | None]]:
    """(leaf, keys) of each read in order; None for a whole one. Leaf 1 is the cheapest to read."""
    found: list[tuple[int, set[object] | None]] = []
    expected = few or {}

    def read(leaf: int, restriction: Restriction | None) -> Met | None:
        found.append((leaf, None if restriction is None else set(restriction.values)))
        rows = contents[leaf]
        if restriction is not None:
            column = int(restriction.sql[-1])
            rows = [row for row in rows if row[column] in restriction.values]
        return table(leaf, rows)

    whole = branch(tree)
    changed = {leaf: table(leaf, rows) for leaf, rows in deltas.items()}
    restricted_reads(
        whole,
        telescope(tree, sorted(deltas))[term],
        changed,
        read,
        lambda leaf, _, keys: keys * (1 if leaf == 1 else 100),
        lambda leaf: expected.get(leaf, math.inf),
    )
    return found


STAR = Inner((A, B, C), (equal(0, 0, 1, 0), equal(0, 1, 2, 0)))


def test_rows_without_a_partner_lead_nowhere() -> None:
    read = keys_read(STAR, {0: [(1, 10), (2, 20), (None, 30)]}, {1: [(2, 0)], 2: [(10, 0), (20, 0), (30, 0)]})
    assert read == [(1, {1, 2}), (2, {20})]


def test_a_partner_that_is_gone_counts() -> None:
    """Before the change there was a row of B under 1: it is in its delta, and A under 1 leads on."""
    deltas = {0: [(1, 10), (2, 20), (3, 30)], 1: [(1, 0)]}
    read = keys_read(STAR, deltas, {1: [(2, 0)], 2: []})
    assert read == [(1, {1, 2, 3}), (2, {10, 20})]


def test_rows_that_an_outer_join_preserves_lead_on() -> None:
    tree = Inner((Outer("left", A, B, (equal(0, 0, 1, 0),)), C), (equal(0, 1, 2, 0),))
    read = keys_read(tree, {0: [(1, 10), (2, 20)]}, {1: [(2, 0)], 2: []})
    assert read == [(1, {1, 2}), (2, {10, 20})]


def test_null_may_be_a_partner() -> None:
    tree = Inner((A, B, C), (equal(0, 0, 1, 0, null_safe=True), equal(0, 1, 2, 0)))
    read = keys_read(tree, {0: [(None, 10), (2, 20)]}, {1: [(2, 0)], 2: []})
    assert read[1] == (2, {10, 20})


def test_thinning_goes_on_through_the_leaves_known_before() -> None:
    """C thins out B, and B thins out A."""
    tree = Inner((A, B, C, LeafNode(3)), (equal(0, 0, 1, 0), equal(1, 1, 2, 0), equal(0, 1, 3, 0)))
    computed = tuple(Computed(f"c{i}", LONG, BIGINT) for i in range(2))
    whole = Branch(tree, tuple(Leaf(n, StageRef(n, ()), computed=computed) for n in range(4)), (), ())
    contents = {1: [(1, 5), (2, 6)], 2: [(6, 0)], 3: [(10, 0), (20, 0)]}
    found: list[tuple[int, set[object]]] = []

    def read(leaf: int, restriction: Restriction | None) -> Met | None:
        assert restriction is not None
        found.append((leaf, set(restriction.values)))
        return table(leaf, [row for row in contents[leaf] if row[0] in restriction.values])

    delta = {0: table(0, [(1, 10), (2, 20)])}
    restricted_reads(whole, telescope(tree, [0])[0], delta, read, lambda leaf, _, keys: keys * 10**leaf)
    assert found == [(1, {1, 2}), (2, {5, 6}), (3, {20})]


def test_too_many_keys_are_thinned_out_by_a_leaf_of_few_rows(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(restrict, "MAX_KEYS", 3)
    delta = [(n, 10 * n) for n in range(9)]
    contents = {1: [(2, 0), (5, 0)], 2: [(20, 0), (30, 0)]}
    assert keys_read(STAR, {0: delta}, contents, few={1: 2.0, 2: 100.0}) == [(1, None), (2, {20, 50})]
    assert keys_read(STAR, {0: delta}, contents) == [(1, None), (2, None)]
