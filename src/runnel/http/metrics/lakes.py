"""Lakes by their catalogs, as far as these are in this database: snapshots, files, bytes, what waits for tidying."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from psycopg import sql

from runnel.catalog.lost import first_line

Connection = psycopg.Connection[Any]

log = logging.getLogger(__name__)

SMALL = 1024 * 1024
"""A data file below this is small."""

LAKES = "SELECT name, catalog_schema FROM pgtrickle.pgt_lakes WHERE NOT remote ORDER BY name LIMIT 100"
FIGURES = """
SELECT (SELECT count(*) FROM {0}.ducklake_snapshot), (SELECT max(snapshot_id) FROM {0}.ducklake_snapshot),
       (SELECT extract(epoch FROM max(snapshot_time))::float8 FROM {0}.ducklake_snapshot),
       (SELECT count(*) FROM {0}.ducklake_table WHERE end_snapshot IS NULL),
       f.files, f.bytes, f.rows, f.small, d.files, d.bytes, d.rows
FROM (SELECT count(*) AS files, coalesce(sum(file_size_bytes), 0) AS bytes, coalesce(sum(record_count), 0) AS rows,
             count(*) FILTER (WHERE file_size_bytes < {1}) AS small
      FROM {0}.ducklake_data_file WHERE end_snapshot IS NULL) f,
     (SELECT count(*) AS files, coalesce(sum(file_size_bytes), 0) AS bytes, coalesce(sum(delete_count), 0) AS rows
      FROM {0}.ducklake_delete_file WHERE end_snapshot IS NULL) d
"""
PUBLISHED = """
SELECT lake, max(extract(epoch FROM written_at))::float8, count(*) FROM pgtrickle.pgt_ducklake_provenance GROUP BY lake
"""
_NAMES = (
    ("snapshots", "Snapshots that are kept."),
    ("snapshot_id", "The newest snapshot."),
    ("snapshot_timestamp_seconds", "When the newest snapshot was made."),
    ("tables", "Tables."),
    ("files", "Data files of the newest snapshot."),
    ("bytes", "Bytes of these files."),
    ("file_rows", "Rows in these files, deleted ones included."),
    ("small_files", "Of these files, those below 1 MiB."),
    ("delete_files", "Files of deletes in the newest snapshot."),
    ("delete_bytes", "Bytes of these."),
    ("deleted_rows", "Rows that they delete: what waits for compaction."),
)


def counts(conn: Connection, schema: str) -> dict[str, float | None]:
    """The figures of one lake, by name; none of a catalog that somebody is making, or has dropped."""
    query = sql.SQL(FIGURES).format(sql.Identifier(schema), sql.Literal(SMALL))
    try:
        row = conn.execute(query).fetchone()
    except psycopg.Error as error:
        log.debug("no figures of the lake in %s: %s", schema, first_line(error))
        return {}
    assert row is not None
    return {name: None if v is None else float(v) for (name, _), v in zip(_NAMES, row, strict=True)}


def families(conn: Connection) -> Iterator[Metric]:
    """A line per lake and figure."""
    gauges = [GaugeMetricFamily(f"runnel_lake_{name}", words, labels=["lake"]) for name, words in _NAMES]
    for lake, schema in conn.execute(LAKES).fetchall():
        found = counts(conn, schema)
        for (name, _), gauge in zip(_NAMES, gauges, strict=True):
            value = found.get(name)
            if value is not None:
                gauge.add_metric([lake], value)
    yield from gauges
    last = GaugeMetricFamily(
        "runnel_lake_published_timestamp_seconds", "When a refresh was published last.", labels=["lake"]
    )
    publications = CounterMetricFamily(
        "runnel_lake_publications", "Snapshots that refreshes have made.", labels=["lake"]
    )
    for lake, written, count in conn.execute(PUBLISHED).fetchall():
        last.add_metric([lake], written)
        publications.add_metric([lake], count)
    yield from (last, publications)
