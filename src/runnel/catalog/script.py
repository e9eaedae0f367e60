"""The installation as a script (`runnel init --print-sql`), for whoever wants to read it first or run it alone.

It does what `migrate` does, in the words of one version of PostgreSQL: each step in a transaction of its own, with the
row that records it, so that an engine finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from runnel.catalog.migrate import CREATE_LEDGER, EXTENSION_SCHEMA, Migration, migrations, stand_ins_of
from runnel.model.versions import Version

_HEAD = """\
-- Runnel {package}: its schemas, for PostgreSQL {server}. Run it with psql as the role that will run the engine.
\\set ON_ERROR_STOP on
SET search_path = pg_catalog, pg_temp;
SET check_function_bodies = on;
SET standard_conforming_strings = on;
SET client_min_messages = warning;
"""
# As `migrate` does it: the engine works without the extension.
_DBLINK = f"""
DO $dblink$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'dblink') THEN
        CREATE SCHEMA IF NOT EXISTS {EXTENSION_SCHEMA};
        CREATE EXTENSION dblink SCHEMA {EXTENSION_SCHEMA};
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'the dblink extension could not be installed (%)', SQLERRM
        USING HINT = 'SQL functions hand requests over at COMMIT until an administrator runs: CREATE EXTENSION dblink';
END
$dblink$;
"""
_RECORD = "INSERT INTO pgtrickle.pgt_migrations (version, name) VALUES ({version}, {name});"
_VERSION = """
INSERT INTO pgtrickle.pgt_settings (key, value) VALUES ('version', {version})
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
"""


def installation_script(server: Version, package: str, done: Collection[int] = ()) -> str:
    """All steps that are not `done` yet, as SQL for psql."""
    parts = [_HEAD.format(package=package, server=server.major), CREATE_LEDGER, _DBLINK]
    parts += [_step(step, server) for step in migrations() if step.version not in done]
    parts.append(_VERSION.format(version=sql.Literal(package).as_string()))
    return "\n".join(parts)


def _step(step: Migration, server: Version) -> str:
    title = f"-- {step.version:04} {step.name} ".ljust(119, "-")
    recorded = _RECORD.format(version=step.version, name=sql.Literal(step.name).as_string())
    return f"{title}\nBEGIN;\n{stand_ins_of(step, server)}{server.adapted(step.text)}\n{recorded}\nCOMMIT;\n"
