"""Parts of deltas as SELECTs, without a server: which joins are written how, and where weights go."""

from __future__ import annotations

import pytest

from runnel.delta.as_sql import Selected, branch_sql, negated, plain_sums, tree_sql, union
from runnel.delta.parts import Anti, Part
from runnel.model.types import Form, PgType
from runnel.plan.stage import Branch, Computed, Constant, Equi, Inner, Leaf, LeafNode, Outer, Residual

INT = PgType(20, -1, "bigint")
TEXT = PgType(25, -1, "text")
A = Selected("A", ("l0_0", "l0_1"), weighted=False)
B = Selected("B", ("l1_0",), weighted=False)
CHANGED_B = Selected("dB", ("l1_0",), weighted=True)
KEY = Equi(0, 0, 1, 0, "int8", "", "")


def leaf(number: int, *kinds: str) -> Leaf:
    types = {"long": INT, "text": TEXT}
    computed = tuple(Computed("x", Form(kind), types[kind]) for kind in kinds)  # type: ignore[arg-type]
    return Leaf(number, Constant("", ()), computed=computed)


def branch(tree: Inner | Outer | LeafNode, **more: tuple[tuple[int, int], ...]) -> Branch:
    return Branch(tree, (leaf(0, "long", "text"), leaf(1, "long")), more.get("carried", ()), more.get("sums", ()))


LEFT = Outer("left", LeafNode(0), LeafNode(1), (KEY,))
FULL = Outer("full", LeafNode(0), LeafNode(1), (KEY,))


@pytest.mark.parametrize(
    ("tree", "right", "text"),
    [
        (
            Inner((LeafNode(0), LeafNode(1)), (KEY,), (Residual("(l0_0 <=> l1_0)", frozenset({0, 1})),)),
            B,
            "SELECT l0_0, l0_1, l1_0 FROM (A) AS x0, (B) AS x1 WHERE l0_0 = l1_0 AND (l0_0 IS NOT DISTINCT FROM l1_0)",
        ),
        (LEFT, B, "SELECT l0_0, l0_1, l1_0 FROM (A) AS a LEFT JOIN (B) AS b ON l0_0 = l1_0"),
        (FULL, B, "SELECT l0_0, l0_1, l1_0 FROM (A) AS a FULL JOIN (B) AS b ON l0_0 = l1_0"),
        (
            Anti(LeafNode(0), LeafNode(1), (KEY,), ()),
            CHANGED_B,
            "SELECT l0_0, l0_1, NULL::int8 AS l1_0 FROM (A) AS a WHERE NOT EXISTS "
            "(SELECT FROM (SELECT l1_0 FROM (dB) AS g GROUP BY l1_0 HAVING sum(w) > 0) AS b WHERE l0_0 = l1_0)",
        ),
    ],
)
def test_joins(tree: Inner | Outer, right: Selected, text: str) -> None:
    assert tree_sql(branch(LEFT), tree, {0: A, 1: right}).text == text


def test_what_an_outer_join_may_pad_is_counted_when_it_has_weights() -> None:
    found = tree_sql(branch(LEFT), LEFT, {0: A, 1: CHANGED_B})
    assert found.weighted
    assert " JOIN " not in found.text and found.text.count("UNION ALL") == 1 and "HAVING sum(w) > 0" in found.text
    both = tree_sql(branch(FULL), FULL, {0: A, 1: CHANGED_B})
    assert both.text.count("UNION ALL") == 2 and both.columns == ("l0_0", "l0_1", "l1_0")


def test_weights_multiply_and_are_negated() -> None:
    other = Selected("dA", ("l0_0", "l0_1"), weighted=True)
    joined = tree_sql(branch(LEFT), Inner((LeafNode(0), LeafNode(1)), (KEY,)), {0: other, 1: CHANGED_B})
    assert "x0.w * x1.w AS w" in joined.text
    assert negated(B).text == "SELECT l1_0, -(1) AS w FROM (B) AS n"
    assert union([B, CHANGED_B]).text == (
        "SELECT l1_0, 1 AS w FROM (B) AS u UNION ALL SELECT l1_0, w AS w FROM (dB) AS u"
    )


def test_load_rows() -> None:
    one = branch(LeafNode(0), carried=((0, 1),), sums=((0, 0),))
    part = Part(1, LeafNode(0), {0: "after"})
    assert branch_sql(one, 3, part, {0: A}, plain_sums(one)) == (
        'SELECT 3::int8 AS b, l0_1 COLLATE "C" AS b3_0, count(*) AS w, sum(l0_0) AS s0 '
        "FROM (A OFFSET 0) AS t GROUP BY 2"
    )
    changed = Selected("dA", A.columns, weighted=True)
    taken = Part(-1, LeafNode(0), {0: "delta"})
    assert branch_sql(one, 0, taken, {0: changed}, plain_sums(one)) == (
        'SELECT 0::int8 AS b, l0_1 COLLATE "C" AS b0_0, sum(-(w))::int8 AS w, sum((-(w)) * l0_0) AS s0 '
        "FROM (dA OFFSET 0) AS t GROUP BY 2"
    )
    assert branch_sql(branch(LeafNode(0)), 0, part, {0: A}, ()) == (
        "SELECT 0::int8 AS b, count(*) AS w FROM (A) AS t HAVING count(*) > 0"
    )
    assert branch_sql(one, 0, part, {0: A}, None) == (
        'SELECT 0::int8 AS b, l0_1 COLLATE "C" AS b0_0, (1)::int8 AS w, 1 * l0_0 AS s0 FROM (A) AS t'
    )
