"""Bad data of one stream table, of any kind, stays its own: the other one remains fresh."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.e2e.helpers import eventually, value
from tests.hostile.helpers import Watched, backend, row_of
from tests.sampling import sampled

CORRUPTIONS = {
    "an unknown schedule": "UPDATE pgtrickle.pgt_stream_tables SET schedule = 'whenever' WHERE pgt_name = 'bad'",
    "an empty schedule": "UPDATE pgtrickle.pgt_stream_tables SET schedule = '' WHERE pgt_name = 'bad'",
    "a cron that never fires": "UPDATE pgtrickle.pgt_stream_tables SET schedule = '0 0 30 2 *' WHERE pgt_name = 'bad'",
    "an absurd schedule": "UPDATE pgtrickle.pgt_stream_tables SET schedule = repeat('9', 400) || 's' "
    "WHERE pgt_name = 'bad'",
    "a query that is none": "UPDATE pgtrickle.pgt_stream_tables SET defining_query = 'nonsense', "
    "definition_version = definition_version + 1 WHERE pgt_name = 'bad'",
    "a query over nothing": "UPDATE pgtrickle.pgt_stream_tables SET defining_query = 'SELECT x FROM nowhere.never', "
    "definition_version = definition_version + 1 WHERE pgt_name = 'bad'",
    "a relation that is not there": "UPDATE pgtrickle.pgt_stream_tables SET pgt_relid = 4 WHERE pgt_name = 'bad'",
    "a name that is not there": "UPDATE pgtrickle.pgt_stream_tables SET pgt_name = 'renamed' WHERE pgt_name = 'bad'",
    "an owner who is nobody": "UPDATE pgtrickle.pgt_stream_tables SET owner = 4 WHERE pgt_name = 'bad'",
    "settings of other kinds": """UPDATE pgtrickle.pgt_stream_tables SET settings =
        '{"TimeZone": 7, "search_path": {"a": 1}, "DateStyle": "x"}' WHERE pgt_name = 'bad'""",
    "no times that Python knows": "UPDATE pgtrickle.pgt_stream_tables SET retry_at = 'infinity', "
    "last_refresh_at = '-infinity', data_timestamp = '200000-01-01', created_at = 'infinity' WHERE pgt_name = 'bad'",
    "a frontier of words": """UPDATE pgtrickle.pgt_stream_tables SET frontier = '{"postgres": "yesterday"}'
        WHERE pgt_name = 'bad'""",
    "a frontier of numbers": """UPDATE pgtrickle.pgt_stream_tables SET frontier = '{"postgres": 7, "stream_tables": [1],
        "ducklake:x": "y", "plan": []}' WHERE pgt_name = 'bad'""",
    "versions that are none": """UPDATE pgtrickle.pgt_stream_tables SET frontier = frontier ||
        '{"stream_tables": {"x": "y"}}' WHERE pgt_name = 'bad'""",
    "failures beyond counting": "UPDATE pgtrickle.pgt_stream_tables SET consecutive_errors = 2147483647, "
    "schedule = 'x' WHERE pgt_name = 'bad'",
    "a dependency on itself": """INSERT INTO pgtrickle.pgt_dependencies
        (pgt_id, source_relid, source_type, source_name, source_pgt_id)
        SELECT pgt_id, pgt_relid, 'STREAM_TABLE', 'public.bad', pgt_id FROM pgtrickle.pgt_stream_tables
        WHERE pgt_name = 'bad'""",
    "a dependency on nothing": """INSERT INTO pgtrickle.pgt_dependencies
        (pgt_id, source_relid, source_type, source_name, source_pgt_id)
        SELECT pgt_id, 99999, 'STREAM_TABLE', 'public.none', 99999 FROM pgtrickle.pgt_stream_tables
        WHERE pgt_name = 'bad'""",
    "columns without types": """UPDATE pgtrickle.pgt_dependencies SET columns_used = '{a,b,NULL}', column_types = '{}'
        WHERE pgt_id = (SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'bad')""",
    "tracking of other columns": """UPDATE pgtrickle.pgt_change_tracking SET columns = '[{"name": "zzz", "attnum": 77}]'
        WHERE source_relid = 'worse'::regclass""",
    "a result of another shape": "ALTER TABLE bad DROP COLUMN x; ALTER TABLE bad ADD COLUMN y text",
    "a result that was replaced": "DROP TABLE bad; CREATE TABLE bad (z int)",
    "a buffer that is gone": "DO $$ BEGIN EXECUTE format('DROP TABLE pgtrickle_changes.changes_%s', "
    "'worse'::regclass::oid); END $$",
    "state that is gone": """DO $$ DECLARE r record; BEGIN FOR r IN SELECT relname FROM pg_class WHERE relkind = 'r'
        AND relnamespace = 'pgtrickle_state'::regnamespace AND relname ~ format('^[gbs]_%s_',
            (SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'bad'))
        LOOP EXECUTE format('DROP TABLE pgtrickle_state.%I', r.relname); END LOOP; END $$""",
}


@pytest.mark.parametrize("what", sampled(CORRUPTIONS, every=4))
def test_bad_data_of_one_table_never_harms_another(
    what: str, watched: Watched, db: psycopg.Connection, client: runnel.Client, events: list[str], engine: runnel.Engine
) -> None:
    db.execute("CREATE TABLE worse (id int, x int)")
    db.execute("INSERT INTO worse VALUES (1, 1), (2, 2)")
    client.create_stream_table("bad", "SELECT id, sum(x) AS x FROM worse GROUP BY id", "200ms")
    watched.follows()
    pid = backend(db, "runnel refresh")
    db.execute(CORRUPTIONS[what].encode())
    # Whatever the engine knows by heart, it must read anew.
    db.execute("SELECT pg_notify('pgtrickle_ddl', '')")
    try:
        db.execute("INSERT INTO worse VALUES (3, 3)")
    except psycopg.errors.UndefinedTable:
        assert what == "a buffer that is gone"
    # Long enough for a housekeeping, and for a few tries of the bad one.
    engine.loop.housekept = 0.0
    for _ in range(5):
        watched.follows()
        time.sleep(0.3)
    assert backend(db, "runnel refresh") == pid, "the engine reconnected"
    assert not [e for e in events if "lost" in e or "unexpected" in e], events
    assert value(db, "SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'fresh'") == "ACTIVE"
    assert value(db, "SELECT count(*) FROM pgtrickle.health_check() WHERE severity IS NOT NULL") > 0
    assert value(db, "SELECT count(*) > 0 FROM pgtrickle.pgt_status() WHERE name = 'public.fresh'")
    client.refresh("fresh")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["an unknown schedule", "a cron that never fires", "a dependency on itself"])
def test_it_is_recorded_as_its_own_failure(
    what: str, watched: Watched, db: psycopg.Connection, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE worse (id int, x int)")
    client.create_stream_table("bad", "SELECT id, sum(x) AS x FROM worse GROUP BY id", "200ms")
    db.execute(CORRUPTIONS[what].encode())
    db.execute("SELECT pg_notify('pgtrickle_ddl', '')")
    db.execute("INSERT INTO worse VALUES (3, 3)")
    eventually(lambda: row_of(db, "bad")["status"] == "SUSPENDED", 30, what="it was never suspended")
    message = row_of(db, "bad")["whole_error"]
    assert any(word in message for word in ("schedule", "depends on itself")), message
    watched.follows()
    # And it can be mended.
    client.alter_stream_table("bad", schedule="200ms", query="SELECT id, sum(x) AS x FROM worse GROUP BY id")
    assert client.verify("bad").ok


def test_a_frontier_that_cannot_be_read_is_a_rebuild(
    db: psycopg.Connection, client: runnel.Client, check: Callable[..., None]
) -> None:
    db.execute("CREATE TABLE worse (id int, x int)")
    client.create_stream_table("bad", "SELECT id, sum(x) AS x FROM worse GROUP BY id", "@yearly")
    db.execute(CORRUPTIONS["a frontier of words"].encode())
    db.execute("INSERT INTO worse VALUES (3, 3)")
    client.refresh("bad")
    newest = client.history("bad", 1)[0]
    assert (newest.action, "frontier" in (newest.reason or "")) == ("REINITIALIZE", True)
    check("bad")


@pytest.mark.parametrize("schedule", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 2 *"])
def test_a_cron_that_never_fires_is_refused(schedule: str, db: psycopg.Connection, client: runnel.Client) -> None:
    db.execute("CREATE TABLE t (x int)")
    with pytest.raises(runnel.RunnelError, match="never fires"):
        client.create_stream_table("never", "SELECT x FROM t", schedule)
    client.create_stream_table("leap", "SELECT x FROM t", "0 0 29 2 *")
    with pytest.raises(runnel.RunnelError, match="never fires"):
        client.alter_stream_table("leap", schedule=schedule)
    assert row_of(db, "leap")["schedule"] == "0 0 29 2 *"
