"""Prepared plans: planned once, run over other rows each time, and never a row of another run or of another table."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

import runnel
from runnel.errors import SparkFailure
from runnel.spark import prepared
from runnel.spark.job import run
from runnel.spark.prepared import Owner, PreparedPlan, PreparedPlans
from runnel.spark.session import Sessions
from tests.conftest import running_engine
from tests.e2e.helpers import Stream, eventually, last_refresh, value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIDES = ("k bigint", "t text", "n numeric(20,4)", "d double precision", "f boolean")
LEFT = pa.schema(
    [("a", pa.int64()), ("at", pa.string()), ("an", pa.decimal128(38, 4)), ("ad", pa.float64()), ("af", pa.bool_())]
    + [("w0", pa.int64())]
)
RIGHT = pa.schema(
    [(name.replace("a", "b", 1), LEFT.field(name).type) for name in LEFT.names[:5]] + [("w1", pa.int64())]
)
ONE = Owner(1, "first")


@pytest.fixture
def plans(sessions: Sessions) -> Iterator[PreparedPlans]:
    """None yet, with the Java half of the run's Spark."""
    yield PreparedPlans(sessions.small, most=3, factory=sessions.prepared.factory)


def rows(schema: pa.Schema, number: int, chance: random.Random, keys: int = 40) -> pa.Table:
    """Rows with keys that meet, and NULLs everywhere but in the weight."""

    def column(field: pa.Field) -> Sequence[object]:
        make: Callable[[], object] = {
            "int64": lambda: chance.randrange(keys),
            "string": lambda: f"t{chance.randrange(keys)}",
            "decimal128(38, 4)": lambda: Decimal(chance.randrange(10**6)) / 10000,
            "double": lambda: chance.choice([0.5, -0.0, 1e300, float("nan")]),
            "bool": lambda: chance.random() < 0.5,
        }[str(field.type)]
        if field.name.startswith("w"):
            return [chance.choice([-1, 1, 2]) for _ in range(number)]
        return [None if chance.random() < 0.1 else make() for _ in range(number)]

    return pa.table({f.name: pa.array(column(f), f.type) for f in schema}, schema=schema)


def joins(constant: int, kind: str = "inner") -> Callable[[Sequence[DataFrame]], DataFrame]:
    """Inner join, what has no match on either side, and a sum over all of it."""

    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        left, right = inputs
        met = left.join(right, left["a"] == right["b"], kind).where(f"coalesce(a, b, 0) != {constant}")
        both = met.selectExpr("0S AS b0", "at", "bt", "an", "ad", "bf", "coalesce(w0, 1L) * coalesce(w1, 1L) AS w")
        alone = left.join(right.select("b"), left["a"] == right["b"], "left_anti")
        padded = alone.selectExpr("1S AS b0", "at", "CAST(NULL AS STRING) AS bt", "an", "ad", "af AS bf", "-w0 AS w")
        grouped = both.unionByName(padded).groupBy("b0", "at", "bt", "ad", "bf")
        return grouped.agg({"w": "sum", "an": "max"}).where("`sum(w)` != 0")

    return build


def plain(table: pa.Table) -> list[str]:
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


@pytest.mark.slow
def test_every_run_sees_its_own_rows(sessions: Sessions, plans: PreparedPlans) -> None:
    chance = random.Random(5)
    builds = {(c, kind): joins(c, kind) for c, kind in ((3, "inner"), (4, "inner"), (3, "left"), (3, "full"))}
    plans.most = len(builds)
    sizes = [(1, 1), (0, 0), (200, 200), (0, 50), (50, 0), (50_000, 300), (1, 200), (200, 200), (0, 0), (7, 1)]
    for left, right in sizes:
        # A few of 50,000 rows meet: otherwise the result would be larger than any that is computed in the small.
        tables = [rows(LEFT, left, chance, max(40, left)), rows(RIGHT, right, chance, max(40, left))]
        for shape, build in builds.items():
            plan = plans.find(ONE, shape, [LEFT, RIGHT], build)
            assert plan is not None
            ordinary = run(build([sessions.small_frame(table) for table in tables]))
            assert plain(plan.run(tables)) == plain(ordinary), (shape, left, right)
    assert (plans.kept.plans, plans.kept.made, plans.kept.used) == (4, 4, 4 * (len(sizes) - 1))


def counting(factor: int) -> Callable[[Sequence[DataFrame]], DataFrame]:
    """A plan that is made quickly."""
    return lambda inputs: inputs[0].groupBy("a").agg({"w0": "sum"}).selectExpr("a", f"`sum(w0)` * {factor} AS n")


def found(plans: PreparedPlans, shape: int, owner: Owner = ONE) -> PreparedPlan:
    plan = plans.find(owner, shape, [LEFT], counting(shape))
    assert plan is not None
    return plan


def test_threads_may_share_a_plan(plans: PreparedPlans) -> None:
    plan = found(plans, 3)
    tables = [rows(LEFT, 40 * i, random.Random(i), 7) for i in range(24)]
    alone = [plain(plan.run([table])) for table in tables]
    with ThreadPoolExecutor(4) as threads:
        assert [plain(t) for t in threads.map(lambda table: plan.run([table]), tables)] == alone
    assert len(set(map(str, alone))) == len(alone)


def test_the_least_used_plans_make_room(plans: PreparedPlans) -> None:
    for shape in (1, 2, 3):
        found(plans, shape)
    assert (plans.kept.plans, plans.kept.made, plans.kept.used) == (3, 3, 0)
    found(plans, 1)
    found(plans, 4)
    assert (plans.kept.plans, plans.kept.made, plans.kept.used) == (3, 4, 1)
    found(plans, 1)
    assert plans.kept.used == 2, "it was used, so 2 made room"
    found(plans, 2)
    assert (plans.kept.plans, plans.kept.made) == (3, 5)


def test_plans_make_room_when_they_hold_much_memory(plans: PreparedPlans) -> None:
    for shape in (1, 2):
        found(plans, shape)
    one = plans.kept.bytes // 2
    assert 10_000 < one < 5_000_000, "about what a small plan holds"
    plans.most_bytes = 2 * one + one // 2
    found(plans, 3)
    assert (plans.kept.plans, plans.kept.made) == (2, 3), "the one that was not used for the longest time made room"
    plans.most_bytes = 1
    found(plans, 4)
    assert plans.kept.plans == 1, "the last one stays, whatever it holds"


def test_plans_go_with_their_stream_table_and_its_definition(plans: PreparedPlans) -> None:
    found(plans, 1)
    found(plans, 1, Owner(2, "other"))
    assert plans.kept.made == 2, "no plan is shared by two stream tables"
    found(plans, 1, Owner(1, "second"))
    assert (plans.kept.plans, plans.kept.made) == (2, 3), "the plan of the former definition is gone"
    plans.retain({2})
    assert plans.kept.plans == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda i: i[0].join(i[0].selectExpr("a AS x"), i[0]["a"] > 3, "left_anti"),
        lambda i: i[0].repartition(3),
        lambda i: (
            i[0]
            .groupBy("a")
            .count()
            .join(i[0].sparkSession.range(3).selectExpr("id AS a", "id"), "a")
            .groupBy("id")
            .count()
        ),
        lambda i: i[0].sparkSession.range(3).selectExpr("id AS a"),
        lambda i: i[0].where("a > (SELECT max(x) FROM VALUES (1) AS v(x))"),
        lambda i: i[0].limit(3),
    ],
    ids=["broadcast", "shuffle", "shuffle of other rows", "other rows", "subquery", "unknown operator"],
)
def test_a_plan_that_could_remember_rows_is_refused(
    plans: PreparedPlans, build: Callable[[Sequence[DataFrame]], DataFrame]
) -> None:
    assert plans.find(ONE, "refused", [LEFT], build) is None
    assert plans.find(ONE, "refused", [LEFT], build) is None
    assert (plans.kept.plans, plans.kept.refused, plans.kept.made, plans.kept.used) == (0, 1, 0, 0)


def test_rows_of_another_kind_are_refused(plans: PreparedPlans) -> None:
    with pytest.raises(SparkFailure, match="belongs"):
        found(plans, 1).run([rows(RIGHT, 3, random.Random(1))])


def test_a_failure_leaves_nothing_behind(plans: PreparedPlans, sessions: Sessions) -> None:
    plan = found(plans, 2**62)
    few, many = rows(LEFT, 1, random.Random(2), 1), rows(LEFT, 500, random.Random(2), 1)
    allocated = sessions.base._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()  # type: ignore[union-attr]
    before, expected = allocated.getAllocatedMemory(), plain(plan.run([few]))
    for _ in range(3):
        with pytest.raises(SparkFailure, match="overflow"):
            plan.run([many])
        assert plain(plan.run([few])) == expected
    assert allocated.getAllocatedMemory() == before


TABLES = "; ".join(f"CREATE TABLE {name} (id bigint PRIMARY KEY, {', '.join(SIDES)})" for name in ("a", "b", "c"))
QUERIES = {
    "inner_2": "SELECT a.t, b.n, sum(a.k * 2) AS s FROM a JOIN b ON a.k = b.k WHERE a.k > 2 GROUP BY 1, 2",
    "inner_3": "SELECT a.t, b.n, sum(a.k * 2) AS s FROM a JOIN b ON a.k = b.k WHERE a.k > 3 GROUP BY 1, 2",
    "outer": "SELECT a.t, b.d, c.f, count(*) FROM a LEFT JOIN b ON a.k = b.k FULL JOIN c ON c.k = a.k GROUP BY 1, 2, 3",
    "missing": "SELECT a.id, a.n FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k AND b.f = a.f)",
    "branches": "SELECT a.t FROM a JOIN b USING (k) UNION ALL SELECT c.t FROM c JOIN b USING (k)",
    "itself": "SELECT x.id, y.id AS other FROM a x JOIN a y ON x.k = y.k AND x.n < y.n",
    "unequal": "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.k < b.k AND a.t > b.t",
}


SUBSETS = ("a", "b", "c", "ab", "ac", "bc", "abc", "b")


@pytest.mark.parametrize("name", ["inner_2", "outer", "missing", "branches"])
def test_a_plan_for_more_changes_serves_for_fewer(
    own_database: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made: list[int] = []
    prepare = PreparedPlans._prepared

    def counted(self: PreparedPlans, schemas: Sequence[pa.Schema], build: prepared.Build) -> PreparedPlan | None:
        made.append(len(schemas))
        return prepare(self, schemas, build)

    def change(tables: str, turn: int) -> None:
        # Some of what comes finds a partner, some does not, and so with what goes.
        for table in tables:
            db.execute(f"DELETE FROM {table} WHERE id %% 3 = %s".encode(), (turn % 3,))
            db.execute(
                f"INSERT INTO {table} SELECT %s + i, i, 't' || %s, i / 4.0, i / 2.0, i %% 3 = 0 "
                "FROM generate_series(1, 9) i".encode(),
                (turn * 100, turn),
            )
        client.refresh("st")
        assert client.verify("st").ok, (tables, turn)

    monkeypatch.setattr(PreparedPlans, "_prepared", counted)
    with (
        running_engine(own_database, spark),
        contextlib.closing(runnel.connect(own_database)) as client,
        psycopg.connect(own_database, autocommit=True) as db,
    ):
        db.execute(TABLES.encode())
        client.create_stream_table("st", QUERIES[name], "@yearly", "DIFFERENTIAL")
        for turn in range(3):
            change("abc", turn)
        assert made, "nothing was planned"
        made.clear()
        for turn, tables in enumerate(SUBSETS):
            change(tables, 3 + turn)
        assert not made, "a plan that was there would have done"

        for turn in range(2 * prepared.OFTEN):
            change("a", 20 + turn)
        assert made, "what is wanted often deserves a plan of its own"
        made.clear()
        change("a", 50)
        assert not made


@pytest.mark.slow
def test_stream_tables_follow_whatever_takes_turns(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Callable[..., None]
) -> None:
    db.execute(TABLES.encode())
    for name, query in QUERIES.items():
        stream(name, query)
    chance = random.Random(11)
    for turn, size in enumerate((1, 30, 0, 300, 2, 30, 1, 400, 5)):
        for table in chance.sample("abc", chance.randint(1, 3)):
            db.execute(f"DELETE FROM {table} WHERE random() < 0.3".encode())
            db.execute(
                f"""INSERT INTO {table} SELECT %s + i, nullif((random() * 60)::int, 7), nullif('t' || i %% 5, 't3'),
                    nullif((i %% 9) / 4.0, 1), nullif(i %% 4, 2) / 2.0, nullif(i %% 3, 1) = 0
                FROM generate_series(1, %s) AS g(i)""".encode(),
                (turn * 1000, size),
            )
        names = list(QUERIES)
        chance.shuffle(names)
        check(*names)
    done = {name: last_refresh(client, name).work for name in QUERIES}
    by_jobs = {name for name, work in done.items() if work is not None and work.jobs}
    assert by_jobs <= {"unequal"}, "what an inequality compares is broadcast"

    def told() -> str:
        health = "SELECT detail FROM pgtrickle.health_check() WHERE check_name = 'scheduler_running'"
        return str(value(db, health))

    eventually(lambda: "prepared plans: " in told() and ", 0 times used again" not in told(), 45, what=told())


def test_without_the_java_half_everything_is_planned_each_time(
    own_database: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other_version(session: SparkSession) -> Any:
        raise Py4JError("no such class\n  in this Spark")

    monkeypatch.setattr(prepared, "_factory", other_version)
    with (
        caplog.at_level(logging.WARNING),
        running_engine(own_database, spark),
        contextlib.closing(runnel.connect(own_database)) as client,
        psycopg.connect(own_database, autocommit=True) as db,
    ):
        db.execute(TABLES.encode())
        client.create_stream_table("itself", QUERIES["itself"], "@yearly", "DIFFERENTIAL")
        for i in range(3):
            db.execute("INSERT INTO a (id, k, n) VALUES (%s, 1, %s)", (i, i))
            client.refresh("itself")
            work = last_refresh(client, "itself").work
            assert work is not None and (work.plans, work.jobs, work.tasks) == (0, 1, 1)
            assert client.verify("itself").ok
    told = [r.getMessage() for r in caplog.records if "not prepared" in r.getMessage()]
    assert told == ["plans are not prepared, small refreshes take longer: no such class"]
