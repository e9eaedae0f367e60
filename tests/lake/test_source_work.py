"""By whom refreshes over lakes were evaluated: files read by tasks, rows lent by the driver, rows tasks publish."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from runnel.model.work import WorkDone
from runnel.spark.session import SMALL_ROWS
from tests.lake.duck import Duck

FILL = "INSERT INTO events SELECT i, 'Kind ' || (i % 7), (i % 100) / 4.0 FROM range({}, {}) r(i)"
IN_SPARK = "SELECT kind, count(*) AS n, sum(amount) AS total FROM lake.events GROUP BY 1"
IN_POSTGRES = "SELECT lower(kind) AS kind, count(*) AS n FROM lake.events GROUP BY 1"


@pytest.fixture
def lake(duck: Callable[..., Duck], data_path: str, client: runnel.Client) -> Duck:
    """A lake with a table in two files."""
    writer = duck(data_path)
    writer.run("CREATE TABLE events (id INTEGER, kind VARCHAR, amount DECIMAL(10,2))")
    writer.run(FILL.format(0, 600)).run(FILL.format(600, 1000))
    client.attach_lake("lake", catalog_schema="ducklake")
    return writer


def work(client: runnel.Client, name: str) -> WorkDone:
    found = client.history(name, 1)[0].work
    assert found is not None
    return found


def test_rows_that_the_driver_lends_are_counted(
    lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", SMALL_ROWS)
    client.create_stream_table("kinds", IN_SPARK, schedule="@yearly")
    lent, read, collected = 1000, 1000, 7
    assert work(client, "kinds") == WorkDone(plans=1, driver_rows=lent + read + collected)
    lake.run(FILL.format(1000, 1300)).run("DELETE FROM events WHERE id < 5")
    client.refresh("kinds")
    assert work(client, "kinds") == WorkDone(driver_rows=305), "lent, and then PostgreSQL needs no help"


@pytest.mark.slow
def test_files_that_tasks_read_are_counted(
    lake: Duck, client: runnel.Client, check: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 500)
    client.create_stream_table("scanned", IN_SPARK)
    scanned = work(client, "scanned")
    assert (scanned.read_rows, scanned.written_rows, scanned.driver_rows) == (1000, 7, 7)
    (size,) = lake.rows("SELECT sum(file_size_bytes) FROM __ducklake_metadata_lake.ducklake.ducklake_data_file")[0]
    assert scanned.read_bytes == size
    assert scanned.jobs >= 2 and scanned.tasks >= 2

    client.create_stream_table("staged", IN_POSTGRES)
    staged = work(client, "staged")
    assert (staged.read_rows, staged.written_rows, staged.driver_rows) == (1000, 7, 7)
    assert staged.read_bytes > 0
    check("scanned", "staged")
    assert any("all of it, about 1,000 rows, by tasks" in line for line in client.explain("staged").splitlines())


@pytest.mark.slow
def test_a_publication_by_tasks_is_counted(
    lake: Duck, db: psycopg.Connection, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 2000)
    db.execute("CREATE TABLE big AS SELECT i AS id FROM generate_series(1, 3000) i")
    db.execute("ANALYZE big")
    client.create_stream_table("b", "SELECT id FROM big", schedule="1h", sink="ducklake", ducklake_lake="lake")
    done = work(client, "b")
    assert (done.read_rows, done.written_rows, done.driver_rows) == (3000, 3000 + 3000, 3000)
    assert client.history("b", 1)[0].spark_jobs == done.jobs
