"""What headers promise goes with the tables: set by apply, written by export. An apply that fails changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel
from runnel.checks.tests import as_set
from runnel.project.project import read_project

Run = Callable[..., str]
Db = psycopg.Connection[Any]

REVENUE = '''/* runnel
schedule = "1h"
description = "Per region, with *\\u002f and \\"quotes\\""
on_violation = "hold"

[[tests]]
unique = ["region"]
not_null = ["region"]

[[tests]]
accepted_values = {region = ["eu", "us"]}
on_violation = "warn"

[[tests]]
relationships = {column = "region", to = "public.regions", field = "code"}
empty = """
SELECT 1 FROM marts.revenue
WHERE total < ${least} -- nothing below
"""
*/
SELECT region, sum(amount) AS total FROM public.orders GROUP BY region
'''
LARGE = """/* runnel
schedule = "1h"
*/
SELECT region, total FROM revenue WHERE total > 3
"""
STATE = """
SELECT t.pgt_schema || '.' || t.pgt_name, t.schedule, t.defining_query, obj_description(t.pgt_relid, 'pg_class'),
       (SELECT jsonb_agg(p.definition ORDER BY p.position) FROM pgtrickle.pgt_tests p WHERE p.pgt_id = t.pgt_id)
FROM pgtrickle.pgt_stream_tables t ORDER BY 1
"""


@pytest.fixture
def project(tmp_path: Path, db: Db) -> Path:
    db.execute("CREATE TABLE orders (id serial PRIMARY KEY, region text, amount numeric(10,2))")
    db.execute("INSERT INTO orders (region, amount) VALUES ('eu', 1), ('eu', 2), ('us', 5)")
    db.execute("CREATE TABLE regions (code text PRIMARY KEY); INSERT INTO regions VALUES ('eu'), ('us'), ('moon')")
    root = tmp_path / "shop"
    (root / "marts").mkdir(parents=True)
    (root / "marts" / "revenue.sql").write_text(REVENUE)
    (root / "marts" / "large.sql").write_text(LARGE)
    (root / "runnel.toml").write_text(
        "[environments.default.variables]\nleast = 0\n[environments.staging]\n"
        'schema_prefix = "staging_"\nvariables = {least = 1}\n'
    )
    return root


def found(db: Db, name: str) -> dict[str, tuple[str, str, int]]:
    rows = db.execute("SELECT test, on_violation, status, violations FROM pgtrickle.test_status(%s)", (name,))
    return {test: (reaction, status, count) for test, reaction, status, count in rows}


def test_tests_are_set_looked_at_and_written_back(
    run: Run, project: Path, db: Db, client: runnel.Client, tmp_path: Path
) -> None:
    run("apply", str(project))
    good = {
        "unique region": ("hold", "ok", 0),
        "not null region": ("hold", "ok", 0),
        "accepted values region": ("warn", "ok", 0),
        "relationship region -> public.regions.code": ("hold", "ok", 0),
        "empty": ("hold", "ok", 0),
    }
    assert found(db, "marts.revenue") == good
    assert "Nothing to do." in run("plan", str(project), "--exit-code")
    db.execute("INSERT INTO orders (region, amount) VALUES ('moon', 1)")
    client.refresh("marts.revenue")
    assert found(db, "marts.revenue") == {**good, "accepted values region": ("warn", "violated", 1)}
    assert "accepted values region: 1 violations" in run("status")
    assert "✗ marts.revenue: accepted values region: 1 violations" in run("test", str(project), code=1)

    copy = tmp_path / "copy"
    run("export", str(copy))
    assert "Nothing to do." in run("plan", str(copy), "--exit-code", "--prune")
    before, after = ({model.name: model for model in read_project(root).models} for root in (project, copy))
    assert before.keys() == after.keys()
    for name, model in after.items():
        assert model.description == before[name].description
        assert as_set(model.tests) == as_set(before[name].tests)

    file = project / "marts" / "revenue.sql"
    file.write_text(REVENUE.replace('unique = ["region"]\n', ""))
    assert "~ alter marts.revenue: tests" in run("plan", str(project))
    assert "✗ marts.revenue: accepted values region: 1" in run("apply", str(project))
    assert "unique region" not in found(db, "marts.revenue")

    run("apply", str(project), "--env", "staging")
    (select,) = (t["definition"]["empty"] for t in _tests(db, "staging_marts.revenue") if "empty" in t["definition"])
    assert '"staging_marts".revenue' in select
    assert "total < 1" in select
    assert "Nothing to do." in run("plan", str(project), "--env", "staging")


def _tests(db: Db, name: str) -> list[dict[str, Any]]:
    rows = db.execute("SELECT definition FROM pgtrickle.test_status(%s)", (name,))
    return [{"definition": definition} for (definition,) in rows]


@pytest.mark.usefixtures("client")
def test_an_apply_that_fails_changes_nothing(run: Run, project: Path, db: Db) -> None:
    run("apply", str(project))
    before = db.execute(STATE).fetchall()
    marts = project / "marts"
    (marts / "revenue.sql").write_text(
        REVENUE.replace("sum(amount) AS total", "sum(amount) AS total, count(*) AS n")
        .replace('unique = ["region"]\n', "")
        .replace("Per region", "Other words")
    )
    (marts / "large.sql").write_text(LARGE.replace('"1h"', '"2h"'))
    (marts / "added.sql").write_text("SELECT region, n FROM marts.revenue WHERE n > 1")
    fresh = project / "fresh"
    fresh.mkdir()
    (fresh / "one.sql").write_text("SELECT count(*) AS n FROM public.orders")
    # PostgreSQL reads it well, and finds out while it is built.
    (marts / "z_last.sql").write_text("SELECT region, 1 / (n - 2) AS broken FROM marts.added")
    said = run("apply", str(project), code=1)
    assert "create marts.z_last: stream table marts.z_last: division by zero" in said.replace("\n", " ")
    assert "all is as it was" in said.replace("\n", " ")
    assert db.execute(STATE).fetchall() == before
    assert db.execute("SELECT to_regnamespace('fresh')").fetchone() == (None,)
    assert db.execute("SELECT sum(total) FROM marts.revenue").fetchone() == (8,)

    said = run("apply", str(project), "--keep", code=1)
    assert "It stays, and the next apply goes on" in said.replace("\n", " ")
    assert db.execute("SELECT n FROM marts.revenue WHERE region = 'eu'").fetchone() == (2,)
    left = {each["name"]: each["verb"] for each in json.loads(run("plan", str(project), "--json"))}
    assert {name for name, verb in left.items() if verb == "create"} == {"marts.z_last"}
    (marts / "z_last.sql").write_text("SELECT region, n - 2 AS mended FROM marts.added")
    run("apply", str(project))
    assert "Nothing to do." in run("plan", str(project))
    assert db.execute("SELECT mended FROM marts.z_last").fetchone() == (0,)


@pytest.mark.usefixtures("client")
def test_nothing_is_begun_that_is_known_to_fail(run: Run, project: Path, db: Db) -> None:
    (project / "marts" / "z_last.sql").write_text("SELECT nowhere FROM marts.large")
    assert 'will fail: column "nowhere" does not exist' in run("plan", str(project), code=1)
    assert "Nothing was changed" in run("apply", str(project), code=1).replace("\n", " ")
    (project / "marts" / "z_last.sql").write_text("SELECT random() AS r FROM public.orders")
    assert "Nothing was changed" in run("apply", str(project), code=1).replace("\n", " ")
    assert db.execute(STATE).fetchall() == []
    (project / "marts" / "z_last.sql").unlink()
    (project / "marts" / "revenue.sql").write_text(REVENUE.replace('not_null = ["region"]', 'not_null = ["nobody"]'))
    assert "has no column nobody" in run("apply", str(project), code=1).replace("\n", " ")
    assert db.execute(STATE).fetchall() == []
