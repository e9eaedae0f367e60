"""Tables of very many files: rows in the catalog, without files behind them."""

from __future__ import annotations

from typing import Any

import psycopg

COLUMNS = 10


def register(conn: psycopg.Connection[Any], table_id: int, count: int, *, per_snapshot: int | None = None) -> None:
    """Add files of a thousand rows to a table of ten BIGINT columns: in one snapshot, or in as many as it takes."""
    with conn.transaction():
        row = conn.execute(
            "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM ducklake.ducklake_snapshot "
            "ORDER BY 1 DESC LIMIT 1"
        ).fetchone()
        assert row is not None
        head, version, next_catalog, next_file = row
        each = per_snapshot or count
        snapshots = -(-count // each)
        conn.execute(
            "INSERT INTO ducklake.ducklake_snapshot SELECT %s + i, now() + i * interval '1 ms', %s, %s, "
            "%s + least(i * %s, %s) FROM generate_series(1, %s) i",
            (head, version, next_catalog, next_file, each, count, snapshots),
        )
        conn.execute(
            "INSERT INTO ducklake.ducklake_snapshot_changes (snapshot_id, changes_made) "
            "SELECT %s + i, 'inserted_into_table:' || %s FROM generate_series(1, %s) i",
            (head, table_id, snapshots),
        )
        conn.execute(
            "INSERT INTO ducklake.ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, "
            "file_format, record_count, file_size_bytes, footer_size, row_id_start) "
            "SELECT %(f)s + i, %(t)s, %(h)s + 1 + i / %(e)s, 'ducklake-' || (%(f)s + i) || '.parquet', true, "
            "'parquet', 1000, 50000, 500, (%(f)s + i) * 1000 FROM generate_series(0, %(n)s - 1) i",
            {"f": next_file, "t": table_id, "h": head, "e": each, "n": count},
        )
        conn.execute(
            "INSERT INTO ducklake.ducklake_file_column_stats SELECT %(f)s + i, %(t)s, c, 5000, 990, 10, "
            "((%(f)s + i) * 1000)::text, ((%(f)s + i) * 1000 + 999)::text, NULL, NULL "
            "FROM generate_series(0, %(n)s - 1) i, generate_series(1, %(c)s) c",
            {"f": next_file, "t": table_id, "n": count, "c": COLUMNS},
        )


def definition() -> str:
    return ", ".join(f"c{number} BIGINT" for number in range(COLUMNS))
