"""What must hold in every lake, whatever happened to it: rules of the format, and no file without a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tests.lake.duck import Duck
from tests.lake.s3 import S3, files_below

KNOWN_FILES = """
SELECT CASE WHEN f.path_is_relative THEN
    CASE WHEN t.path_is_relative THEN CASE WHEN s.path_is_relative THEN s.path ELSE %(root)s || s.path END || t.path
         ELSE t.path END || f.path ELSE f.path END
FROM (SELECT table_id, path, path_is_relative FROM {0}.ducklake_data_file
      UNION ALL SELECT table_id, path, path_is_relative FROM {0}.ducklake_delete_file) f
JOIN (SELECT DISTINCT ON (table_id) * FROM {0}.ducklake_table ORDER BY table_id, begin_snapshot DESC) t USING (table_id)
JOIN (SELECT DISTINCT ON (schema_id) * FROM {0}.ducklake_schema ORDER BY schema_id, begin_snapshot DESC) s
    ON s.schema_id = t.schema_id
UNION SELECT path FROM {0}.ducklake_files_scheduled_for_deletion
"""

TWO_DELETE_FILES = """
SELECT data_file_id, count(*) FROM {0}.ducklake_delete_file WHERE end_snapshot IS NULL GROUP BY 1 HAVING count(*) > 1
"""
SNAPSHOTS_WITHOUT_CHANGES = """
SELECT snapshot_id FROM {0}.ducklake_snapshot LEFT JOIN {0}.ducklake_snapshot_changes USING (snapshot_id)
WHERE changes_made IS NULL
"""
# A file whose rows come from several snapshots (partial_max), as DuckDB's flush makes it, holds the ids of its rows
# itself: they need not follow one another from row_id_start on.
ROW_IDS_GIVEN_TWICE = """
SELECT a.data_file_id, b.data_file_id FROM {0}.ducklake_data_file a JOIN {0}.ducklake_data_file b
ON a.table_id = b.table_id AND a.data_file_id < b.data_file_id AND a.row_id_start < b.row_id_start + b.record_count
AND b.row_id_start < a.row_id_start + a.record_count AND a.end_snapshot IS NULL AND b.end_snapshot IS NULL
AND a.partial_max IS NULL AND b.partial_max IS NULL
"""
ROW_IDS_GIVEN_AGAIN = """
SELECT f.data_file_id FROM {0}.ducklake_data_file f JOIN {0}.ducklake_table_stats s USING (table_id)
WHERE f.row_id_start + f.record_count > s.next_row_id
"""
FILES_BORN_TWICE = "SELECT path, count(*) FROM {0}.ducklake_data_file GROUP BY 1 HAVING count(*) > 1"
STATS_MISSING = """
SELECT f.data_file_id FROM {0}.ducklake_data_file f WHERE f.end_snapshot IS NULL AND (
    NOT EXISTS (SELECT FROM {0}.ducklake_file_column_stats c WHERE c.data_file_id = f.data_file_id)
    OR NOT EXISTS (SELECT FROM {0}.ducklake_table_stats t WHERE t.table_id = f.table_id))
"""
IDS_AHEAD = """
SELECT 'file', max(data_file_id) FROM {0}.ducklake_data_file HAVING max(data_file_id) >=
    (SELECT next_file_id FROM {0}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)
UNION ALL SELECT 'table', max(table_id) FROM {0}.ducklake_table HAVING max(table_id) >=
    (SELECT next_catalog_id FROM {0}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)
"""
RULES = {
    "more than one delete file for a data file": TWO_DELETE_FILES,
    "snapshots that do not say what they changed": SNAPSHOTS_WITHOUT_CHANGES,
    "row ids given twice": ROW_IDS_GIVEN_TWICE,
    "row ids that will be given again": ROW_IDS_GIVEN_AGAIN,
    "files known twice": FILES_BORN_TWICE,
    "data files without statistics": STATS_MISSING,
    "ids that will be given again": IDS_AHEAD,
}


def assert_healthy(conn: psycopg.Connection[Any], schema: str = "ducklake") -> None:
    """The rules that a catalog's tables cannot enforce themselves."""
    for rule, query in RULES.items():
        broken = conn.execute(query.format(schema).encode()).fetchall()
        assert not broken, f"{rule}: {broken[:10]}"


def assert_counts_right(duck: Duck, table: str) -> None:
    """`count(*)`, min and max are answered from the catalog; they must say what a scan says."""
    numbers = [
        f'"{name}"'
        for (name, kind) in duck.rows(f"SELECT column_name, column_type FROM (DESCRIBE {table})")
        if kind.startswith(("INT", "BIGINT", "SMALLINT", "DECIMAL", "DATE"))
    ]
    rows = duck.rows(f"SELECT {', '.join(numbers) or '1'} FROM {table}")
    assert duck.value(f"SELECT count(*) FROM {table}") == len(rows), table
    for i, name in enumerate(numbers):
        values = [row[i] for row in rows if row[i] is not None]
        said = duck.rows(f"SELECT min({name}), max({name}), count({name}) FROM {table}")[0]
        assert said == (min(values, default=None), max(values, default=None), len(values)), f"{table}.{name}"


def known_files(conn: psycopg.Connection[Any], schema: str = "ducklake") -> set[str]:
    """Every file that the catalog knows, also as one to be deleted; relative to the data path."""
    (root,) = conn.execute(f"SELECT value FROM {schema}.ducklake_metadata WHERE key = 'data_path'".encode()).fetchone()
    found = conn.execute(KNOWN_FILES.format(schema).encode(), {"root": root}).fetchall()
    return {path.removeprefix(root) for (path,) in found}


def stored_files(data_path: str, s3: S3 | None = None) -> set[str]:
    """Every file that is there, relative to the data path."""
    return s3.files(data_path) if s3 is not None else files_below(Path(data_path))


def assert_no_orphans(
    conn: psycopg.Connection[Any], data_path: str, s3: S3 | None = None, *, schema: str = "ducklake"
) -> None:
    """The catalog knows every file, and every file that it knows is there."""
    known, stored = known_files(conn, schema), stored_files(data_path, s3)
    assert not stored - known, f"files that no row knows: {sorted(stored - known)[:5]}"
    assert not known - stored, f"rows without their files: {sorted(known - stored)[:5]}"
