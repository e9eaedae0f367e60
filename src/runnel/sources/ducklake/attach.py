"""Lakes by name: attach, detach, settings, what is in them; and the default lake of a stack.

Only roles that could act as the engine anyway may attach a lake or change its settings, because its files are
reached with the engine's own rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runnel.catalog.secrets import hold_key
from runnel.errors import RunnelError, UserError
from runnel.lake import attached as stored
from runnel.lake.connection import connect_catalog
from runnel.lake.format import catalog
from runnel.lake.format.model import Lake
from runnel.lake.read.overview import overview
from runnel.lake.store.options import require_known
from runnel.lake.store.storage import open_store
from runnel.lake.write.create import create_lake
from runnel.model.names import quote
from runnel.sources.ducklake.standins import bring_in_step, drop_standins

Connection = psycopg.Connection[Any]

MAINTENANCE = "maintain_every"
MAINTAIN_EVERY = "15 minutes"
REMOTE = re.compile(r"(s3|gs|az)://[^/]+", re.ASCII)
USERS = """
SELECT format('%%I.%%I', s.pgt_schema, s.pgt_name)
FROM pgtrickle.pgt_stream_tables s
WHERE s.pgt_id IN (SELECT k.pgt_id FROM pgtrickle.pgt_sinks k WHERE k.lake = %(lake)s)
   OR s.pgt_id IN (SELECT d.pgt_id FROM pgtrickle.pgt_dependencies d
                   JOIN pgtrickle.pgt_lake_tables t ON t.relid = d.source_relid WHERE t.lake = %(lake)s)
ORDER BY 1
"""
SHOWN = ("host", "hostaddr", "port", "dbname", "user", "sslmode")
"""What of a connection string may be shown."""


def prepare(conn: Connection, home: Path | None, data_path: str | None) -> None:
    """At the start of an engine: let clients seal for its key, and see to the default lake."""
    if home is not None:
        home.mkdir(parents=True, exist_ok=True)
    stored.publish_sealing_key(conn, hold_key(home))
    ensure_default(conn, data_path, home)


def attach(conn: Connection, args: Mapping[str, Any], role: str) -> None:
    """Register a lake, making it first if asked to."""
    require_engine_rights(conn, role, "attach lakes")
    name = _checked_name(conn, str(args["name"]))
    given = stored.opened(
        Lake(name, args.get("catalog_schema") or "public", "", dsn=args.get("dsn"), options=_texts(args.get("options")))
    )
    for option in given.options:
        require_known(option)
    path = checked_data_path(args["data_path"]) if args.get("data_path") else None
    with conn.transaction(), reach(conn, given) as catalog_conn:
        made = bool(args.get("create_if_missing")) and not _has_catalog(catalog_conn, given.schema)
        if made:
            if path is None:
                raise UserError(
                    f"lake {name} needs a place for its files",
                    hint="Give a data_path: a folder, s3://..., gs://... or az://...",
                    sqlstate="22023",
                )
            _create(catalog_conn, given.schema, path, bool(args.get("encrypted")))
        lake = catalog.open_lake(catalog_conn, name, given.schema, dsn=given.dsn, options=given.options, data_path=path)
        first = stored.default_lake_name(conn) is None
        stored.save_lake(
            conn,
            lake,
            is_default=first or bool(args.get("make_default")),
            # The files of a lake that was there before are somebody else's to tidy, until that somebody says otherwise.
            maintain_every=MAINTAIN_EVERY if made else None,
        )
        bring_in_step(conn, lake, catalog.tables(catalog_conn, lake, catalog.head(catalog_conn, lake)))


def detach(conn: Connection, args: Mapping[str, Any], role: str) -> None:
    """Forget a lake. Its catalog and its files stay as they are."""
    require_engine_rights(conn, role, "detach lakes")
    name = str(args["name"])
    with conn.transaction():
        _require_known(conn, name)
        users = [str(row[0]) for row in conn.execute(USERS, {"lake": name})]
        if users:
            raise UserError(
                f"lake {name} is used by {', '.join(users)}",
                hint="Drop these stream tables, or end their publishing with: runnel alter NAME --sink none",
                sqlstate="2BP01",
            )
        drop_standins(conn, name)
        stored.delete_lake(conn, name)


def set_option(conn: Connection, args: Mapping[str, Any], role: str) -> None:
    """Change or forget one setting of a lake: of its object store, or how often it is maintained."""
    require_engine_rights(conn, role, "change the settings of lakes")
    name, option, value = str(args["name"]), str(args["option"]), args.get("value")
    _require_known(conn, name)
    if value is not None:
        require_known(option, also=(MAINTENANCE,))
    if option != MAINTENANCE:
        if value is not None:
            # What cannot be opened now could never be used.
            stored.opened(Lake(name, "", "", options={option: str(value)}))
        stored.set_lake_option(conn, name, option, None if value is None else str(value))
        return
    try:
        stored.set_maintenance(conn, name, None if value in (None, "off", "never") else str(value))
    except (psycopg.DataError, psycopg.errors.CheckViolation):
        raise UserError(
            f"invalid interval for maintenance: {value!r}",
            hint="Use an interval such as '10 minutes', or 'off'.",
            sqlstate="22007",
        ) from None


def info(conn: Connection, args: Mapping[str, Any]) -> dict[str, Any]:
    """What one needs to know to reach a lake from outside, without its secrets."""
    lake = stored.named_lake(conn, args.get("name"))
    with reach(conn, lake) as catalog_conn:
        head = catalog.head(catalog_conn, lake)
        found = overview(catalog_conn, lake, head)
        at_home = catalog.open_lake(catalog_conn, lake.name, lake.schema).data_path
    shown = conninfo_to_dict(lake.dsn) if lake.dsn is not None else {}
    return {
        "name": lake.name,
        "catalog_schema": lake.schema,
        "data_path": lake.data_path,
        "moved": lake.data_path != at_home,
        "encrypted": lake.encrypted,
        "remote": lake.dsn is not None,
        "connection": {key: value for key, value in shown.items() if key in SHOWN},
        "is_default": stored.default_lake_name(conn) == lake.name,
        "store": {key: value for key, value in lake.options.items() if key in stored.HARMLESS},
        "problem": _problem(lake),
        "snapshot": head,
        "tables": sum(each.kind == "table" for each in found),
        "views": sum(each.kind == "view" for each in found),
    }


def tables(conn: Connection, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables and views of a lake as they are now."""
    lake = stored.named_lake(conn, args.get("name"))
    with reach(conn, lake) as catalog_conn:
        return [each.as_json() for each in overview(catalog_conn, lake, catalog.head(catalog_conn, lake))]


def ensure_default(conn: Connection, data_path: str | None, home: Path | None) -> None:
    """Make the default lake of a stack at its first start; afterwards its files stay where they are."""
    wanted = None if data_path is None else checked_data_path(data_path)
    if stored.default_lake_name(conn) is None and (wanted or home):
        path = wanted or checked_data_path(f"{home}/lake")
        with conn.transaction():
            if not _has_catalog(conn, stored.DEFAULT_SCHEMA):
                _create(conn, stored.DEFAULT_SCHEMA, path, encrypted=False)
            lake = catalog.open_lake(conn, stored.DEFAULT_LAKE, stored.DEFAULT_SCHEMA)
            stored.save_lake(conn, lake, is_default=True, maintain_every=MAINTAIN_EVERY)
    if wanted is None:
        return
    known = stored.named_lake(conn, None)
    if known.data_path != wanted:
        raise UserError(
            f"the files of lake {known.name} are in {known.data_path}, not in {wanted}",
            hint="Leave --data-path out. For files in another place attach one more lake: runnel lake attach --create",
        )


def require_engine_rights(conn: Connection, role: str, deed: str) -> None:
    """Refuse roles that could not act as the engine anyway."""
    row = conn.execute("SELECT pg_has_role(%s, current_user, 'MEMBER'), current_user", (role,)).fetchone()
    assert row is not None
    if not row[0]:
        raise UserError(
            f"role {role} may not {deed}",
            hint=f"Only members of the engine's role may: GRANT {row[1]} TO {role}",
            sqlstate="42501",
        )


@contextmanager
def reach(conn: Connection, lake: Lake) -> Iterator[Connection]:
    """A connection to the lake's catalog: this one, or one to its own server that commits when the block ends."""
    if lake.dsn is None:
        yield conn
        return
    other = connect_catalog(lake)
    other.autocommit = False
    with other:
        yield other


def checked_data_path(text: str) -> str:
    """A folder or URL that ends with a slash; relative folders would mean another place for every client."""
    path = text.removeprefix("file://") if text.startswith("file:///") else text
    if not path.startswith("/") and not REMOTE.match(path):
        raise UserError(
            f"{text!r} is not a place for a lake's files",
            hint="Give an absolute folder, or a URL: s3://bucket/path, gs://bucket/path, az://container/path.",
            sqlstate="22023",
        )
    return path if path.endswith("/") else f"{path}/"


def _problem(lake: Lake) -> str | None:
    """Why the engine does not reach a lake's files, as far as a quick look tells."""
    if lake.data_path.startswith("/"):
        return None if Path(lake.data_path).is_dir() else f"there is no folder {lake.data_path}"
    impatient = {"max_retries": "0", "retry_timeout": "3", "timeout": "5", "connect_timeout": "3"}
    try:
        next(open_store(lake.data_path, {**lake.options, **impatient}).list(lake.data_path), None)
    except RunnelError as error:
        return str(error)
    return None


def _create(conn: Connection, schema: str, path: str, encrypted: bool) -> None:
    if path.startswith("/"):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder {path} cannot be made: {error.strerror}") from None
    try:
        create_lake(conn, schema, path, encrypted)
    except psycopg.errors.InsufficientPrivilege as error:
        raise UserError(
            f"the lake's catalog cannot be made: {error.diag.message_primary}",
            hint=f"As an administrator run: CREATE SCHEMA {quote(schema)} AUTHORIZATION {quote(conn.info.user)}",
            sqlstate="42501",
        ) from None


def _has_catalog(conn: Connection, schema: str) -> bool:
    row = conn.execute(
        "SELECT to_regclass(format('%%I.ducklake_metadata', %s::text)) IS NOT NULL", (schema,)
    ).fetchone()
    return bool(row and row[0])


def _checked_name(conn: Connection, name: str) -> str:
    if not name or name.startswith(("pg_", "pgtrickle")) or name in ("public", "information_schema"):
        raise UserError(
            f"{name!r} cannot be the name of a lake",
            hint="It also names a schema of its tables: choose a word of its own.",
            sqlstate="42602",
        )
    if conn.execute("SELECT FROM pgtrickle.pgt_lakes WHERE name = %s", (name,)).fetchone() is not None:
        raise UserError(
            f"there is already a lake {name}", hint="Choose another name, or detach it first.", sqlstate="42710"
        )
    return name


def _require_known(conn: Connection, name: str) -> None:
    """As `load_lake`, but also good for a lake whose secrets are lost."""
    if conn.execute("SELECT FROM pgtrickle.pgt_lakes WHERE name = %s", (name,)).fetchone() is None:
        stored.load_lake(conn, name)


def _texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Options as obstore takes them: words, with true and false in JSON's spelling."""
    texts = {}
    for key, value in (options or {}).items():
        texts[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts
