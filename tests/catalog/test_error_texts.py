"""Messages that an earlier release has left for everybody to read are put away by the upgrade."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from runnel.catalog import migrate as migration
from runnel.server.embedded import EmbeddedServer

DATABASE = "before_error_texts"
QUOTED = 'invalid input syntax for type integer: "123,000.00"'
BEFORE = f"""
INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, owner, original_query, defining_query,
    schedule, refresh_mode, effective_mode, status, last_error)
SELECT i, 's', 't' || i, (SELECT oid FROM pg_roles WHERE rolname = current_user), 'q', 'q', '1s', 'AUTO', 'FULL',
       CASE i WHEN 1 THEN 'SUSPENDED' ELSE 'ERROR' END,
       CASE i WHEN 1 THEN '{QUOTED}' ELSE 'source t: it was dropped' END
FROM generate_series(1, 2) i;
INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, start_time, action, status, initiated_by, error_message, reason)
SELECT pgt_id, now(), 'FULL', 'FAILED', 'SCHEDULER', last_error, 'the delta failed: {QUOTED}'
FROM pgtrickle.pgt_stream_tables
"""


def test_old_messages_are_kept_for_the_owner_only(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}".encode())
        admin.execute("CREATE ROLE nosy LOGIN")
    try:
        dsn = make_conninfo(server.dsn, dbname=DATABASE)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(migration.CREATE_LEDGER)
            for step in migration.migrations():
                if step.name != "stumbles":
                    migration.run_step(conn, step)
                    conn.execute(migration.RECORD, (step.version, step.name))
                    continue
                conn.execute(BEFORE.encode())
                break
            migration.migrate(conn)
            found = conn.execute("SELECT last_error FROM pgtrickle.pgt_status() ORDER BY name").fetchall()
            assert found == [(QUOTED,), ("source t: it was dropped",)]
        with psycopg.connect(make_conninfo(dsn, user="nosy"), autocommit=True) as nosy:
            told = ""
            for query in (
                "SELECT * FROM pgtrickle.pgt_stream_tables",
                "SELECT * FROM pgtrickle.pgt_refresh_history",
                "SELECT * FROM pgtrickle.pgt_error_texts",
                "SELECT * FROM pgtrickle.pgt_status()",
                "SELECT * FROM pgtrickle.health_check()",
            ):
                told += str(nosy.execute(query.encode()).fetchall())
            assert "123,000.00" not in told and "source t: it was dropped" in told
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())
            admin.execute("DROP ROLE nosy")
