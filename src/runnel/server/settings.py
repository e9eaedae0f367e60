"""The files that make a server ours: its settings, and the extension that `CREATE EXTENSION` finds.

Both are rewritten at every start, so they follow the installed version and a home directory that moved.
A user's own settings belong in ALTER SYSTEM, which PostgreSQL reads last.
"""

from __future__ import annotations

from pathlib import Path

from runnel.model.versions import Version
from runnel.server.home import Home

EXTENSIONS = {"pg_trickle": "pgtrickle", "pg_tide": "tide"}
"""By the names that scripts give to CREATE EXTENSION: the schemas behind them."""

_HEADER = "# Written by Runnel at every start; use ALTER SYSTEM for your own settings.\n"

_TUNING = """
# Sized for a laptop that also runs Spark.
max_connections = 200
shared_buffers = 256MB
work_mem = 32MB
maintenance_work_mem = 256MB
effective_cache_size = 2GB
random_page_cost = 1.1
# Merges and restricted reads are short: compiling them costs more than it saves.
jit = off

# Durable: a crash loses nothing that was committed.
fsync = on
synchronous_commit = on
full_page_writes = on
wal_level = replica
min_wal_size = 256MB
max_wal_size = 2GB
checkpoint_timeout = 15min

# Change buffers fill and empty all day long.
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.1
autovacuum_analyze_scale_factor = 0.05

log_min_messages = warning
log_line_prefix = '%m [%p] %u@%d '
log_checkpoints = off
"""

_CONTROL = """\
comment = 'Runnel: the schema {schema}'
default_version = '{version}'
relocatable = false
superuser = false
"""

# The objects come from the engine's migrations, which run before anybody can type CREATE EXTENSION, and the
# same ones are used on servers where no extension can be installed. So the extension owns nothing: it is the
# line that scripts expect to work, and dropping it is harmless.
_SCRIPT = """\
\\echo Use "CREATE EXTENSION {extension}" to load this file. \\quit

DO $$
BEGIN
    IF pg_catalog.to_regnamespace('{schema}') IS NULL THEN
        RAISE EXCEPTION 'the schema {schema} is not installed in database "%"', pg_catalog.current_database()
            USING HINT = 'Start the engine with "runnel up", or install the schema with "runnel init".';
    END IF;
END
$$;
"""


def server_settings(home: Home, port: int, version: Version) -> str:
    """The text of HOME/postgresql.conf, on top of what initdb found out about locale and time zone."""
    placed = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(home.socket_dir),
        # Root and the server's own user; everybody else on this machine comes through TCP.
        "unix_socket_permissions": "0700",
    }
    if version.has_extension_path:
        placed["extension_control_path"] = f"$system:{home.extensions}"
    lines = [f"{name} = {_quote(value)}" for name, value in placed.items()]
    return f"{_HEADER}include = {_quote(str(home.data / 'postgresql.conf'))}\n" + "\n".join(lines) + "\n" + _TUNING


def write_extension(directory: Path, version: str) -> list[Path]:
    """Control files and scripts of the marker extensions, below `directory`/extension; what was written."""
    target = directory / "extension"
    target.mkdir(parents=True, exist_ok=True)
    files = {}
    for extension, schema in EXTENSIONS.items():
        for stale in target.glob(f"{extension}--*.sql"):
            stale.unlink()
        files[f"{extension}.control"] = _CONTROL.format(version=version, schema=schema)
        files[f"{extension}--{version}.sql"] = _SCRIPT.format(extension=extension, schema=schema)
    for name, text in files.items():
        path = target / name
        path.write_text(text)
        path.chmod(0o644)
    return [target / name for name in files]


def _quote(value: str) -> str:
    """A string literal of postgresql.conf, where backslashes are escapes too."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
