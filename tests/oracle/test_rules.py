"""Rules of their own for costly shapes, through histories of changes: PostgreSQL says what is right after each."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from runnel.delta import restrict
from runnel.delta.parts import Term
from runnel.delta.ranges import between
from runnel.plan.stage import Branch
from runnel.ports.rows import Restriction
from runnel.refresh import leaves, stagework
from runnel.refresh.copied import copied_changes
from runnel.refresh.leaves import Leaves
from tests.oracle.scenario import Scenario

pytestmark = pytest.mark.slow

Replay = Callable[[Scenario], None]


def _value(chance: random.Random, most: int = 4) -> str:
    return "NULL" if chance.random() < 0.15 else str(chance.randint(0, most))


def _history(chance: random.Random, table: str, steps: int) -> list[list[str]]:
    """Changes of a table (id, k, v, f), several statements at a time."""

    def change() -> str:
        row = f"({chance.randint(0, 99)}, {_value(chance)}, {_value(chance, 2)}, {chance.random() < 0.5})"
        return chance.choice(
            (
                f"INSERT INTO {table} VALUES {row}",
                f"INSERT INTO {table} VALUES {row}",
                f"DELETE FROM {table} WHERE k = {_value(chance)} AND v = {_value(chance, 2)}",
                f"UPDATE {table} SET v = {_value(chance, 2)} WHERE k = {_value(chance)}",
                f"UPDATE {table} SET k = {_value(chance)} WHERE v = {_value(chance, 2)}",
                f"UPDATE {table} SET f = NOT f WHERE id % 3 = 0",
            )
        )

    return [[change() for _ in range(chance.randint(1, 4))] for _ in range(steps)]


@pytest.mark.parametrize("seed", range(3))
def test_exists_with_an_inequality(replay: Replay, seed: int) -> None:
    """One row per key says whether its values are several: through NULLs, negative and large ones, and empty keys."""
    chance = random.Random(seed)
    rows = ", ".join(f"({i}, {_value(chance)}, {_value(chance, 2)}, {chance.random() < 0.5})" for i in range(20))
    exists = "EXISTS (SELECT 1 FROM t1 b WHERE b.k = a.k AND b.v <> a.v"
    steps = [step for pair in zip(_history(chance, "t0", 4), _history(chance, "t1", 4), strict=True) for step in pair]
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (id int, k int, v smallint, f bool)",
                "CREATE TABLE t1 (id int, k int, v bigint, f bool)",
                f"INSERT INTO t0 VALUES {rows}",
                f"INSERT INTO t1 VALUES {rows}",
                "INSERT INTO t1 VALUES (1, 1, 9223372036854775807, true), (2, 1, -9223372036854775808, false)",
            ],
            streams={
                "s0": f"SELECT a.id, a.k, a.v FROM t0 a WHERE {exists})",
                "s1": f"SELECT a.id, a.k, a.v FROM t0 a WHERE NOT {exists} AND b.f)",
                "s2": f"SELECT a.k, count(*) AS n FROM t0 a WHERE {exists}) AND NOT {exists} AND b.f) GROUP BY a.k",
                "s3": f"SELECT a.id, ({exists}) OR a.f) AS x FROM t0 a",
                "s4": "SELECT a.id, a.k FROM t0 a WHERE EXISTS (SELECT 1 FROM t0 b WHERE b.k = a.k AND b.id <> a.id)",
            },
            steps=[*steps, ["DELETE FROM t1 WHERE v > 9"], ["DELETE FROM t1"], steps[1]],
        )
    )


@pytest.mark.parametrize("seed", range(2))
def test_many_changes_are_joined_by_the_refresh_itself(
    replay: Replay, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """As if every change were one of many, in tables that are far larger: by integers, dates and texts."""
    monkeypatch.setattr(Leaves, "threshold", property(lambda _: 0))
    monkeypatch.setattr(leaves, "FOLLOWED", 0)
    copied = []
    monkeypatch.setattr(stagework, "copied_changes", lambda *args: copied.append(args) or copied_changes(*args))
    chance = random.Random(seed)
    rows = ", ".join(f"({i}, {_value(chance)}, {_value(chance, 2)}, {chance.random() < 0.5})" for i in range(20))
    steps = [step for n in range(3) for t in ("t0", "t1", "t2") for step in _history(chance, t, 1)]
    columns = (
        "id int, k int, v int, f bool, d date GENERATED ALWAYS AS ('2020-01-01'::date + v) STORED, "
        "s text COLLATE \"C\" GENERATED ALWAYS AS ('ä' || v) STORED"
    )
    replay(
        Scenario(
            tables=[f"CREATE TABLE t{n} ({columns})" for n in range(3)]
            + [f"INSERT INTO t{n} VALUES {rows}" for n in range(3)],
            streams={
                "s0": "SELECT a.id, b.s, c.d FROM t0 a JOIN t1 b ON b.k = a.k JOIN t2 c ON c.s = b.s AND c.f",
                "s1": "SELECT a.k, sum(b.v * c.v) AS n, max(c.s) AS s FROM t0 a JOIN t1 b ON b.d = a.d "
                "LEFT JOIN t2 c ON c.k = a.k GROUP BY a.k",
                "s2": "SELECT a.id, a.v FROM t0 a WHERE a.f AND a.v < (SELECT avg(b.v) FROM t0 b WHERE b.k = a.k)",
                "s3": "SELECT a.id, c.id AS x FROM t0 a FULL JOIN (t1 b JOIN t2 c ON c.s = b.s AND c.k = b.k) "
                "ON b.k = a.k",
            },
            steps=steps,
        )
    )
    assert copied


@pytest.mark.parametrize("seed", range(2))
def test_too_many_keys(replay: Replay, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As if more than two keys were too many to narrow a read by: filtered tables thin out the others."""
    monkeypatch.setattr(restrict, "MAX_KEYS", 2)
    chance = random.Random(seed)
    rows = ", ".join(f"({i}, {_value(chance)}, {_value(chance, 2)}, {chance.random() < 0.5})" for i in range(20))
    replay(
        Scenario(
            tables=[f"CREATE TABLE t{n} (id int, k int, v int, f bool)" for n in range(3)]
            + [f"INSERT INTO t{n} VALUES {rows}" for n in range(3)]
            + [f"CREATE INDEX ON t{n} (k)" for n in range(3)],
            streams={
                "s0": "SELECT a.id, b.v, c.v AS w FROM t0 a JOIN t1 b ON b.k = a.k AND b.id < 2 JOIN t2 c ON c.v = a.v",
                "s1": "SELECT a.k, count(*) AS n FROM t0 a LEFT JOIN t1 b ON b.k = a.k JOIN t2 c ON c.v = a.v "
                "AND c.id < 3 GROUP BY a.k",
                "s2": "SELECT a.id, c.id AS x FROM t0 a LEFT JOIN (t1 b JOIN t2 c ON c.v = b.v AND c.id < 2) "
                "ON b.k = a.k",
                "s3": "SELECT a.id, a.v FROM t0 a WHERE a.id < 2 AND a.v < (SELECT avg(b.v) FROM t1 b WHERE b.k = a.k)",
            },
            steps=[step for n in range(3) for t in ("t0", "t1", "t2") for step in _history(chance, t, 1)],
        )
    )


@pytest.mark.parametrize("seed", range(2))
def test_only_keys_that_a_constant_leaves_are_kept(replay: Replay, seed: int) -> None:
    """Rows of the table that the constant picks come, go, and change their keys."""
    chance = random.Random(seed)
    rows = ", ".join(f"({i}, {_value(chance)}, {_value(chance, 2)}, {chance.random() < 0.5})" for i in range(20))
    parts = [
        chance.choice(
            (
                f"UPDATE p SET brand = {chance.randint(0, 1)} WHERE id = {chance.randint(0, 4)}",
                f"DELETE FROM p WHERE id = {chance.randint(0, 4)}",
                f"INSERT INTO p VALUES ({chance.randint(0, 4)}, 1, {_value(chance)}) ON CONFLICT DO NOTHING",
                f"UPDATE p SET id = id + 10 WHERE id = {chance.randint(0, 4)}",
            )
        )
        for _ in range(8)
    ]
    steps = [step for n, part in enumerate(parts) for step in ([part], *_history(chance, f"t{n % 2}", 1))]
    replay(
        Scenario(
            tables=[
                "CREATE TABLE p (id int PRIMARY KEY, brand int, size int)",
                "INSERT INTO p SELECT i, i % 2, i FROM generate_series(0, 4) i",
                *(f"CREATE TABLE t{n} (id int, k int, v int, f bool)" for n in range(2)),
                *(f"INSERT INTO t{n} VALUES {rows}" for n in range(2)),
            ],
            streams={
                "s0": "SELECT p.id, (SELECT avg(b.v) FROM t1 b WHERE b.k = p.id) AS x FROM p WHERE p.brand = 1",
                "s1": "SELECT sum(a.v) AS s FROM t0 a JOIN p ON p.id = a.k WHERE p.brand = 1 AND p.size < 4 "
                "AND a.v < (SELECT 1.5 * avg(b.v) FROM t0 b WHERE b.k = p.id)",
                "s2": "SELECT p.id, (SELECT count(*) FROM t0 b LEFT JOIN t1 c ON c.id = b.id WHERE b.k = p.id AND b.f) "
                "AS x FROM p JOIN t1 d ON d.k = p.id WHERE p.brand = 0",
            },
            steps=steps,
        )
    )


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_compared_with_a_value_that_moves(replay: Replay, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Only rows between the old and the new value are read: also when they change, too, and when the value is NULL."""
    asked: list[tuple[int, Restriction] | None] = []

    def noted(branch: Branch, term: Term, delta: object) -> tuple[int, Restriction] | None:
        asked.append(between(branch, term, delta))
        return asked[-1]

    monkeypatch.setattr(restrict, "between", noted)
    chance = random.Random(seed)
    rows = ", ".join(f"({i}, {_value(chance, 9)}, {_value(chance, 9)}, {chance.random() < 0.5})" for i in range(30))
    steps = [step for n in range(3) for t in ("t0", "t1", "t0") for step in _history(chance, t, 1)]
    average = "(SELECT avg(b.v) FROM t1 b WHERE b.f)"
    replay(
        Scenario(
            tables=[
                "CREATE TABLE t0 (id int, k int, v numeric(9,2), f bool)",
                "CREATE TABLE t1 (id int, k int, v numeric(9,2), f bool)",
                f"INSERT INTO t0 VALUES {rows}",
                f"INSERT INTO t1 VALUES {rows}",
            ],
            streams={
                "s0": f"SELECT a.id, a.v FROM t0 a WHERE a.v > {average}",
                "s1": f"SELECT a.k, count(*) AS n FROM t0 a WHERE a.v <= {average} "
                "AND NOT EXISTS (SELECT 1 FROM t1 c WHERE c.k = a.k AND c.v > 5) GROUP BY a.k",
                "s2": "SELECT a.k, sum(a.v) AS s FROM t0 a GROUP BY a.k "
                "HAVING sum(a.v) > (SELECT sum(b.v) * 0.2 FROM t0 b)",
                "s3": f"SELECT a.id, a.v - {average} AS x FROM t0 a WHERE a.v > {average}",
                "s4": f"SELECT a.id, b.id AS x FROM t0 a LEFT JOIN t1 b ON b.k = a.k WHERE a.v < {average}",
            },
            steps=[*steps, ["UPDATE t1 SET v = v + 0.01"], ["DELETE FROM t1"], steps[1], ["UPDATE t1 SET v = 100"]],
        )
    )
    assert any(each is not None for each in asked)
