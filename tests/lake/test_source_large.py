"""Lake tables too large to be copied: Spark reads them, and joins open only the files that can matter."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.lake.duck import Duck

FILES, ROWS = 4, 2_000
FILL = """
INSERT INTO big SELECT i, i % 50, 'Name ' || (i % 9), (i % 1000) / 4.0, DATE '2024-01-01' + (i % 30)::INTEGER,
    i % 3 = 0, TIMESTAMP '2024-01-01' + INTERVAL (i) SECOND FROM range({}, {}) r(i)
"""


@pytest.mark.slow
def test_spark_reads_what_is_large_and_files_are_pruned(
    duck: Callable[..., Duck],
    data_path: str,
    client: runnel.Client,
    db: psycopg.Connection,
    check: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Large is what is larger than this.
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1_000)
    lake = duck(data_path)
    lake.run(
        "CREATE TABLE big (id BIGINT, k INTEGER, name VARCHAR, price DECIMAL(8,2), day DATE, ok BOOLEAN, ts TIMESTAMP)"
    )
    for file in range(FILES):
        lake.run(FILL.format(file * ROWS, (file + 1) * ROWS))
    lake.run("DELETE FROM big WHERE id % 1000 = 17")
    client.attach_lake("lake", catalog_schema="ducklake")
    db.execute("CREATE TABLE few (id bigint PRIMARY KEY, note text)")
    db.execute("INSERT INTO few VALUES (10, 'ten'), (3010, 'many')")

    # All of it in Spark; in tasks that let PostgreSQL evaluate lower(); joined with a table of PostgreSQL.
    client.create_stream_table(
        "exact",
        "SELECT k, day, count(*) AS n, sum(price) AS s, max(ts) AS t FROM lake.big "
        "WHERE ok AND price > 5 GROUP BY 1, 2",
    )
    client.create_stream_table(
        "staged", "SELECT lower(name) AS name, count(*) AS n, avg(price) AS a FROM lake.big GROUP BY 1"
    )
    client.create_stream_table("joined", "SELECT f.note, b.price, b.day FROM lake.big b JOIN few f ON f.id = b.id")
    check("exact", "staged", "joined")

    db.execute("INSERT INTO few VALUES (6001, 'one file'), (6002, 'the same')")
    check("joined")
    io = db.execute(
        "SELECT lake_io, reason FROM pgtrickle.get_refresh_history('joined') WHERE changes_read = 2"
    ).fetchone()
    assert io is not None
    assert io[0]["skipped"] == FILES - 1, io
    assert io[0]["files"] <= 2, "one data file, and its deletions"

    lake.run(FILL.format(FILES * ROWS, FILES * ROWS + 300)).run("UPDATE big SET price = price + 1 WHERE id < 40")
    check("exact", "staged", "joined")
    assert sum(r.changes_read or 0 for r in client.history("exact")) == 300 + 2 * 39
    client.alter_stream_table("exact", refresh_mode="FULL")
    lake.run("DELETE FROM big WHERE k = 7")
    check("exact")
    modes = {r[0] for r in db.execute("SELECT action FROM pgtrickle.pgt_refresh_history").fetchall()}
    assert modes == {"INITIAL", "DIFFERENTIAL", "REINITIALIZE", "FULL"}
