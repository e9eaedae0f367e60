"""Lakes by name: the default lake, attach and detach, what is shown of them, and to whom."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.catalog import secrets
from runnel.errors import RunnelError, UserError
from runnel.lake import attached as lakes
from runnel.lake.format.model import Lake
from tests.lake.duck import Duck, connect
from tests.lake.s3 import S3, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "a key that the tests made up"


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secrets.KEY_VARIABLE, KEY)


@contextmanager
def stack(dsn: str, spark: SparkSession, **places: object) -> Iterator[runnel.Client]:
    """An engine that has a place for its lake, and a client."""
    engine = runnel.Engine(dsn, spark=spark, **places)  # type: ignore[arg-type]
    engine.start()
    thread = threading.Thread(target=engine.run, name="engine", daemon=True)
    thread.start()
    try:
        with runnel.connect(dsn) as client:
            yield client
    finally:
        engine.stop()
        thread.join(60)
        engine.close()


def paste(lines: list[str], s3: S3 | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB user's session; the extensions come from packages instead of the network."""
    conn = connect(s3)
    for line in lines:
        if not line.startswith(("INSTALL", "CREATE SECRET")):
            conn.execute(line)
    return conn


def test_the_default_lake_opens_in_duckdb_with_the_printed_lines(dsn: str, spark: SparkSession, tmp_path: Path) -> None:
    with stack(dsn, spark, home=tmp_path) as client:
        (lake,) = client.lakes()
        assert (lake.name, lake.is_default, lake.data_path) == ("lake", True, f"{tmp_path}/lake/")
        info = client.lake_info()
        assert (info.tables, info.snapshot, info.encrypted) == (0, 0, False)
        with paste(info.statements) as duck:
            duck.execute("CREATE TABLE events AS SELECT range AS id, 'x' AS kind FROM range(100)")
            duck.execute("CREATE VIEW few AS SELECT * FROM events WHERE id < 3")
            duck.execute("DELETE FROM events WHERE id = 7")
            duck.execute("INSERT INTO events VALUES (500, 'inlined')")
        shown = {each.name: each for each in client.lake_tables()}
        assert (shown["events"].kind, shown["events"].rows, shown["events"].files) == ("table", 100, 1)
        assert shown["events"].columns == ["id int64", "kind varchar"]
        assert (shown["few"].kind, shown["few"].rows) == ("view", None)
        assert client.lake_info().tables == 1
    # At the next start it is the same lake, also when nobody says where.
    with stack(dsn, spark) as client:
        assert [each.data_path for each in client.lakes()] == [f"{tmp_path}/lake/"]
    with pytest.raises(UserError, match="are in"):
        runnel.Engine(dsn, spark=spark, data_path="/elsewhere").start()


def test_a_lake_of_duckdb_is_attached_and_left_as_it_was(
    client: runnel.Client, duck: Callable[..., Duck], data_path: str
) -> None:
    duck(data_path, schema="lakes").run("CREATE TABLE t AS SELECT 1 AS a")
    with pytest.raises(RunnelError, match="no DuckLake catalog"):
        client.attach_lake("mine")
    client.attach_lake("mine", "lakes")
    (lake,) = client.lakes()
    assert (lake.data_path, lake.is_default, lake.maintain_every) == (data_path, True, None)
    assert [(each.name, each.rows) for each in client.lake_tables("mine")] == [("t", 1)]
    with pytest.raises(RunnelError, match="already a lake mine"):
        client.attach_lake("mine", "lakes")
    client.detach_lake("mine")
    assert client.lakes() == []
    with pytest.raises(RunnelError, match="no lake is attached"):
        client.lake_info()
    with pytest.raises(RunnelError, match='no lake "mine"'):
        client.detach_lake("mine")
    assert duck(schema="lakes").rows("SELECT * FROM t") == [(1,)]


def test_an_encrypted_lake_can_be_made_and_read_by_duckdb(client: runnel.Client, data_path: str) -> None:
    client.attach_lake("safe", "vault", data_path=data_path, create=True, encrypted=True)
    info = client.lake_info("safe")
    assert info.encrypted
    with paste(info.statements) as duck:
        duck.execute("CREATE TABLE t AS SELECT range AS a FROM range(50)")
    with paste(info.statements) as duck:
        assert duck.execute("SELECT sum(a) FROM t").fetchone() == (1225,)
    (file,) = Path(data_path).rglob("*.parquet")
    assert file.read_bytes()[:4] == b"PARE"


def test_names_and_places_are_checked(client: runnel.Client) -> None:
    for name in ("public", "pgtrickle", "pg_lake", ""):
        with pytest.raises(RunnelError, match="cannot be the name"):
            client.attach_lake(name)
    with pytest.raises(RunnelError, match="not a place") as refused:
        client.attach_lake("x", "x", data_path="relative/folder", create=True)
    assert "absolute" in (refused.value.hint or "")
    with pytest.raises(RunnelError, match="needs a place"):
        client.attach_lake("x", "x", create=True)


def test_a_lake_on_another_server_keeps_its_password_to_itself(
    client: runnel.Client, db: psycopg.Connection, dsn: str, data_path: str, tmp_path: Path
) -> None:
    far = make_conninfo(dsn, password=SECRET_KEY)
    client.attach_lake("far", "far_catalog", dsn=far, data_path=data_path, create=True)
    info = client.lake_info("far")
    assert info.remote and info.connection["host"] == "127.0.0.1"
    assert SECRET_KEY not in repr(info) + "".join(info.statements)
    with paste(info.statements) as duck:
        duck.execute("CREATE TABLE t (a int)")
    assert [each.name for each in client.lake_tables("far")] == ["t"]
    with pytest.raises(RunnelError, match="cannot be reached") as refused:
        client.attach_lake("gone", dsn=f"host=127.0.0.1 port=1 password={SECRET_KEY}")
    assert SECRET_KEY not in str(refused.value) + str(refused.value.detail)
    with pytest.raises(RunnelError, match="cannot be read") as refused:
        client.attach_lake("wrong", dsn=f"host=h {SECRET_KEY}")
    assert SECRET_KEY not in str(refused.value) + str(refused.value.detail)
    assert _leaks(db, SECRET_KEY) == []


def test_credentials_are_used_and_never_seen(
    client: runnel.Client, db: psycopg.Connection, s3: S3, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.attach_lake("cloud", "cloud", data_path=bucket, options=s3.options, create=True)
    db.execute("SELECT pgtrickle.set_lake_option('cloud', 'secret_access_key', %s)", ("another-secret",))
    db.execute("SELECT pgtrickle.set_lake_option('cloud', 'maintain_every', '2 hours')")
    with pytest.raises(psycopg.Error, match="invalid interval"):
        db.execute("SELECT pgtrickle.set_lake_option('cloud', 'maintain_every', 'soon')")
    assert _leaks(db, "another-secret") == []
    assert "cannot list" in (client.lake_info("cloud").problem or "")
    db.execute("CREATE TABLE orders AS SELECT 1 AS id")
    with pytest.raises(RunnelError) as refused:
        client.create_stream_table("s", "SELECT id FROM orders", sink="ducklake")
    told = f"{refused.value} {refused.value.hint} {refused.value.detail} {caplog.text}"
    assert "another-secret" not in told and "cannot write" in told
    (lake,) = client.lakes()
    assert lake.maintain_every is not None and lake.maintain_every.total_seconds() == 7200
    client.set_lake_option("cloud", "secret_access_key", SECRET_KEY)
    info = client.lake_info("cloud")
    assert info.problem is None
    assert info.store["endpoint"] == s3.endpoint and "secret_access_key" not in info.store
    assert any("SECRET '<secret key>'" in line and "USE_SSL false" in line for line in info.statements)
    with paste(info.statements, s3) as duck:
        duck.execute("CREATE TABLE t AS SELECT range AS a FROM range(50)")
        assert duck.execute("SELECT count(*) FROM t").fetchone() == (50,)
        client.create_stream_table("s", "SELECT id FROM orders", sink="ducklake")
        assert duck.execute("FROM s").fetchall() == [(1,)]
    assert len(s3.files(bucket)) == 2


def test_only_the_engines_own_kind_may_attach(
    client: runnel.Client, db: psycopg.Connection, duck: Callable[..., Duck], data_path: str
) -> None:
    duck(data_path, schema="lakes").run("CREATE TABLE t (a int)")
    db.execute("CREATE ROLE lake_visitor")
    try:
        db.execute("SET ROLE lake_visitor")
        for call in (
            "attach_ducklake('mine', 'lakes')",
            "detach_ducklake('mine')",
            "set_lake_option('mine', 'region', 'eu')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(f"SELECT pgtrickle.{call}".encode())
    finally:
        db.execute("RESET ROLE")
        db.execute("DROP ROLE lake_visitor")
    assert client.lakes() == []


def _leaks(db: psycopg.Connection, secret: str) -> list[str]:
    """Tables of the catalog in whose rows a secret can be read."""
    found = db.execute(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'pgtrickle'::regnamespace"
    ).fetchall()
    return [
        table
        for (table,) in found
        if db.execute(f"SELECT FROM {table} t WHERE strpos(t::text, %s) > 0".encode(), (secret,)).fetchone()
    ]


def test_a_database_of_ones_own_gets_a_default_lake_where_one_says(
    dsn: str, spark: SparkSession, data_path: str, monkeypatch: pytest.MonkeyPatch, db: psycopg.Connection
) -> None:
    monkeypatch.delenv(secrets.KEY_VARIABLE)
    with stack(dsn, spark, data_path=data_path) as client:
        (lake,) = client.lakes()
        assert (lake.data_path, lake.is_default) == (data_path, True)
        # Nothing to seal with, and nothing that would store a secret in clear text.
        with pytest.raises(UserError, match="no key"):
            client.set_lake_option("lake", "secret_access_key", SECRET_KEY)
        with pytest.raises(psycopg.Error, match="no key"):
            db.execute("SELECT pgtrickle.set_lake_option('lake', 'secret_access_key', %s)", (SECRET_KEY,))
        with pytest.raises(RunnelError, match="another key"):
            client.set_lake_option("lake", "secret_access_key", "sealed:1:%%%")
        assert _leaks(db, SECRET_KEY) == []


def test_a_lake_in_use_stays_attached(client: runnel.Client, db: psycopg.Connection, data_path: str) -> None:
    client.attach_lake("sea", "salt", data_path=data_path, create=True)
    db.execute("CREATE TABLE orders (id int)")
    client.create_stream_table("s", "SELECT id FROM orders", sink="ducklake", ducklake_lake="sea")
    with pytest.raises(RunnelError, match=r"used by public\.s") as refused:
        client.detach_lake("sea")
    assert "--sink none" in (refused.value.hint or "")


def test_a_lake_that_is_read_stays_attached(
    client: runnel.Client, db: psycopg.Connection, duck: Callable[..., Duck], data_path: str
) -> None:
    duck(data_path, schema="lakes").run("CREATE TABLE t AS SELECT 1 AS a")
    client.attach_lake("mine", "lakes")
    client.create_stream_table("s", "SELECT a FROM mine.t")
    assert db.execute("SELECT a FROM s").fetchall() == [(1,)]
    with pytest.raises(RunnelError, match=r"used by public\.s"):
        client.detach_lake("mine")
    client.drop_stream_table("s")
    client.detach_lake("mine")
    assert db.execute("SELECT to_regnamespace('mine')").fetchone() == (None,)
    # And it can come back.
    client.attach_lake("mine", "lakes")
    client.create_stream_table("s", "SELECT a + 1 AS b FROM mine.t")
    assert db.execute("SELECT b FROM s").fetchall() == [(2,)]


@pytest.mark.slow
def test_maintenance_is_asked_for_and_comes_by_itself(
    client: runnel.Client, db: psycopg.Connection, dsn: str, data_path: str
) -> None:
    client.attach_lake("sea", "salt", data_path=data_path, create=True)
    with paste(client.lake_info().statements) as duck:
        duck.execute("CREATE TABLE t (a int)")
        for number in range(6):
            duck.execute(f"INSERT INTO t SELECT {number} FROM range(20)")
        files = len(list(Path(data_path).rglob("*.parquet")))
        assert files == 6
        done = client.maintain_lake("sea")
        assert (done["merged_files"], done["new_files"], done["skipped"]) == (6, 1, {})
        assert duck.execute("SELECT count(*), sum(a) FROM t").fetchone() == (120, 300)
    with pytest.raises(RunnelError, match='no lake "nope"'):
        client.maintain_lake("nope")
    first = client.lakes()[0].maintained_at
    assert first is not None
    client.set_lake_option("sea", "maintain_every", "1 second")
    deadline = time.monotonic() + 30
    while client.lakes()[0].maintained_at == first:
        assert time.monotonic() < deadline
        client.lake_info()  # an idle engine sleeps
        time.sleep(0.2)
    # A file that nobody knows goes after a day, unless it may belong to another lake.
    stray = Path(data_path) / "main" / "t" / "ducklake-0197a000-0000-7000-8000-000000000000.parquet"
    stray.write_bytes(b"PAR1")
    os.utime(stray, (0, 0))
    lakes.save_lake(db, Lake("near", "near", f"{data_path}main/"))
    assert client.maintain_lake("sea")["removed_orphans"] == 0 and stray.exists()
    lakes.delete_lake(db, "near")
    assert client.maintain_lake("sea")["removed_orphans"] == 1 and not stray.exists()
    # A server that is away is an answer, not a hang.
    client.attach_lake("far", "far", dsn=dsn, data_path=data_path, create=True)
    db.execute("DELETE FROM pgtrickle.pgt_lakes WHERE name = 'far'")
    gone = Lake("far", "far", data_path, dsn="host=127.0.0.1 port=1")
    lakes.save_lake(db, gone)
    with pytest.raises(RunnelError, match="cannot be reached"):
        client.maintain_lake("far")


def test_a_role_that_may_not_make_a_catalog_is_told_who_can(
    client: runnel.Client, db: psycopg.Connection, dsn: str, data_path: str
) -> None:
    db.execute("CREATE ROLE lake_guest LOGIN")
    try:
        with pytest.raises(RunnelError, match="cannot be made: permission denied") as refused:
            client.attach_lake(
                "far", "far", dsn=make_conninfo(dsn, user="lake_guest"), data_path=data_path, create=True
            )
        assert 'CREATE SCHEMA "far" AUTHORIZATION "lake_guest"' in (refused.value.hint or "")
    finally:
        db.execute("DROP ROLE lake_guest")


def test_unknown_options_are_refused(client: runnel.Client, db: psycopg.Connection, data_path: str) -> None:
    client.attach_lake("sea", "salt", data_path=data_path, create=True)
    for option, meant in (
        ("secret_acess_key", "secret_access_key"),
        ("reigon", "region"),
        ("mantain_every", "maintain_every"),
    ):
        with pytest.raises(RunnelError, match=f'no option "{option}"') as refused:
            client.set_lake_option("sea", option, "x")
        assert f'Did you mean "{meant}"?' in (refused.value.hint or "")
    with pytest.raises(RunnelError, match='no option "color"') as refused:
        client.set_lake_option("sea", "color", "red")
    assert "access_key_id" in (refused.value.hint or "") and "Did you mean" not in (refused.value.hint or "")
    with pytest.raises(RunnelError, match='no option "buckte"'):
        client.attach_lake("other", "pepper", data_path=data_path, options={"buckte": "x"}, create=True)
    assert [lake.name for lake in client.lakes()] == ["sea"]
    for known in ("region", "aws_region", "timeout"):
        client.set_lake_option("sea", known, "7")
    # Whatever an earlier release has stored can be forgotten.
    db.execute('UPDATE pgtrickle.pgt_lakes SET options = options || \'{"color": "red"}\'')
    client.set_lake_option("sea", "color", None)
    assert db.execute("SELECT options ? 'color' FROM pgtrickle.pgt_lakes").fetchone() == (False,)
