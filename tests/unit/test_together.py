"""Who is refreshed with whom, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from runnel.engine.agenda import Turn
from runnel.engine.registry import Registry
from runnel.engine.together import Together, joined

REGISTRY = cast(
    "Registry",
    SimpleNamespace(
        rows={n: SimpleNamespace(owner=2 if n == 5 else 1) for n in range(1, 10)},
        graph={n: frozenset({1}) if n == 6 else frozenset() for n in range(1, 10)},
        relations_read={n: {200 if n == 7 else 100: "LAKE" if n == 8 else "TABLE"} for n in range(1, 10)},
    ),
)


def turn(*members: int, heavy: bool = False) -> Turn:
    return Turn(members, dict.fromkeys(members, 1.0), 1.0, heavy)


def parties(tables: list[Turn], hands: int, took: dict[int, float], held: tuple[int, ...] = ()) -> list[list[Any]]:
    together = Together()
    for table, seconds in took.items():
        together.took([table], seconds)
    found = together.parties(tables, REGISTRY, hands, held.__contains__)
    return [list(joined(party).members) for party in found]


QUICK = dict.fromkeys(range(1, 10), 0.02)


def test_each_has_its_own_while_there_are_hands() -> None:
    assert parties([turn(1), turn(2)], 2, QUICK) == [[1], [2]]


def test_those_that_share_a_source_and_an_owner_join() -> None:
    assert parties([turn(n) for n in (1, 5, 2, 6, 3, 7, 8)], 1, QUICK) == [[1, 2, 3]]


def test_all_hands_are_used() -> None:
    assert parties([turn(n) for n in (1, 2, 3, 4)], 2, QUICK) == [[1, 2], [3, 4]]
    assert parties([turn(n) for n in (1, 2, 3)], 2, QUICK) == [[1, 2], [3]]


def test_what_takes_long_or_is_unknown_or_held_or_a_unit_is_alone() -> None:
    took = {**QUICK, 2: 0.5}
    del took[3]
    due = [turn(1), turn(2), turn(3), turn(4), turn(9), turn(1, 9)]
    assert parties(due, 1, took, held=(4,)) == [[1, 9]]
    assert parties([turn(2), turn(1)], 1, took) == [[2]]
    assert parties([turn(1, 9), turn(1)], 1, took) == [[1, 9]]


def test_who_was_not_fit_for_company_is_alone_for_a_while() -> None:
    together = Together()
    together.took([1, 2, 3], 0.06)
    together.alone([2])
    together.took([2], 0.02)
    due = [turn(1), turn(2), turn(3)]
    found = together.parties(due, REGISTRY, 1, lambda _: False)
    assert [joined(party).members for party in found] == [[1, 3]]


def test_a_moment_has_its_end() -> None:
    slow = dict.fromkeys(range(1, 10), 0.15)
    assert parties([turn(n) for n in (1, 2, 3, 4)], 1, slow) == [[1, 2]]


def test_heavy_ones_need_no_hand() -> None:
    assert parties([turn(1), turn(2, heavy=True), turn(3)], 0, QUICK) == [[2]]
