"""The command line against a running engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

import runnel
from runnel.cli.main import app
from tests.e2e.helpers import rows, script
from tests.versions import VERSION

Cli = Callable[..., Result]

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10,2));
INSERT INTO orders SELECT i, 'c' || i % 4, i FROM generate_series(1, 20) i;
"""


@pytest.fixture
def cli(dsn: str) -> Cli:
    """Run a command on the test's database."""

    def run(*args: str, stdin: str | None = None, code: int = 0) -> Result:
        result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [*args, "--dsn", dsn], input=stdin)
        assert result.exit_code == code, f"{args}: {result.output}"
        return result

    return run


def test_the_life_of_a_stream_table(cli: Cli, db: psycopg.Connection, tmp_path: Path) -> None:
    script(db, ORDERS)
    query = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    assert "ready" in cli("create", "totals", query, "--schedule", "@yearly", "--mode", "differential").output
    file = tmp_path / "q.sql"
    file.write_text("SELECT count(*) AS n FROM orders")
    cli("create", "counted", "--file", str(file), "--schedule", "@yearly")
    cli("create", "piped", "-", "--schedule", "@yearly", stdin="SELECT id FROM orders WHERE amount > 5")
    cli("create", "piped", "SELECT id FROM orders WHERE amount > 6", "--replace", "--schedule", "@yearly")
    db.execute("INSERT INTO orders VALUES (99, 'c1', 1000)")
    assert "Refreshed totals" in cli("refresh", "totals").output
    cli("refresh")
    assert "Nothing was being done to totals" in cli("cancel", "totals").output
    assert rows(db, "SELECT n FROM counted") == [(21,)]
    cli("verify", "totals", "counted")
    cli("alter", "totals", "--query", query + " HAVING sum(amount) > 100", "--schedule", "2h")
    assert rows(db, "SELECT customer FROM totals") == [("c1",)]
    cli("alter", "totals", "--suspend")
    assert "suspended" in cli("refresh", "totals", code=1).output
    cli("alter", "totals", "--resume")
    cli("drop", "totals")
    assert "does not exist" in cli("refresh", "totals", code=1).output
    said = cli("create", "bad", "SELECT id,\n       nope\nFROM orders", code=1).output
    assert "At line 2, column 8:\nLINE 2:        nope\n               ^\n" in said


def test_looking_inside(cli: Cli, db: psycopg.Connection, schema: str) -> None:
    script(db, ORDERS)
    cli("create", "base", "SELECT customer, sum(amount) AS s FROM orders GROUP BY customer", "--schedule", "@yearly")
    cli("create", "tip", "SELECT max(s) AS m FROM base", "--schedule", "@yearly")
    db.execute("DELETE FROM orders WHERE id < 4")
    text = cli("status").output
    for word in ("base", "tip", "ACTIVE", "DIFFERENTIAL", "@yearly", "prepared plans"):
        assert word in text
    found = {each["name"]: each for each in json.loads(cli("status", "--json").stdout) if each["schema"] == schema}
    assert found["base"]["pending_changes"] == 3
    assert found["base"]["status"] == "ACTIVE"
    assert found["tip"]["last_action"] == "INITIAL"
    (one,) = json.loads(cli("status", f"{schema}.base", "--json").stdout)
    assert one["name"] == "base"
    assert "no stream table" in cli("status", "nothing", code=1).output
    assert "Cost" in cli("explain", "base").output
    assert "one group" in "\n".join(json.loads(cli("explain", "tip", "--json").stdout))
    cli("refresh", "tip")
    history = json.loads(cli("history", "base", "--json").stdout)
    assert [h["action"] for h in history] == ["DIFFERENTIAL", "INITIAL"]
    assert len(json.loads(cli("history", "--limit", "1", "--json").stdout)) == 1
    assert "INITIAL" in cli("history", "base").output
    assert "DIFFERENTIAL" in cli("validate", "SELECT count(*) AS n FROM orders").output
    checks = json.loads(cli("validate", "SELECT id, now() AS seen FROM orders", "--json").stdout)
    assert any("the current time as a value" in c["result"] for c in checks)
    failed = cli("validate", "SELECT nope FROM orders", code=1).output
    assert 'column "nope" does not exist' in failed
    assert "Traceback" not in failed


def test_verify_tells_by_its_exit_code_who_tampered(cli: Cli, db: psycopg.Connection, schema: str) -> None:
    script(db, ORDERS)
    cli("create", "totals", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", "--schedule", "@yearly")
    cli("create", "copy", "SELECT id FROM orders", "--schedule", "@yearly")
    assert cli("verify", "totals", "copy").exit_code == 0
    db.execute("SET pgtrickle.allow_direct_writes = on")
    db.execute("UPDATE totals SET n = 1000 WHERE customer = 'c1'")
    output = cli("verify", "totals", code=1).output
    assert "c1" in output
    assert "1000" in output
    said = json.loads(cli("verify", "totals", "copy", "--json", code=1).stdout)
    assert (said["totals"]["ok"], said["copy"]["ok"]) == (False, True)
    assert said["totals"]["unexpected"] == ["(c1,1000)"]
    assert said["totals"]["missing"] == ["(c1,5)"]
    db.execute("DELETE FROM copy WHERE id = 7")
    db.execute("INSERT INTO copy VALUES (3)")
    said = json.loads(cli("verify", "copy", "--json", code=1).stdout)["copy"]
    assert (said["missing"], said["unexpected"]) == (["(7)"], ["(3)"])


def test_verify_goes_on_after_a_table_in_error(cli: Cli, db: psycopg.Connection, schema: str) -> None:
    script(db, ORDERS)
    cli("create", "broken", "SELECT customer FROM orders", "--schedule", "@yearly")
    cli("create", "sound", "SELECT id FROM orders", "--schedule", "@yearly")
    db.execute("ALTER TABLE orders DROP COLUMN customer")
    output = cli("verify", "--all", code=1).output
    assert "broken could not be verified" in output and 'column "customer" was dropped' in output
    assert "sound equals its query" in output
    said = json.loads(cli("verify", "--json", code=1).stdout)
    found = {name.split(".")[-1]: result for name, result in said.items()}
    assert found["sound"]["ok"] and "was dropped" in found["broken"]["error"]
    assert "--all" in cli("verify", "--all", "sound", code=1).output


def test_errors_are_one_line_with_a_hint(cli: Cli, db: psycopg.Connection) -> None:
    bad = cli("create", "x", "SELEC 1", code=1).output
    assert "syntax error" in bad
    assert "Traceback" not in bad
    assert "invalid schedule" in cli("create", "x", "SELECT 1 AS one", "--schedule", "soon", code=1).output
    assert "missing" in cli("create", "x", code=1).output
    cli("create", "x", "SELECT 1 AS one", "--mode", "sometimes", code=2)
    nowhere = CliRunner().invoke(app, ["status", "--dsn", "host=127.0.0.1 port=1 dbname=x"])
    assert nowhere.exit_code == 1
    assert "runnel up" in nowhere.output
    both = CliRunner().invoke(app, ["status", "--dsn", "dbname=x", "--home", "/nowhere"])
    assert both.exit_code == 1
    assert "exclude" in both.output


def test_version_and_dsn(cli: Cli, dsn: str) -> None:
    assert runnel.__version__ in cli("version").output
    assert f"PostgreSQL {VERSION}" in cli("version").output
    assert cli("dsn").output.replace("\n", "").strip() == dsn
    cli("init")


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "down",
        "init",
        "dsn",
        "psql",
        "demo",
        "version",
        "create",
        "alter",
        "drop",
        "refresh",
        "validate",
        "status",
        "history",
        "explain",
        "verify",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    listed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"])
    assert f" {command} " in listed.output
