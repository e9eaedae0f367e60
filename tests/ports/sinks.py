"""Each kind of sink with a stream table, and its reader: what the contract of sinks is tried on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg

from runnel.catalog.sessions import connect
from runnel.lake.attached import save_lake
from runnel.lake.format.model import Lake
from runnel.model.names import Name
from runnel.ports.sink import Publication, Published, Refreshed, Result, Sink, Wish
from runnel.sinks.ducklake.sink import DuckLakeSink
from runnel.sinks.files.sink import FilesSink
from runnel.sinks.known import Known
from runnel.sinks.leftovers import Leftovers
from runnel.sinks.registry import KINDS, Sinks
from runnel.sinks.shared import Shared
from runnel.sinks.transaction import taking_part
from runnel.sql.describe import relation_columns
from tests.lake.duck import Duck

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

Row = tuple[int, str | None]
Bag = Counter[Row]
Args = Mapping[str, Any]

NAME = Name("public", "t")
ID = 1
DELETE_ONE = """
DELETE FROM public.t WHERE ctid = (
    SELECT ctid FROM public.t WHERE (id, name) IS NOT DISTINCT FROM (%s, %s::text) LIMIT 1)
"""


@dataclass(frozen=True)
class Case:
    """One way of publishing."""

    name: str
    kind: Callable[[Shared], Sink]
    args: Args
    off: Args
    """What ends it."""
    refused: Sequence[Args]
    in_lake: bool = True
    """Whether a lake decides what readers see; otherwise they find files, and keep them."""


def _lake(mode: str) -> Case:
    refused: list[Args] = [
        {"sink": "iceberg"},
        {"sink": "ducklake", "ducklake_lake": "nowhere"},
        {"sink": "ducklake", "ducklake_compression": "rar"},
        {"sink": "none", "ducklake_sink_mode": mode},
    ]
    return Case(
        f"ducklake {mode}", DuckLakeSink, {"sink": "ducklake", "ducklake_sink_mode": mode}, {"sink": "none"}, refused
    )


def _together(shared: Shared) -> Sinks:
    return Sinks(tuple(kind(shared) for kind in KINDS), shared)


LAKES = tuple(map(_lake, ("merge", "append", "replace")))
FILES = Case(
    "files",
    FilesSink,
    {"delta_export_path": "{folder}/deltas"},
    {"delta_export_path": ""},
    [
        {"delta_export_path": "{folder}/deltas", "delta_export_compression": "rar"},
        {"delta_export_path": "ftp://somewhere/deltas"},
    ],
    in_lake=False,
)
ALL = Case(
    "all",
    _together,
    {**LAKES[0].args, **FILES.args},
    {**LAKES[0].off, **FILES.off},
    [*LAKES[0].refused, *FILES.refused],
)
"""All kinds as one, as the engine has them."""
CASES = (*LAKES, FILES, ALL)


@dataclass
class Rig:
    """A stream table as an engine would treat it: changed, its delta at hand, published."""

    case: Case
    sink: Sink
    conn: psycopg.Connection[Any]
    folder: Path
    duck: Duck
    role: str
    rows: Bag = field(default_factory=Counter)
    """What the committed stream table holds."""
    refreshes: int = 0

    def __post_init__(self) -> None:
        self.conn.execute("CREATE TABLE public.t (id int, name text)")
        self.conn.execute("CREATE TEMP TABLE delta (o0 int, o1 text, w int8)")

    def filled(self, args: Args) -> dict[str, Any]:
        """Options that name the test's folder."""
        return {k: v.format(folder=self.folder) if isinstance(v, str) else v for k, v in args.items()}

    def wish(self, args: Args | None = None, *, is_there: bool = True) -> Wish:
        """What a request would get: the case's own options if none are given."""
        given = self.filled(self.case.args if args is None else args)
        return self.sink.wish(self.conn, given, ID if is_there else None, NAME, self.role)

    @contextmanager
    def transaction(self) -> Iterator[Publication]:
        """A transaction as the engine makes them."""
        self.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            with taking_part(self.sink, self.conn) as publication, self.conn.transaction():
                yield publication
                publication.before_commit()
        finally:
            self.conn.isolation_level = None

    def define(self, args: Args | None = None) -> None:
        """Publish from now on, or otherwise, or no more."""
        wish = self.wish(args)
        with self.transaction() as publication:
            publication.put(ID, wish)

    def publish(
        self,
        publication: Publication,
        inserted: Sequence[Row] = (),
        deleted: Sequence[Row] = (),
        *,
        action: str = "DIFFERENTIAL",
        version: int = 1,
    ) -> Published | None:
        """Change the stream table and publish that, inside a transaction."""
        result = self.result(version)
        publication.prepare(result)
        self.conn.execute("DELETE FROM delta")
        with self.conn.cursor() as cursor:
            cursor.executemany("INSERT INTO delta VALUES (%s, %s, 1)", inserted)
            cursor.executemany("INSERT INTO delta VALUES (%s, %s, -1)", deleted)
            cursor.executemany("INSERT INTO public.t VALUES (%s, %s)", inserted)
            cursor.executemany(DELETE_ONE, deleted)
        return publication.publish(result, self.refreshed(len(inserted), len(deleted), action))

    def refresh(self, inserted: Sequence[Row] = (), deleted: Sequence[Row] = (), **how: Any) -> Published | None:
        """A whole refresh, with whatever has to follow its commit."""
        with self.transaction() as publication:
            done = self.publish(publication, inserted, deleted, **how)
        self.rows = self.rows + Counter(inserted) - Counter(deleted)
        for later in publication.later():
            with self.transaction() as another:
                done = another.publish_later(later)
        return done

    def result(self, version: int = 1) -> Result:
        """The stream table as its sink sees it."""
        found = self.conn.execute("SELECT 'public.t'::regclass::oid::int8").fetchone()
        assert found is not None
        columns = relation_columns(self.conn, found[0])
        return Result(
            id=ID, name=NAME, relid=found[0], owner=self.role, columns=columns, delta="pg_temp.delta",
            query="SELECT id, name FROM source", definition_version=version,
        )  # fmt: skip

    def refreshed(self, inserted: int, deleted: int, action: str) -> Refreshed:
        """A refresh of its own number."""
        self.refreshes += 1
        return Refreshed(
            id=self.refreshes, action=action, changed=bool(inserted or deleted), inserted=inserted, deleted=deleted,
            frontier={}, at="2026-01-02T03:04:05.000006+00:00",
        )  # fmt: skip

    def seen(self) -> Bag | None:
        """What DuckDB, reading what was published, takes for the stream table; None when there is nothing to read."""
        if self.case.in_lake:
            try:
                return self.duck.bag("SELECT id, name FROM t")
            except duckdb.CatalogException:
                return None
        return self.exported()

    def exported(self) -> Bag:
        """What the exported changes add up to."""
        bag: Bag = Counter()
        for path in sorted(self.folder.glob("deltas/*.parquet")):
            for id_, name, action in self.duck.rows(f"SELECT id, name, __action FROM '{path}'"):
                bag[(id_, name)] += 1 if action == "insert" else -1
        return +bag

    def files(self) -> set[Path]:
        """Whatever the sink has written, in full or in part."""
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def sinks(self) -> int:
        """Rows in the catalog of sinks."""
        return self._count("SELECT count(*) FROM pgtrickle.pgt_sinks")

    def uploads(self) -> int:
        """Files that are taken to be on their way."""
        return self._count("SELECT count(*) FROM pgtrickle.pgt_lake_uploads")

    def state(self) -> int:
        """Tables that a sink keeps beside the stream table."""
        return self._count("SELECT count(*) FROM pg_class WHERE relnamespace = 'pgtrickle_state'::regnamespace")

    def _count(self, query: str) -> int:
        row = self.conn.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def rig(case: Case, dsn: str, folder: Path, sessions: Sessions) -> Iterator[Rig]:
    """A sink over a new database with a lake in it, and a DuckDB client of that."""
    data_path = f"{folder}/lake/"
    Path(data_path).mkdir()
    with ExitStack() as stack:
        duck = stack.enter_context(Duck(dsn, data_path))
        conn = stack.enter_context(connect(dsn, "contract"))
        # As in an engine: settings are put back after each transaction, which prepared statements would not survive.
        conn.prepare_threshold = None
        save_lake(conn, Lake("lake", "ducklake", data_path), is_default=True)
        row = conn.execute("SELECT current_user").fetchone()
        assert row is not None
        shared = Shared(dsn, sessions, Leftovers(dsn), Known())
        stack.callback(shared.close)
        sink = case.kind(shared)
        stack.callback(sink.close)
        yield Rig(case, sink, conn, folder, duck, str(row[0]))
