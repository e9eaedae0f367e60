"""Run the owner's SQL with the owner's rights, and with no way back to more.

Expressions of a query, casts to a user's type, triggers, policies, index expressions: whatever an ordinary role can
hang on its objects may run while a stream table is described, read, merged, applied, verified or published. `SET ROLE`
does not hold such code, since `set_config('role', 'none', false)` undoes it. So the engine does not run these
statements itself. It hands their text to a function that belongs to the owner and is SECURITY DEFINER:

    SELECT t.* FROM (SELECT CASE WHEN concat(set_config('session_authorization', 'guest', true), ..) IS NOT NULL
                                 THEN 10 END::oid) AS s (engine),
           LATERAL pgtrickle_run.rows_16400('SELECT ..', s.engine) AS t (c0 int8, c1 text)

Inside, PostgreSQL refuses to change `role` and `session_authorization`, however deep the code is nested. `current_user`
is the owner, and so is `session_user` where the engine is a superuser. The functions live in a schema that only the
engine may use, so their owner can neither call nor alter them. What crosses the border outwards has built-in types
only: no owner's code runs in an output function. Nor does any run at COMMIT: deferred triggers fire before the function
returns, and it does not return while one is left (`_LAST`).

Afterwards the session is put in order (`TIDY`): settings, cursors that would run at COMMIT, prepared statements and
LISTEN do not reach the engine's next statement. The engine itself prepares no statements on such a session.

Tables of the engine's own role need none of this: their statements are executed as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql as psql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from runnel.errors import UserError
from runnel.model.names import array_literal
from runnel.model.versions import Version, version_of

SCHEMA = "pgtrickle_run"
PINNED_PATH = "pg_catalog, pg_temp"
_MARK = "pgt_mark"

TIDY = "RESET SESSION AUTHORIZATION; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; RESET ALL"
"""Undo what foreign code may leave in a session. Plain ASCII without literals: no setting changes how it is read."""

_LAST = """
    SET CONSTRAINTS ALL IMMEDIATE;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR temporary IN
        SELECT c.oid::regclass FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
          AND d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p') AND c.relowner <> engine
    LOOP
        EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', temporary);
    END LOOP;
    BEGIN
        SET LOCAL transaction_read_only = on;
        SET CONSTRAINTS ALL IMMEDIATE;
    EXCEPTION WHEN read_only_sql_transaction THEN
        RAISE EXCEPTION 'a deferred trigger may not put off its work again' USING ERRCODE = 'insufficient_privilege',
            DETAIL = format('It was fired and wrote with its constraints deferred once more: %s.', SQLERRM),
            HINT = 'Take SET CONSTRAINTS .. DEFERRED out of the code behind the stream table.';
    END;
"""
"""What deferred triggers have left to do is done here, with the owner's rights, and nothing is left to COMMIT.

There PostgreSQL would fire them in the engine's session: before version 18 as the engine, since then with the role that
queued them, but a cursor WITH HOLD that such a trigger opens runs as the engine all the same. The first pass fires what
is deferred. Code that defers again meets the second, in which nothing can be written, so that nothing can be queued.
Temporary tables could be written even there, hence they go in between. A subtransaction takes its `read only` with it.
"""
_ROWS = """
DECLARE
    temporary regclass;
BEGIN
    RETURN QUERY EXECUTE statement;
    {last}
END
"""
_RUN = """
DECLARE
    affected bigint;
    temporary regclass;
BEGIN
    EXECUTE statement;
    GET DIAGNOSTICS affected = ROW_COUNT;
    {last}
    RETURN affected;
END
"""
_EACH = """
DECLARE
    one text;
    affected bigint;
    counts bigint[] := '{{}}';
    temporary regclass;
BEGIN
    FOREACH one IN ARRAY statement::text[] LOOP
        EXECUTE one;
        GET DIAGNOSTICS affected = ROW_COUNT;
        counts := counts || affected;
    END LOOP;
    {last}
    RETURN counts;
END
"""
_KINDS = tuple(
    (kind, result, source.format(last=_LAST.strip()))
    for kind, result, source in (("rows", "SETOF record", _ROWS), ("run", "bigint", _RUN), ("each", "bigint[]", _EACH))
)
"""Name, result and source of each function."""


@dataclass(frozen=True, slots=True)
class Runner:
    """The functions through which a role's SQL runs; plain data, so that it can be put into statements for tasks."""

    role: str
    oid: int
    assumes: bool
    """Whether the session takes on the role, too: only a superuser's session can."""
    engine: int
    """The engine's own role, by its OID: whose temporary tables stay."""

    def rows_sql(self, text: str, types: Sequence[str], settings: Mapping[str, str], *, writes: bool = False) -> str:
        """A SELECT of the engine's with the rows of the owner's SELECT, in these built-in types.

        A statement that `writes` and returns rows has these types already: PostgreSQL takes it only as it is.
        """
        columns = [f"c{i}" for i in range(len(types))]
        inner = text if writes else _cast_sql(text, types)
        shape = ", ".join(f"{c} {t}" for c, t in zip(columns, types, strict=True))
        return f"SELECT t.* FROM {self._call('rows', inner, settings)} AS t ({shape})"

    def run_sql(self, text: str, settings: Mapping[str, str]) -> str:
        """A SELECT of the engine's that runs a statement of the owner's and gives the number of rows it touched."""
        return f"SELECT t.affected FROM {self._call('run', text, settings)} AS t (affected)"

    def each_sql(self, texts: Sequence[str], settings: Mapping[str, str]) -> str:
        """The same for several statements, one after the other: an array of numbers of rows."""
        # Each finds the settings as they should be, whatever code that ran in the one before has left.
        again = f"SELECT {_set_configs(settings)}; " if settings else ""
        statements = array_literal([again + text for text in texts])
        return f"SELECT t.affected FROM {self._call('each', statements, settings)} AS t (affected)"

    def _call(self, kind: str, text: str, settings: Mapping[str, str]) -> str:
        # The function's argument depends on the settings, so they are made before it is called. The session's role is
        # the last: from there on nothing is looked up any more, so the owner needs no right to the schema.
        wanted = {**settings, **({"session_authorization": self.role} if self.assumes else {})}
        done = f"pg_catalog.concat({_set_configs(wanted) or 'NULL'}) IS NOT NULL"
        argument = f"(SELECT CASE WHEN {done} THEN {self.engine} END::oid OFFSET 0) AS s (engine)"
        return f"{argument}, LATERAL {SCHEMA}.{kind}_{self.oid}({literal(text)}, s.engine)"


@dataclass
class AsOwner:
    """One role's SQL on a connection, inside the caller's transaction."""

    conn: psycopg.Connection[Any]
    runner: Runner | None
    """None: the engine's own role."""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def server(self) -> Version:
        """What the server of this connection can."""
        return version_of(self.conn.info.server_version)

    def under(self, settings: Mapping[str, str]) -> AsOwner:
        """The same role under other settings."""
        return replace(self, settings=settings)

    @contextmanager
    def at_work(self) -> Iterator[AsOwner]:
        """Put this around statements: those of the engine's own role find the settings in the transaction."""
        if self.runner is None:
            self.apply_settings()
        yield self
        if self.runner is None and self.conn.info.transaction_status != psycopg.pq.TransactionStatus.INERROR:
            self.conn.execute("RESET ALL")

    def apply_settings(self) -> None:
        """Give the running transaction the settings."""
        if self.settings:
            self.conn.execute(self.pinning.encode())

    def pin(self) -> None:
        """After a statement that changed a setting on its way: in a call of the owner's it is gone already."""
        if self.runner is None:
            self.apply_settings()

    @property
    def pinning(self) -> str:
        """The same as a statement."""
        return f"SELECT {_set_configs(self.settings) or 'NULL'}"

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> int:
        """Run a statement; the number of rows it touched. With parameters, percent signs are doubled."""
        if self.runner is None:
            return self.conn.execute(text.encode(), params).rowcount
        row = self._fetch(self.runner.run_sql(self.merged(text, params), self.settings))[0]
        return int(row[0])

    def run_each(self, texts: Sequence[str], *, ask: str = "SELECT NULL") -> tuple[Any, list[int]]:
        """Run statements one after the other in one round trip: a value, and how many rows each statement touched.

        The value is the engine's own question, asked before: a SELECT in which no code of the owner's can run.
        """
        if self.runner is not None:
            cursor = self.conn.execute(f"{ask}; {self.runner.each_sql(texts, self.settings)}; {TIDY}".encode())
            (value,) = cursor.fetchone() or (None,)
            cursor.nextset()
            (counts,) = cursor.fetchone() or ([],)
            return value, [int(n) for n in counts]
        cursor = self.conn.execute("; ".join([ask, *texts]).encode())
        (value,) = cursor.fetchone() or (None,)
        return value, [cursor.rowcount for _ in texts if cursor.nextset()]

    def rows(self, text: str, types: Sequence[str], *, writes: bool = False) -> list[tuple[Any, ...]]:
        """The rows of a SELECT, whose columns are read in these built-in types, or of a statement that `writes`."""
        if self.runner is None:
            return self.conn.execute(text.encode()).fetchall()
        return self._fetch(self.runner.rows_sql(text, types, self.settings, writes=writes))

    def value(self, text: str, type_: str) -> Any:
        """The single value of a SELECT."""
        (row,) = self.rows(text, [type_])
        return row[0]

    def csv(
        self, text: str, types: Sequence[str], params: Mapping[str, Any] | None = None, *, writes: bool = False
    ) -> Iterator[bytes]:
        """The rows of a SELECT, or of a statement that `writes`, as COPY prints them in CSV. To be read to its end."""
        copying = self._copying(self.select_sql(self.merged(text, params), types, writes=writes))
        with self.conn.cursor() as cursor, cursor.copy(copying) as copy:
            for chunk in copy:
                yield bytes(chunk)
        if self.runner is not None:
            self.tidy()

    def csv_text(self, text: str, types: Sequence[str], params: Mapping[str, Any] | None = None) -> bytes:
        """The rows of a SELECT in one piece, for few of them: to hand over each takes psycopg longer than to get it."""
        copying = self._copying(self.select_sql(self.merged(text, params), types))
        with self.conn.lock:
            whole = _copied(self.conn.pgconn, copying)
        if self.runner is not None:
            self.tidy()
        return whole

    def _copying(self, select: str) -> bytes:
        # A COPY cannot be sent along with TIDY. On its own it would commit, and with it run what code has left behind.
        if self.runner is not None and self.conn.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
            raise RuntimeError("rows of an owner's SELECT are copied inside a transaction")
        return f"COPY ({select}\n) TO STDOUT (FORMAT csv)".encode()

    def tidy(self) -> None:
        """The engine is itself again, whatever has run."""
        self.conn.execute(TIDY)

    def select_sql(self, text: str, types: Sequence[str], *, writes: bool = False) -> str:
        """A SELECT for a session of its own (a task's), which ends with it."""
        return text if self.runner is None else self.runner.rows_sql(text, types, self.settings, writes=writes)

    def typed_select_sql(self, text: str, params: Mapping[str, Any] | None, types: Sequence[str]) -> str:
        """The same with its parameters written into it, and its columns in exactly these types."""
        merged = self.merged(text, params)
        return _cast_sql(merged, types) if self.runner is None else self.select_sql(merged, types)

    def merged(self, text: str, params: Mapping[str, Any] | None) -> str:
        """A statement with its parameters written into it."""
        return text if params is None else psycopg.ClientCursor(self.conn).mogrify(text, params)

    def _fetch(self, select: str) -> list[tuple[Any, ...]]:
        # One round trip: the server has read all of it before the first part runs.
        return self.conn.execute(f"{select}; {TIDY}".encode()).fetchall()


def mark_session(conn: psycopg.Connection[Any]) -> None:
    """Note that a session has temporary tables of the engine's, for `sweep` to find."""
    conn.execute("SET LOCAL client_min_messages = error")
    conn.execute(f"CREATE TEMP TABLE IF NOT EXISTS {_MARK} ()")
    conn.execute("SET LOCAL client_min_messages = DEFAULT")


def sweep(conn: psycopg.Connection[Any]) -> None:
    """Before COMMIT: drop the temporary objects of others; the engine's own must still be there."""
    row = conn.execute(f"SELECT pgtrickle._sweep_temporary(), to_regclass('pg_temp.{_MARK}') IS NOT NULL").fetchone()
    if row is None or not row[1]:
        raise UserError(
            "its code dropped the engine's temporary tables",
            hint="A function, trigger or policy behind the stream table runs DISCARD TEMP: take that out.",
            sqlstate="42501",
        )


def settle(conn: psycopg.Connection[Any]) -> None:
    """After a transaction, whatever became of it: what a rollback does not undo."""
    conn.execute(f"{TIDY}; SELECT pg_catalog.pg_advisory_unlock_all()")


def as_owner(conn: psycopg.Connection[Any], role: str, settings: Mapping[str, str] | None = None) -> AsOwner:
    """The way to run a role's SQL on a connection of the engine's; its functions are made if they are missing."""
    row = conn.execute(
        "SELECT r.oid::int8, r.rolname = current_user, s.rolsuper, current_user::regrole::oid::int8, "
        "(SELECT count(*) FROM pg_proc p WHERE p.pronamespace = %(schema)s::regnamespace AND p.proowner = r.oid "
        " AND p.prosecdef AND p.proname = ANY(SELECT k || '_' || r.oid::text FROM unnest(%(kinds)s::text[]) k) "
        " AND p.proargtypes = '25 26'::oidvector AND p.prosrc = ANY(%(sources)s)) "
        "FROM pg_roles r, pg_roles s WHERE r.rolname = %(role)s AND s.rolname = session_user",
        {
            "schema": SCHEMA,
            "kinds": [kind for kind, _, _ in _KINDS],
            "sources": [source for _, _, source in _KINDS],
            "role": role,
        },
    ).fetchone()
    if row is None:
        raise UserError(f'role "{role}" does not exist', sqlstate="42704")
    oid, own, superuser, engine, functions = row
    if own:
        return AsOwner(conn, None, settings or {})
    runner = Runner(role, int(oid), bool(superuser), int(engine))
    if functions < len(_KINDS):
        _create_functions(conn, runner)
    return AsOwner(conn, runner, settings or {})


def _create_functions(conn: psycopg.Connection[Any], runner: Runner) -> None:
    with conn.transaction():
        role = psql.Identifier(runner.role)
        schema = psql.Identifier(SCHEMA)
        # Only within this transaction: a role can be given a function only in a schema where it may create some.
        conn.execute(psql.SQL("GRANT CREATE ON SCHEMA {} TO {}").format(schema, role))
        for kind, result, source in _KINDS:
            name = psql.SQL("{}.{}(text, oid)").format(schema, psql.Identifier(f"{kind}_{runner.oid}"))
            conn.execute(psql.SQL("DROP FUNCTION IF EXISTS {}").format(name))
            conn.execute(
                psql.SQL(
                    "CREATE FUNCTION {}(statement text, engine oid) RETURNS {} LANGUAGE plpgsql SECURITY DEFINER AS {}"
                ).format(psql.Identifier(SCHEMA, f"{kind}_{runner.oid}"), psql.SQL(result), psql.Literal(source))
            )
            # The schema is the door, and it is closed. A right of the engine's would not outlive the next statement.
            conn.execute(psql.SQL("GRANT EXECUTE ON FUNCTION {} TO PUBLIC").format(name))
            conn.execute(psql.SQL("ALTER FUNCTION {} OWNER TO {}").format(name, role))
        conn.execute(psql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, role))


def _copied(connection: PGconn, statement: bytes) -> bytes:
    """What a COPY prints."""
    rows = []
    result = connection.exec_(statement)
    if result.status == ExecStatus.COPY_OUT:
        while (row := connection.get_copy_data(0))[0] > 0:
            rows.append(row[1])
        results = []
        while (after := connection.get_result()) is not None:
            results.append(after)
        result = next((r for r in results if r.status != ExecStatus.COMMAND_OK), results[-1])
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    return b"".join(rows)


def _cast_sql(text: str, types: Sequence[str]) -> str:
    """A SELECT with its columns in these types."""
    columns = [f"c{i}" for i in range(len(types))]
    casts = ", ".join(f"q.{c}::{t}" for c, t in zip(columns, types, strict=True))
    return f"SELECT {casts} FROM ({text}\n) AS q ({', '.join(columns)})"


def _set_configs(settings: Mapping[str, str]) -> str:
    return ", ".join(f"pg_catalog.set_config({literal(k)}, {literal(v)}, true)" for k, v in settings.items())


def literal(text: str) -> str:
    r"""A string constant that PostgreSQL reads alike whatever `standard_conforming_strings` says.

    >>> literal("it's"), literal("a\\b").strip()
    ("'it''s'", "E'a\\\\b'")
    """
    return psql.Literal(text).as_string()
