"""What happens to a source's relation, how reads of it are narrowed, and what must come of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from runnel.model.types import TEXT
from runnel.plan.stage import Computed
from runnel.ports.rows import Restriction
from tests.ports.sources import STRING, Bag

UPPER = Computed('upper(l0."name")', TEXT, STRING)
NOT_THREE = 'l0."id" <> 3'

CHANGES = {
    "inserts": [["INSERT INTO t (id, name) VALUES (7, 'seven'), (7, 'seven'), (8, NULL)"]],
    "updates": [["UPDATE t SET name = 'TWO' WHERE id = 2"]],
    "updates to what was": [["UPDATE t SET name = 'two' WHERE id = 2"]],
    "deletes": [["DELETE FROM t WHERE id IN (1, 3)"], ["DELETE FROM t WHERE id IS NULL"]],
    "duplicates": [["INSERT INTO t (id, name) VALUES (2, 'two')"], ["INSERT INTO t (id, name) VALUES (2, 'two')"]],
    "a row that came and went": [
        ["INSERT INTO t (id, name) VALUES (9, 'nine')"],
        ["DELETE FROM t WHERE id = 9"],
    ],
    "a row that came and went at once": [
        ["INSERT INTO t (id, name) VALUES (9, 'nine')", "DELETE FROM t WHERE id = 9"],
    ],
    "a row that went and came": [
        ["DELETE FROM t WHERE id = 4"],
        ["INSERT INTO t (id, name) VALUES (4, 'vier')"],
    ],
    "a key that changes": [["UPDATE t SET id = 40 WHERE id = 4"], ["UPDATE t SET id = NULL WHERE id = 1"]],
    "all of it": [
        ["INSERT INTO t (id, name) VALUES (5, 'five'), (6, 'six')", "UPDATE t SET name = 'SIX' WHERE id = 6"],
        ["UPDATE t SET id = 5 WHERE id = 1"],
        ["DELETE FROM t WHERE id = 2", "INSERT INTO t (id, name) VALUES (2, 'deux')"],
    ],
    "nothing left": [["DELETE FROM t"]],
}
SOME = CHANGES["all of it"]

ONE = Restriction('l0."id"', "int8", (2, 77))
RESTRICTIONS: dict[str, tuple[Restriction, Callable[[int | None, str | None], bool]]] = {
    "by a key": (ONE, lambda id_, _: id_ == 2),
    "by keys that nobody has": (Restriction('l0."id"', "int8", (77, 78)), lambda *_: False),
    "by a key or NULL": (
        Restriction('l0."id"', "int8", (1,), include_null=True),
        lambda id_, _: id_ in (1, None),
    ),
    "by NULL alone": (Restriction('l0."id"', "int8", (), include_null=True), lambda id_, _: id_ is None),
    "by text": (Restriction('l0."name"', "text", ("one", "vier")), lambda _, name: name in ("one", "vier")),
    "by an expression": (Restriction('upper(l0."name")', "text", ("TWO",)), lambda _, name: name == "two"),
    "by two columns": (
        Restriction('l0."id"', "int8", (1, 2, 3), also=(Restriction('l0."name"', "text", ("one", "vier")),)),
        lambda id_, name: (id_, name) == (1, "one"),
    ),
}


def project(bag: Bag, to: Callable[..., tuple[object, ...] | None]) -> Bag:
    """The rows' images; rows without one are left out."""
    found: Bag = Counter()
    for row, weight in bag.items():
        image = to(*row)
        if image is not None:
            found[image] += weight
    return found


def upper_without_three(bag: Bag) -> Bag:
    """What a leaf of UPPER without NOT_THREE's rows holds."""
    return project(bag, lambda id_, name: None if id_ in (None, 3) else (name and name.upper(),))


def minus(after: Bag, before: Bag) -> Bag:
    """The delta between two bags."""
    found = Counter(after)
    found.subtract(before)
    return Counter({row: weight for row, weight in found.items() if weight})
