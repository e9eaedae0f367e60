"""Where each published row is in the lake: two hashes of the row, and its row id there.

A row to delete is found here, so no file is read to delete from it. Equal rows have equal hashes and a row id each; it
does not matter which of them goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from runnel.catalog.owner import AsOwner
from runnel.model.names import quote
from runnel.sinks.columns import PublishedColumn, identities
from runnel.sinks.numbers import Ints, from_lines

Connection = psycopg.Connection[Any]
Columns = Sequence[PublishedColumn]

# A plain scan from the first page on is what gives rows the order in which tasks read their slices.
_PHYSICAL_ORDER = {
    "synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0", "enable_indexscan": "off",
    "enable_indexonlyscan": "off", "enable_bitmapscan": "off",
}  # fmt: skip

# PostgreSQL's binary COPY: how many fields, then each with its length before it.
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
_COPY_ROW = np.dtype(
    [("fields", ">i2"), ("l1", ">i4"), ("h", ">i8"), ("l2", ">i4"), ("h2", ">i8"), ("l3", ">i4"), ("row_id", ">i8")]
)
_BATCH = 1 << 16

# Row ids that were taken, many in a line: each line costs as much as its numbers do.
_PORTIONS = (
    "SELECT row_id / 4096 AS part, string_agg(row_id::text, ' ' ORDER BY row_id) AS numbers FROM taken GROUP BY 1"
)


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


def add_rows(conn: Connection, pgt_id: int, hashes: Ints, start: int) -> None:
    """Remember new rows: the two hashes of each, in the order of their row ids, and the first of these."""
    statement = f"COPY {map_table(pgt_id)} (h, h2, row_id) FROM STDIN (FORMAT binary)".encode()
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_COPY_HEADER)
        for at in range(0, len(hashes), _BATCH):
            part = hashes[at : at + _BATCH]
            rows = np.zeros(len(part), dtype=_COPY_ROW)
            rows["fields"], rows["l1"], rows["l2"], rows["l3"] = 3, 8, 8, 8
            rows["h"], rows["h2"] = part[:, 0], part[:, 1]
            rows["row_id"] = np.arange(start + at, start + at + len(part))
            copy.write(rows.tobytes())
        copy.write(_COPY_TRAILER)


def take_deleted(owner: AsOwner, pgt_id: int, columns: Columns, delta: str) -> tuple[Ints, int]:
    """Remove the rows that a delta takes away; (their row ids, ascending, and how many there should have been)."""
    names = [f"d.o{i}" for i in range(len(columns))]
    h, h2 = identities(columns, names)
    lines = owner.csv(
        f"""WITH gone AS MATERIALIZED (
                SELECT {h} AS h, {h2} AS h2, sum(-d.w)::int8 AS n FROM {delta} AS d WHERE d.w < 0 GROUP BY 1, 2),
            chosen AS (
                SELECT m.ctid AS place, g.n, row_number() OVER (PARTITION BY g.h, g.h2) AS rank
                FROM gone g JOIN {map_table(pgt_id)} m ON m.h = g.h AND m.h2 = g.h2),
            taken AS (
                DELETE FROM {map_table(pgt_id)} m USING chosen c WHERE m.ctid = c.place AND c.rank <= c.n
                RETURNING m.row_id)
            SELECT numbers FROM (
                SELECT -1 AS part, coalesce(sum(n), 0)::text AS numbers FROM gone
                UNION ALL {_PORTIONS}) AS t
            ORDER BY part""",
        ["text"],
        writes=True,
    )
    numbers = from_lines(lines).all()
    return numbers[1:], int(numbers[0])


def take_difference(owner: AsOwner, gone_sql: str) -> Ints:
    """Run the first statement of `difference_sql`: the row ids that it removes, ascending."""
    ordered = f"WITH taken AS ({gone_sql}) SELECT numbers FROM ({_PORTIONS}) AS t ORDER BY part"
    return from_lines(owner.csv(ordered, ["text"], writes=True)).all()


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
