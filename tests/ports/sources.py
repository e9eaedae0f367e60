"""Each kind of source over the same rows: what the contract of sources is tried on.

The relation is always `t (id, name, due)`. What happens to it is told in SQL that PostgreSQL and DuckDB both read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from runnel.catalog.owner import PINNED_PATH, as_owner, settle
from runnel.catalog.sessions import connect
from runnel.catalog.statistics import Statistics
from runnel.model.frontier import Version
from runnel.model.names import Name, quote
from runnel.model.types import LONG, TEXT, Column, PgType
from runnel.plan.stage import Computed, Constant, Leaf, Relation, RowsHead, Stage, StageRef
from runnel.plan.stage import Source as LeafSource
from runnel.ports.rows import Clock, Restriction, Rows, leaf_schema
from runnel.ports.source import Reading, Source, Used
from runnel.refresh.steps import Steps
from runnel.sources.arrow import read_arrow
from runnel.sources.constant import ConstantRows
from runnel.sources.ducklake.attach import attach
from runnel.sources.ducklake.source import LakeTableSource
from runnel.sources.postgres.tables import CapturedTable
from runnel.sources.registry import Kinds, all_kinds, capture_sources, open_sources
from runnel.sources.slices import sliced_frame
from runnel.sources.stage.source import HiddenStage
from runnel.sources.streamtable.source import UpstreamTable
from runnel.spark.job import run
from runnel.sql.describe import relation_columns, relation_facts
from tests.lake.duck import Duck

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

Row = tuple[Any, ...]
Bag = Counter[Row]
Connection = psycopg.Connection[Any]

FIRST = """(VALUES
    (1, 'one', TIMESTAMPTZ '2026-01-01 00:00:00+00'), (2, 'two', TIMESTAMPTZ '2026-01-02 00:00:00+00'),
    (2, 'two', TIMESTAMPTZ '2026-01-02 00:00:00+00'), (3, NULL, TIMESTAMPTZ '2026-01-03 00:00:00+00'),
    (4, 'vier', NULL), (NULL, 'nobody', TIMESTAMPTZ '2026-01-04 00:00:00+00')) AS first_rows (id, name, due)"""
FILL = f"INSERT INTO t SELECT id, name, due FROM {FIRST}"
TABLE = "CREATE TABLE public.t (id int, name text, due timestamptz)"
CLOCK = Clock("2026-01-01 12:00:00+00", "2026-01-01 12:00:00+00")
"""The clock stands still, unless a test moves it."""
READER = 4711
"""The number of the stream table that reads."""

INT, STRING = PgType(23, -1, "integer"), PgType(25, -1, "text")
ID, NAME = Computed('l0."id"', LONG, INT), Computed('l0."name"', TEXT, STRING)


@dataclass(frozen=True)
class Case:
    """An implementation of `Source`, and which parts of the contract are empty for it."""

    name: str
    source: type
    """Its class."""
    make: Callable[[Case, Place], Rig]
    kind: str | None = None
    """The kind that recognizes its relations; None for what belongs to a stream table itself."""
    moves: bool = True
    """Whether changes wait at it: those of a hidden stage are made by the refresh itself, constants have none."""
    has_changes: bool = True
    """Whether it has changes at all."""
    counts: bool = True
    """Whether it knows how many changes wait."""
    framed: bool = True
    """Whether Spark's tasks can read all of it."""
    indexed: bool = True
    """Whether it has indexes; `t` has one by id."""
    lent: bool = True
    """Whether it is a relation that a query names, and so PostgreSQL must be able to read it."""


@dataclass(frozen=True)
class Place:
    """Where a source is tried."""

    conn: Connection
    """The engine's."""
    db: Connection
    """Whoever changes rows."""
    dsn: str
    sessions: Sessions
    folder: Path
    stack: ExitStack
    role: str
    """The owner of the stream table that reads."""
    kinds: Kinds = field(default_factory=all_kinds)

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction, as whoever changes rows."""
        with self.db.transaction():
            for statement in statements:
                self.db.execute(statement.encode())

    def value(self, query: str) -> Any:
        """The single value of a query."""
        row = self.db.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


@dataclass(frozen=True)
class Rig:
    """A source's relation: changed from outside, and opened by one refresh after another."""

    case: Case
    place: Place
    relation: LeafSource
    open: Callable[[Reading], Source]
    commit: Callable[..., None]
    """Change rows in one transaction, by statements over `t`."""
    held: Callable[[], Bag]
    """What it holds, (id, name), as others see it."""

    @contextmanager
    def refresh(self, clock: Clock = CLOCK, **how: Any) -> Iterator[Opened]:
        """A refresh transaction with the source opened in it."""
        place, conn = self.place, self.place.conn
        for kind in place.kinds:
            kind.follow(conn)
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            with conn.transaction():
                reading = _reading(place, clock, how)
                assert reading.owner is not None
                with reading.owner.at_work():
                    opened = Opened(self.open(reading), reading, self.relation)
                    opened.source.head()
                    yield opened
        except BaseException:
            for kind in place.kinds:
                kind.forget()
            raise
        finally:
            conn.isolation_level = None
            settle(conn)
            for kind in place.kinds:
                kind.finish()

    def since(self) -> Version:
        """The version that a refresh reads now."""
        with self.refresh() as opened:
            return opened.source.head()


@dataclass(frozen=True)
class Opened:
    """A source during one refresh, with its rows as bags."""

    source: Source
    reading: Reading
    relation: LeafSource

    def leaf(self, *computed: Computed, **how: Any) -> Leaf:
        """A leaf over the relation; it names all columns unless told otherwise."""
        return Leaf(0, self.relation, computed=computed, **{"uses": ("id", "name", "due"), **how})

    def rows(self, leaf: Leaf, restriction: Restriction | None = None) -> Bag:
        """The leaf now, as PostgreSQL selects it."""
        table = self._selected(self.source.read(leaf, restriction), leaf_schema(leaf, weight=False))
        return _bag(table, len(leaf.computed))

    def keys(self, leaf: Leaf, keys: Sequence[int], restriction: Restriction | None = None) -> Bag:
        """The keys with their multiplicities; each comes once."""
        found = self._selected(self.source.read(leaf, restriction, keys), leaf_schema(leaf, keys, weight=True))
        return _weighted(found)

    def framed(self, leaf: Leaf, restriction: Restriction | None = None) -> Bag | None:
        """The leaf as tasks read it, if they can."""
        table = self._by_tasks(self.source.read(leaf, restriction), leaf_schema(leaf, weight=False))
        return None if table is None else _bag(table, len(leaf.computed))

    def framed_delta(self, leaf: Leaf, since: Version | None) -> Bag | None:
        """What changed as tasks read it, if they can; slices are netted by whoever adds them up."""
        found = self.source.delta(leaf, since)
        if found is None:
            return Counter()
        table = self._by_tasks(found, leaf_schema(leaf, weight=True))
        if table is None:
            return None
        total: Bag = Counter()
        for *row, weight in zip(*(table.column(i).to_pylist() for i in range(len(leaf.computed) + 1)), strict=True):
            total[tuple(row)] += weight
        return Counter({row: weight for row, weight in total.items() if weight})

    def _by_tasks(self, rows: Rows, schema: pa.Schema) -> pa.Table | None:
        if rows.slices is not None:
            return run(sliced_frame(self.reading, rows.slices(2), schema))
        return None if rows.frame is None else run(rows.frame())

    def delta(self, leaf: Leaf, since: Version | None) -> Bag:
        """What changed, with weights; each row comes once."""
        found = self.source.delta(leaf, since)
        return Counter() if found is None else _weighted(self._selected(found, leaf_schema(leaf, weight=True)))

    def lent(self) -> Bag:
        """What PostgreSQL finds under the name that a query over the relation would have, with the owner's rights."""
        assert isinstance(self.relation, Relation)
        name = self.relation.name if self.relation.origin.selectable else self.relation.lent_name
        return Counter(self.reading.as_owner.rows(f"SELECT id, name FROM {name.sql()}", ["int8", "text"]))

    def _selected(self, rows: Rows, schema: pa.Schema) -> pa.Table:
        assert rows.select is not None
        return read_arrow(self.reading.as_owner, rows.select(), schema)


def _bag(table: pa.Table, columns: int) -> Bag:
    rows = zip(*(table.column(i).to_pylist() for i in range(columns)), strict=True)
    return Counter(rows if columns else [()] * table.num_rows)


def _weighted(table: pa.Table) -> Bag:
    bag: Bag = Counter()
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        assert row[:-1] not in bag, "a row comes once, with its weight"
        assert row[-1] != 0
        bag[row[:-1]] = row[-1]
    return bag


def _reading(place: Place, clock: Clock, how: Mapping[str, Any]) -> Reading:
    conn = place.conn
    row = conn.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    versions = dict(conn.execute("SELECT pgt_id, version FROM pgtrickle.pgt_stream_tables").fetchall())
    return Reading(
        conn=conn, dsn=place.dsn, spark=place.sessions, table_id=READER, name=Name("public", "reader"),
        role=place.role, settings={}, snapshot=str(row[0]), clock=clock, versions=versions, statistics=Statistics(),
        step=Steps(), owner=as_owner(conn, place.role, {"search_path": PINNED_PATH}), **how,
    )  # fmt: skip


# -- the implementations -------------------------------------------------------------------------------------


def _captured(case: Case, place: Place) -> Rig:
    place.execute(TABLE, "CREATE INDEX ON public.t (id)", FILL)
    return _rig_over(case, place, Name("public", "t"), place.execute, lambda: _held(place))


def _stream_table(case: Case, place: Place) -> Rig:
    """A stream table without an engine: the rig writes what its refreshes would."""
    place.execute(TABLE, "CREATE INDEX ON public.t (id)", FILL, "CREATE TABLE public.was AS SELECT * FROM t")
    pgt_id = place.value(
        "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, owner, original_query, "
        "defining_query, schedule, refresh_mode, effective_mode, status, version) SELECT oid, 'public', 't', relowner, "
        "'', '', '1s', 'AUTO', 'DIFFERENTIAL', 'ACTIVE', 3 FROM pg_class WHERE oid = 't'::regclass RETURNING pgt_id"
    )

    def commit(*statements: str) -> None:
        place.execute(
            *statements,
            f"UPDATE pgtrickle.pgt_stream_tables SET version = version + 1 WHERE pgt_id = {pgt_id}",
            f"INSERT INTO pgtrickle_changes.log_{pgt_id} (pgt_version, o0, o1, o2, pgt_w) SELECT s.version, d.* "
            f"FROM pgtrickle.pgt_stream_tables s, ({DIFFERENCE}) AS d WHERE s.pgt_id = {pgt_id}",
            *KEEP,
        )

    return _rig_over(case, place, Name("public", "t"), commit, lambda: _held(place))


def _hidden_stage(case: Case, place: Place) -> Rig:
    """A stage whose delta the refresh has just computed: the difference to what the last refresh left."""
    role = quote(place.role)
    place.execute(
        TABLE,
        "CREATE INDEX ON public.t (id)",
        FILL,
        "CREATE TABLE public.was AS SELECT * FROM t",
        "CREATE TABLE public.delta (o0 int, o1 text, o2 timestamptz, w int8)",
        f"GRANT SELECT ON t, delta TO {role}",
    )
    columns = relation_columns(place.db, place.value("SELECT 't'::regclass::oid::int8"))
    stage = Stage(0, (), RowsHead(tuple(c.type for c in columns)), columns, indexed=("id",))

    def open_(reading: Reading) -> Source:
        conn = reading.conn
        conn.execute("SET LOCAL search_path = public")
        conn.execute("DELETE FROM delta")
        changed = conn.execute(f"INSERT INTO delta {DIFFERENCE}".encode()).rowcount
        for statement in KEEP:
            conn.execute(statement)
        reading.as_owner.pin()
        return HiddenStage(reading, stage, "public.t", "public.delta", changed=changed > 0)

    return Rig(case, place, StageRef(0, columns), open_, place.execute, lambda: _held(place))


def _constant(case: Case, place: Place) -> Rig:
    columns = (Column("id", INT), Column("name", STRING), Column("due", PgType(1184, -1, "timestamp with time zone")))
    constant = Constant(f"SELECT * FROM {FIRST}", columns)

    def commit(*statements: str) -> None:
        raise AssertionError(f"nobody can change constant rows: {statements}")

    return Rig(
        case, place, constant, lambda reading: ConstantRows(reading, constant), commit,
        lambda: Counter(place.db.execute(f"SELECT id, name FROM {FIRST}".encode()).fetchall()),
    )  # fmt: skip


def _lake_table(case: Case, place: Place, inlined: int) -> Rig:
    data_path = f"{place.folder}/lake/"
    Path(data_path).mkdir()
    duck = place.stack.enter_context(Duck(place.dsn, data_path))
    duck.run(f"CALL lake.set_option('data_inlining_row_limit', {inlined})")
    duck.run("CREATE TABLE t (id INTEGER, name VARCHAR, due TIMESTAMPTZ)").run(FILL)
    attach(place.conn, {"name": "lake", "catalog_schema": "ducklake"}, place.value("SELECT current_user"))

    def commit(*statements: str) -> None:
        duck.run("BEGIN")
        for statement in statements:
            duck.run(statement)
        duck.run("COMMIT")

    return _rig_over(case, place, Name("lake", "t"), commit, lambda: duck.bag("SELECT id, name FROM t"))


def _rig_over(case: Case, place: Place, name: Name, commit: Callable[..., None], held: Callable[[], Bag]) -> Rig:
    """A relation as the engine treats it: recognized, captured, and opened by its kind."""
    place.execute(f"GRANT USAGE ON SCHEMA {quote(name.schema)} TO {quote(place.role)}")
    place.execute(f"GRANT SELECT ON {name.sql()} TO {quote(place.role)}")
    relation = relation_facts(place.conn, name, place.kinds).relation
    used = [Used(relation, ("id", "name", "due"))]
    with place.conn.transaction():
        capture_sources(place.kinds, place.conn, used, place.role)
    return Rig(
        case, place, relation, lambda reading: open_sources(place.kinds, reading, used)[relation.oid], commit, held
    )


def _held(place: Place) -> Bag:
    return Counter(place.db.execute("SELECT id, name FROM t").fetchall())


DIFFERENCE = """
SELECT id, name, due, sum(w) FROM (SELECT *, 1 AS w FROM public.t UNION ALL SELECT *, -1 FROM public.was) AS d
GROUP BY id, name, due HAVING sum(w) <> 0"""
KEEP = ("DELETE FROM public.was", "INSERT INTO public.was SELECT * FROM public.t")

CASES = (
    Case("captured table", CapturedTable, _captured, "TABLE"),
    Case("stream table", UpstreamTable, _stream_table, "STREAM_TABLE", counts=False),
    Case(
        "lake table in files", LakeTableSource, partial(_lake_table, inlined=0), "LAKE_TABLE", indexed=False
    ),
    Case(
        "inlined lake table", LakeTableSource, partial(_lake_table, inlined=100), "LAKE_TABLE", indexed=False
    ),
    Case("hidden stage", HiddenStage, _hidden_stage, moves=False, counts=False, framed=False, lent=False),
    Case(
        "constant rows", ConstantRows, _constant,
        moves=False, has_changes=False, counts=False, indexed=False, lent=False,
    ),
)  # fmt: skip


@contextmanager
def rig(case: Case, dsn: str, folder: Path, sessions: Sessions, role: str | None = None) -> Iterator[Rig]:
    """A source over a new database, for a stream table of that role; of the engine's own, if none is named."""
    with ExitStack() as stack:
        conn = stack.enter_context(connect(dsn, "contract"))
        # As in an engine: settings are put back after each transaction, which prepared statements would not survive.
        conn.prepare_threshold = None
        db = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        place = Place(conn, db, dsn, sessions, folder, stack, role or db.info.user)
        for kind in place.kinds:
            stack.callback(kind.close)
        yield case.make(case, place)
