"""Where each published row is in the lake: two hashes of the row, and its row id there.

A row to delete is found here, so no file is read to delete from it. Equal rows have equal hashes and a row id each; it
does not matter which of them goes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv

from runnel.catalog.owner import AsOwner
from runnel.model.names import quote
from runnel.sinks.columns import PublishedColumn, identities

Connection = psycopg.Connection[Any]
Columns = Sequence[PublishedColumn]

# A plain scan from the first page on is what gives rows the order in which tasks read their slices.
_PHYSICAL_ORDER = {
    "synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0", "enable_indexscan": "off",
    "enable_indexonlyscan": "off", "enable_bitmapscan": "off",
}  # fmt: skip


def map_table(pgt_id: int) -> str:
    """The map of a stream table."""
    return f"pgtrickle_state.{quote(f'lake_{pgt_id}')}"


def create_map(owner: AsOwner, pgt_id: int) -> None:
    """An empty map in place of whatever was there. It is the engine's; rows are hashed with the owner's rights."""
    table, conn = map_table(pgt_id), owner.conn
    conn.execute(f"DROP TABLE IF EXISTS {table}".encode())
    conn.execute(f"CREATE TABLE {table} (h int8 NOT NULL, h2 int8 NOT NULL, row_id int8 NOT NULL)".encode())
    conn.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
    if owner.runner is not None:
        conn.execute(f"GRANT SELECT, INSERT, DELETE ON {table} TO {quote(owner.runner.role)}".encode())


def index_map(conn: Connection, pgt_id: int) -> None:
    """The index by which rows are found; cheaper after the rows are there."""
    conn.execute(f"CREATE INDEX ON {map_table(pgt_id)} (h)".encode())
    conn.execute(f"ANALYZE {map_table(pgt_id)} (h)".encode())


def drop_map(conn: Connection, pgt_id: int) -> None:
    """Forget where rows are."""
    conn.execute(f"DROP TABLE IF EXISTS {map_table(pgt_id)}".encode())


def add_rows(conn: Connection, pgt_id: int, hashes: Iterable[tuple[pa.Array, pa.Array]], starts: Sequence[int]) -> None:
    """Remember new rows: per file their hashes in file order, and the row id of its first row."""
    statement = f"COPY {map_table(pgt_id)} (h, h2, row_id) FROM STDIN (FORMAT csv)".encode()
    options = pacsv.WriteOptions(include_header=False)
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for (h, h2), start in zip(hashes, starts, strict=True):
            ids = pa.array(range(start, start + len(h)), pa.int64())
            buffer = io.BytesIO()
            pacsv.write_csv(pa.table({"h": h, "h2": h2, "row_id": ids}), buffer, options)
            copy.write(buffer.getvalue())


def take_deleted(owner: AsOwner, pgt_id: int, columns: Columns, delta: str) -> tuple[list[int], int]:
    """Remove the rows that a delta takes away; (their row ids, how many there should have been)."""
    names = [f"d.o{i}" for i in range(len(columns))]
    h, h2 = identities(columns, names)
    rows = owner.rows(
        f"""WITH gone AS MATERIALIZED (
                SELECT {h} AS h, {h2} AS h2, sum(-d.w)::int8 AS n FROM {delta} AS d WHERE d.w < 0 GROUP BY 1, 2),
            chosen AS (
                SELECT m.ctid AS place, g.n, row_number() OVER (PARTITION BY g.h, g.h2) AS rank
                FROM gone g JOIN {map_table(pgt_id)} m ON m.h = g.h AND m.h2 = g.h2),
            taken AS (
                DELETE FROM {map_table(pgt_id)} m USING chosen c WHERE m.ctid = c.place AND c.rank <= c.n
                RETURNING m.row_id)
            SELECT (SELECT coalesce(sum(n), 0)::int8 FROM gone), array_agg(row_id ORDER BY row_id)
            FROM taken""",
        ["int8", "int8[]"],
        writes=True,
    )
    ((expected, ids),) = rows
    return list(ids or ()), int(expected)


def difference_sql(pgt_id: int, columns: Columns, output: str) -> tuple[str, str]:
    """Statements that bring the map in step with a table: the row ids to delete, and the rows to insert (as o<i>).

    The first removes them from the map, too. It must run first.
    """
    names = [f"t.{quote(c.name)}" for c in columns]
    h, h2 = identities(columns, names)
    # Copies of a row are numbered on both sides; what has no partner is gone, or new.
    ours = (
        f"SELECT m.ctid AS place, m.h, m.h2, row_number() OVER (PARTITION BY m.h, m.h2) AS copy "
        f"FROM {map_table(pgt_id)} m"
    )
    numbered = f"SELECT t.ctid AS place, t.tableoid AS rel, {h} AS h, {h2} AS h2 FROM {output} t"
    theirs = f"SELECT n.*, row_number() OVER (PARTITION BY n.h, n.h2) AS copy FROM ({numbered}) n"
    gone = (
        f"DELETE FROM {map_table(pgt_id)} m USING (SELECT o.place FROM ({ours}) o LEFT JOIN ({theirs}) n "
        f"USING (h, h2, copy) WHERE n.place IS NULL) x WHERE m.ctid = x.place RETURNING m.row_id"
    )
    items = ", ".join(f"{name} AS o{i}" for i, name in enumerate(names))
    new = (
        f"SELECT {items} FROM {output} t JOIN (SELECT n.place, n.rel FROM ({theirs}) n LEFT JOIN ({ours}) o "
        f"USING (h, h2, copy) WHERE o.place IS NULL) x ON t.ctid = x.place AND t.tableoid = x.rel"
    )
    return gone, new


def fill_from(owner: AsOwner, pgt_id: int, columns: Columns, output: str, start: int) -> int:
    """Build the map of a table published whole in its physical order, first row id `start`; how many rows."""
    names = [f"t.{quote(c.name)}" for c in columns]
    h, h2 = identities(columns, names)
    create_map(owner, pgt_id)
    with owner.under({**owner.settings, **_PHYSICAL_ORDER}).at_work() as scanning:
        filled = scanning.run(
            f"INSERT INTO {map_table(pgt_id)} (h, h2, row_id) "
            f"SELECT {h} AS h, {h2} AS h2, {int(start)} - 1 + row_number() OVER () AS row_id FROM ONLY {output} t"
        )
    index_map(owner.conn, pgt_id)
    return filled
