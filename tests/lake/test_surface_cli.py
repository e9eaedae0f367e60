"""`runnel lake ...` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pytest
from typer.testing import CliRunner, Result

import runnel
from runnel.catalog import secrets
from runnel.cli.main import app
from runnel.lake.duck import extension
from runnel.lake.outside import attach_statements
from tests.lake.duck import Duck

Cli = Callable[..., Result]
SECRET = "very-secret-indeed"  # noqa: S105  (it is a test's)


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secrets.KEY_VARIABLE, "a key that the tests made up")


@pytest.fixture
def cli(dsn: str, client: runnel.Client) -> Cli:
    """Run a command on the test's database, with an engine behind it."""

    def run(*args: str, stdin: str | None = None, code: int = 0) -> Result:
        result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [*args, "--dsn", dsn], input=stdin)
        assert result.exit_code == code, f"{args}: {result.output}"
        return result

    return run


def test_the_life_of_a_lake(cli: Cli, data_path: str, duck: Callable[..., Duck], db: psycopg.Connection) -> None:
    assert "No lakes yet" in cli("lake", "list").output
    assert "runnel lake attach" in cli("lake", "info", code=1).output
    said = cli("lake", "attach", "sea", "--schema", "salt", "--data-path", data_path, "--create").output
    assert "runnel lake info sea" in said
    assert "sea (default)" in cli("lake", "list").output
    assert "empty" in cli("lake", "tables").output
    lines = cli("lake", "info").output.splitlines()
    assert lines[0].startswith("-- lake 'sea': snapshot 0") and "USE sea;" in lines
    assert lines[-1].startswith("-- from Spark:") and "schema='salt'" in lines[-1]
    # A stock DuckDB without a network: what is printed is all it needs.
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as pasted:
        for line in lines:
            pasted.execute(line)
        pasted.execute("CREATE TABLE fish AS SELECT range AS id FROM range(1000)")
    assert "nothing to tidy" in cli("lake", "maintain").output
    shown = cli("lake", "tables", "sea").output
    assert "fish" in shown and "1,000" in shown and "id int64" in shown
    (listed,) = json.loads(cli("lake", "tables", "--json").output)
    assert (listed["rows"], listed["kind"]) == (1000, "table")
    assert json.loads(cli("lake", "info", "--json").output)["snapshot"] == 1
    assert "INSTALL ducklake; LOAD ducklake;" in cli("lake", "info", "--install").output.splitlines()
    cli("lake", "set", "sea", "maintain_every", "2 hours")
    assert "every 2h 0m" in cli("lake", "list").output
    cli("lake", "set", "sea", "maintain_every", "off")
    assert "by others" in cli("lake", "list").output
    assert "not touched" in cli("lake", "detach", "sea").output
    assert duck(schema="salt").value("SELECT count(*) FROM fish") == 1000


def test_secrets_are_never_arguments(cli: Cli, data_path: str, db: psycopg.Connection) -> None:
    cli("lake", "attach", "sea", "--schema", "salt", "--data-path", data_path, "--create")
    assert "other users can see" in cli("lake", "set", "sea", "secret_access_key", SECRET, code=1).output
    cli("lake", "set", "sea", "secret_access_key", stdin=SECRET + "\n")
    stored = db.execute("SELECT options::text FROM pgtrickle.pgt_lakes").fetchone()
    assert stored is not None and "sealed:" in stored[0] and SECRET not in stored[0]
    cli("lake", "set", "sea", "secret_access_key", "--forget")
    assert db.execute("SELECT options FROM pgtrickle.pgt_lakes").fetchone() == ({},)
    said = cli("lake", "attach", "far", "--catalog", f"host=h password={SECRET}", code=1).output
    assert "RUNNEL_LAKE_PASSWORD" in said and SECRET not in said
    said = cli("lake", "attach", "far", "--catalog", f"host=h {SECRET}", code=1).output
    assert "cannot be read" in said and SECRET not in said
    assert "missing" in cli("lake", "set", "sea", "region", code=1).output


def test_a_time_beyond_the_lake_is_told_as_such(cli: Cli, data_path: str, db: psycopg.Connection) -> None:
    cli("lake", "attach", "sea", "--schema", "salt", "--data-path", data_path, "--create")
    db.execute("CREATE TABLE t (id int, at timestamp)")
    db.execute("INSERT INTO t VALUES (1, 'infinity'), (2, '294246-12-31')")
    cli("create", "times", "SELECT id, at FROM t", "--sink", "ducklake", "--schedule", "@yearly")
    db.execute("INSERT INTO t VALUES (3, '294276-01-01')")
    said = cli("refresh", "times", code=1).output
    assert "does not fit into the lake: column at is timestamp there; a moment after the year 294246" in said
    assert "digits" not in said
    db.execute("UPDATE t SET at = 'infinity' WHERE id = 3")
    cli("refresh", "times")
    assert "equals its query" in cli("verify", "times").output


def test_without_a_snapshot_there_is_no_lineage(cli: Cli) -> None:
    assert "--sink ducklake" in cli("lineage", "nothing", code=1).output
    assert json.loads(cli("lineage", "nothing", "--json").output) == []


def test_the_statements_for_object_stores() -> None:
    here = {"host": "db", "dbname": "shop", "password": SECRET}
    lines = attach_statements("My lake", "public", "s3://bucket/x/", here, store={"region": "eu-central-1"})
    assert f"LOAD '{extension('httpfs')}';" in lines
    assert not any("INSTALL" in line for line in lines)
    fetched = attach_statements("My lake", "public", "az://x/y/", here, install=True)
    assert fetched[:3] == [f"INSTALL {each}; LOAD {each};" for each in ("ducklake", "postgres", "azure")]
    assert "INSTALL azure; LOAD azure;" in attach_statements("My lake", "public", "az://x/y/", here), (
        "no package has it"
    )
    assert (
        "CREATE SECRET (TYPE s3, KEY_ID '<access key>', SECRET '<secret key>', REGION 'eu-central-1', "
        "SCOPE 's3://bucket');" in lines
    )
    assert lines[-2:] == [
        "ATTACH 'ducklake:postgres:host=db dbname=shop' AS \"My lake\" (METADATA_SCHEMA 'public');",
        'USE "My lake";',
    ]
    (secret,) = [line for line in attach_statements("l", "s", "gs://b/", here) if "SECRET" in line]
    assert "TYPE gcs" in secret
    (secret,) = [line for line in attach_statements("l", "s", "az://c/", here) if "SECRET" in line]
    assert "TYPE azure" in secret
    moved = attach_statements("l", "s", "/new/place/", here, moved=True)
    assert "DATA_PATH '/new/place/', OVERRIDE_DATA_PATH true" in moved[-2]
    assert SECRET not in "".join(lines + moved)


def test_a_relative_folder_means_the_one_here(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli("lake", "attach", "near", "--schema", "near", "--data-path", "files", "--create")
    assert f"{tmp_path}/files/" in cli("lake", "list").output
    assert (tmp_path / "files").is_dir()


def test_publishing_from_the_command_line(
    cli: Cli, data_path: str, tmp_path: Path, db: psycopg.Connection, duck: Callable[..., Duck]
) -> None:
    cli("lake", "attach", "sea", "--schema", "salt", "--data-path", data_path, "--create")
    db.execute("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1), (2)")
    cli("create", "s", "SELECT id FROM orders", "--schedule", "@yearly")
    assert "published to" not in cli("status").output
    cli("alter", "s", "--sink", "ducklake", "--sink-mode", "append", "--delta-export-path", str(tmp_path / "deltas"))
    assert "sea (append)" in cli("status").output
    cli("refresh", "s")
    assert duck(schema="salt").rows("SELECT id FROM s ORDER BY id") == [(1,), (2,)]
    db.execute("INSERT INTO orders VALUES (3)")
    cli("refresh", "s")
    assert len(list((tmp_path / "deltas").glob("*.parquet"))) >= 1
    assert "refresh" in cli("lineage", "s").output
    cli("create", "again", "SELECT id FROM sea.s__log WHERE id > 2", "--schedule", "@yearly")
    assert "2 files, " in cli("history", "again").output and "read of lakes" in cli("history").output
    assert ", ducklake:sea.main.s__log " in cli("explain", "again").output
    cli("drop", "again")
    assert "used by public.s" in cli("lake", "detach", "sea", code=1).output
    cli("alter", "s", "--sink", "none")
    cli("lake", "detach", "sea")
