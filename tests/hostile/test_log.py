"""log_statement = all: what we send holds no secret that could be kept out of the server's log."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

import runnel
from runnel.catalog.migrate import migrate
from runnel.server.embedded import EmbeddedServer
from tests.conftest import running_engine
from tests.e2e.helpers import value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "hunter2-of-the-loopback"  # noqa: S105  (it is a test's)
SECRET = "s3cr3t-of-the-store"  # noqa: S105


def test_no_secret_reaches_the_log(
    server: EmbeddedServer, dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path
) -> None:
    name = db.info.dbname
    for setting in ("log_statement = 'all'", "log_min_duration_statement = 0", "log_parameter_max_length = -1"):
        db.execute(f"ALTER DATABASE {name} SET {setting}".encode())
    before = server.home.log.stat().st_size
    with running_engine(dsn, spark, home=tmp_path), contextlib.closing(runnel.connect(dsn)) as client:
        options = {"secret_access_key": SECRET}
        client.attach_lake("other", "other_lake", data_path=f"{tmp_path}/other/", options=options, create=True)
        client.set_lake_option("other", "secret_access_key", SECRET)
    migrate(dsn, loopback=f"host=127.0.0.1 password={PASSWORD}")
    assert PASSWORD in value(db, "SELECT value FROM pgtrickle.pgt_settings WHERE key = 'loopback'")
    said = server.home.log.read_bytes()[before:].decode(errors="replace")
    assert "pgtrickle.set_ducklake_option" in said or "set_lake_option" in said, "nothing was logged"
    assert "pgt_settings" in said
    assert SECRET not in said
    assert PASSWORD not in said
