"""Stream tables in files: planned, brought to a database, changed, renamed, exported and tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runnel

Run = Callable[..., str]
Db = psycopg.Connection[Any]


@pytest.fixture
def project(tmp_path: Path, db: Db) -> Path:
    """Two stream tables, one over the other."""
    db.execute("CREATE TABLE orders (id serial PRIMARY KEY, region text, amount numeric(10,2))")
    db.execute("INSERT INTO orders (region, amount) VALUES ('eu', 1), ('eu', 2), ('us', 5)")
    root = tmp_path / "shop"
    (root / "marts").mkdir(parents=True)
    # The one that reads comes first by name.
    (root / "marts" / "a_large.sql").write_text(
        "CREATE MATERIALIZED VIEW a_large AS SELECT r.region, r.total FROM marts.revenue r WHERE r.total >= ${least};\n"
    )
    (root / "marts" / "revenue.sql").write_text(
        '/* runnel\nschedule = "1s"\ndescription = "Per region"\n[[tests]]\nunique = ["region"]\n'
        'accepted_values = {region = ["eu", "us"]}\n[[tests]]\nnot_null = ["total"]\n*/\n'
        "SELECT region, sum(amount) AS total, count(*) AS n FROM public.orders GROUP BY region"
    )
    (root / "runnel.toml").write_text(
        '[environments.default.variables]\nleast = 4\n[environments.staging]\nschema_prefix = "staging_"\n'
        "variables = {least = 3}\n"
    )
    return root


def verbs(run: Run, root: Path, *more: str) -> dict[str, str]:
    return {each["name"]: each["verb"] for each in json.loads(run("plan", str(root), "--json", *more))}


@pytest.mark.usefixtures("client")
def test_from_nothing_to_changed(run: Run, project: Path, db: Db) -> None:
    assert list(verbs(run, project).items()) == [("marts.revenue", "create"), ("marts.a_large", "create")]
    assert "2 to do." in run("plan", str(project), "--exit-code", code=2)
    assert "2 done." in run("apply", str(project))
    assert db.execute("SELECT region FROM marts.a_large").fetchall() == [("us",)]
    assert "Nothing to do." in run("plan", str(project), "--exit-code")
    assert "Nothing to do." in run("apply", str(project))

    file = project / "marts" / "revenue.sql"
    text = file.read_text()
    file.write_text(text.replace('"1s"', '"9s"').replace("SELECT region", "SELECT  region"))
    assert "~ alter marts.revenue: schedule 1s -> 9s" in run("plan", str(project))
    run("apply", str(project))
    file.write_text(text.replace("count(*) AS n", "count(*) AS n, max(amount) AS most"))
    assert verbs(run, project) == {"marts.revenue": "rebuild", "marts.a_large": "keep"}
    run("apply", str(project))
    assert db.execute("SELECT most FROM marts.revenue WHERE region = 'eu'").fetchone() == (2,)
    assert "Nothing to do." in run("plan", str(project))


@pytest.mark.usefixtures("client")
def test_rename_prune_and_export(run: Run, project: Path, db: Db, tmp_path: Path) -> None:
    run("apply", str(project))
    made = db.execute("SELECT pgt_id, definition_version FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'a_large'")
    before = made.fetchone()
    large = project / "marts" / "a_large.sql"
    (project / "marts" / "big.sql").write_text(
        '/* runnel\nrenamed_from = "a_large"\n*/\n' + large.read_text().split(" AS ", 1)[1]
    )
    large.unlink()
    assert "> rename marts.big: was marts.a_large" in run("plan", str(project))
    run("apply", str(project))
    found = db.execute("SELECT pgt_id, definition_version FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'big'")
    assert found.fetchone() == before
    (project / "marts" / "big.sql").unlink()
    assert "Nothing to do." in run("plan", str(project))
    assert "- drop marts.big" in run("apply", str(project), "--prune")

    query = "SELECT id % 2 AS odd, count(*) AS n FROM orders GROUP BY 1"
    db.execute("SELECT pgtrickle.create_stream_table('other', %s, '3s')", (query,))
    run("export", str(tmp_path / "copy"))
    assert sorted(p.name for p in (tmp_path / "copy").rglob("*.sql")) == ["other.sql", "revenue.sql"]
    assert set(verbs(run, tmp_path / "copy", "--prune").values()) == {"keep"}


@pytest.mark.usefixtures("client")
def test_an_environment_has_schemas_of_its_own(run: Run, project: Path, db: Db) -> None:
    run("apply", str(project))
    run("apply", str(project), "--env", "staging")
    names = "SELECT pgt_schema || '.' || pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    assert [name for (name,) in db.execute(names)] == [
        "marts.a_large", "marts.revenue", "staging_marts.a_large", "staging_marts.revenue",
    ]  # fmt: skip
    assert db.execute("SELECT count(*) FROM staging_marts.a_large").fetchone() == (2,)
    assert db.execute(
        "SELECT source_name FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
        "WHERE t.pgt_schema = 'staging_marts' AND t.pgt_name = 'a_large'"
    ).fetchall() == [("staging_marts.revenue",)]
    assert "no environment prod" in run("plan", str(project), "--env", "prod", code=1)


def test_what_the_headers_promise_is_tested(run: Run, project: Path, db: Db, client: runnel.Client) -> None:
    run("apply", str(project))
    assert "✓ marts.revenue: unique" in run("test", str(project))
    db.execute("INSERT INTO orders (region, amount) VALUES ('moon', 1)")
    client.refresh("marts.revenue")
    assert "✗ marts.revenue: accepted values region: 1 violations" in run("test", str(project), code=1)


def test_mistakes_are_named(run: Run, project: Path) -> None:
    file = project / "marts" / "revenue.sql"
    text = file.read_text()
    file.write_text(text.replace("schedule", "shedule"))
    assert "there is no shedule in a header" in run("plan", str(project), code=1)
    file.write_text(text.replace("public.orders", "public.nowhere"))
    assert 'will fail: relation "public.nowhere" does not exist' in run("plan", str(project), code=1)
    file.write_text(text + " UNION ALL SELECT region, total, 1 FROM marts.a_large")
    assert "in a circle" in run("plan", str(project), code=1)


@pytest.mark.usefixtures("client")
def test_the_example_works(run: Run, tmp_path: Path) -> None:
    root = str(tmp_path / "new")
    run("init-project", root)
    run("apply", root)
    assert "✓ marts.revenue" in run("test", root)
    assert "Nothing to do." in run("plan", root)
    header = json.loads(run("init-project", "--schema"))["properties"]
    assert header["schedule"] == {"type": "string"} and header["on_violation"] == {"enum": ["warn", "hold"]}
    assert "Which folder?" in run("init-project", code=1)


@pytest.mark.usefixtures("client")
def test_tags_choose_what_is_looked_at(run: Run, project: Path, db: Db) -> None:
    (project / "marts" / "other.sql").write_text("SELECT count(*) AS n FROM public.orders")
    large = project / "marts" / "a_large.sql"
    large.write_text('/* runnel\ntags = ["small", "daily"]\n*/\n' + large.read_text())
    chosen = json.loads(run("plan", str(project), "--tag", "daily", "--json"))
    assert [(each["name"], each["tags"]) for each in chosen] == [
        ("marts.revenue", []),
        ("marts.a_large", ["small", "daily"]),
    ]
    assert "2 done." in run("apply", str(project), "--tag", "daily")
    assert db.execute("SELECT to_regclass('marts.other')").fetchone() == (None,)
    assert verbs(run, project)["marts.other"] == "create"
    assert "Tags are: daily, small." in run("plan", str(project), "--tag", "weekly", code=1)
    assert "looks at all files" in run("apply", str(project), "--tag", "daily", "--prune", code=1)


@pytest.mark.usefixtures("client")
def test_owners_and_exported_deltas_are_written_and_compared(run: Run, db: Db, tmp_path: Path) -> None:
    db.execute("CREATE ROLE ann; GRANT pgtrickle_user TO ann; CREATE SCHEMA hers AUTHORIZATION ann")
    db.execute("CREATE TABLE hers.t AS SELECT i FROM generate_series(1, 5000) i; ALTER TABLE hers.t OWNER TO ann")
    root = tmp_path / "owned"
    (root / "hers").mkdir(parents=True)
    (root / "hers" / "n.sql").write_text('/* runnel\nowner = "ann"\n*/\nSELECT count(*) AS n FROM t')
    rows = json.loads(run("plan", str(root), "--json"))[0]["rows"]
    assert 1000 < rows < 10000, "a table without statistics is not empty"
    run("apply", str(root))
    db.execute("SELECT pgtrickle.alter_stream_table('hers.n', delta_export_path => %s)", (f"{tmp_path}/deltas",))
    run("export", str(tmp_path / "copy"))
    text = (tmp_path / "copy" / "hers" / "n.sql").read_text()
    assert 'owner = "ann"' in text and f'delta_export_path = "{tmp_path}/deltas' in text
    assert "Nothing to do." in run("plan", str(tmp_path / "copy"), "--exit-code", "--prune")
    (root / "hers" / "n.sql").write_text('/* runnel\nowner = "postgres"\n*/\nSELECT count(*) AS n FROM t')
    assert "it belongs to ann, and an owner stays" in run("plan", str(root), code=1)
    run("apply", str(root), code=1)
    db.execute("SELECT pgtrickle.drop_stream_table('hers.n')")
    db.execute("DROP OWNED BY ann; DROP ROLE ann")


@pytest.mark.usefixtures("client")
def test_how_changes_are_captured_is_written_and_compared(run: Run, project: Path, db: Db, tmp_path: Path) -> None:
    file = project / "marts" / "revenue.sql"
    text = file.read_text()
    file.write_text(text.replace('schedule = "1s"', 'schedule = "1s"\ncdc_mode = "auto"'))
    run("apply", str(project))
    mode = "SELECT cdc_mode FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'revenue'"
    assert db.execute(mode).fetchone() == ("auto",)
    run("export", str(tmp_path / "copy"))
    assert 'cdc_mode = "auto"' in (tmp_path / "copy" / "marts" / "revenue.sql").read_text()
    assert "Nothing to do." in run("plan", str(tmp_path / "copy"))

    file.write_text(text.replace('schedule = "1s"', 'schedule = "1s"\ncdc_mode = "default"'))
    assert "~ alter marts.revenue: cdc_mode auto -> default" in run("plan", str(project))
    run("apply", str(project))
    assert db.execute(mode).fetchone() == (None,)
    assert "Nothing to do." in run("plan", str(project))


@pytest.mark.usefixtures("client")
def test_a_plan_tells_how_long_a_new_table_takes(run: Run, project: Path, db: Db) -> None:
    db.execute("INSERT INTO orders (region, amount) SELECT 'eu', 1 FROM generate_series(1, 400000)")
    db.execute("ANALYZE orders")
    guessed = {each["name"]: each["seconds"] for each in json.loads(run("plan", str(project), "--json"))}
    assert guessed["marts.revenue"] == pytest.approx(2.0, rel=0.1), "200,000 rows a second, while nothing was built"
    run("apply", str(project))

    took = "SELECT max(extract(epoch FROM end_time - start_time)) FROM pgtrickle.pgt_refresh_history"
    (seconds,) = db.execute(took).fetchone() or (None,)
    (project / "marts" / "again.sql").write_text("SELECT region, max(amount) AS m FROM public.orders GROUP BY region")
    (again,) = [each for each in json.loads(run("plan", str(project), "--json")) if each["verb"] == "create"]
    assert again["seconds"] == pytest.approx(max(0.2, float(seconds)), rel=0.2), "as fast as the build that was seen"
    assert f"reads about 400,003 rows, about {again['seconds']:.1f} s" in run("plan", str(project))
