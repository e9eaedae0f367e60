"""Bring a project to a database, all of it or nothing, as far as that can be.

The engine answers in transactions of its own, so the steps are not one transaction. Instead:

1. nothing is begun that is known to fail: PostgreSQL has read each query, and the engine those whose tables are there;
2. steps are done in order of dependency, then tests are set, since they may look at any of the tables;
3. when one of these fails, those before it are undone, the last one first: what was created is dropped, what was
   renamed gets its name back, what was altered or rebuilt is brought back to the definition that it had, by another
   rebuild;
4. only then are stream tables dropped. A drop is not undone, and one that fails undoes nothing.

Whoever would rather not lose an hour of building says so (`keep`): what was done stays, and the next `apply` goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from runnel.checks.tests import Test, as_set
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.project.model import OPTIONS
from runnel.project.plan import UNSAID, Change, Present
from runnel.project.project import reads

Connection = psycopg.Connection[Any]
Report = Callable[[Change], None]


@dataclass
class Steps:
    """What is done, and how it would be undone."""

    conn: Connection
    undoing: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def undo(self) -> list[str]:
        """Undo all, the last one first; what could not be undone, and why."""
        left = []
        for what, act in reversed(self.undoing):
            try:
                act()
            except psycopg.Error as error:
                left.append(f"{what} ({error.diag.message_primary or str(error).splitlines()[0]})")
        return left

    # -- steps ---------------------------------------------------------------------------------------------

    def validate(self, change: Change) -> None:
        """Let the engine read a query whose tables are all there; raises what is wrong with it."""
        assert change.model is not None
        with self._session(change.model.owner, self._path(change.model.name)):
            self.conn.execute("SELECT count(*) FROM pgtrickle.validate_query(%s)", (change.model.query,))

    def do(self, change: Change) -> None:
        """One step; what fails in the middle of it is undone with the rest."""
        model, before = change.model, change.before
        assert model is not None
        if change.verb == "rename":
            assert before is not None
            move(self.conn, before.name, model.name)
            self.undoing.append((f"rename {before.name}", lambda: move(self.conn, model.name, before.name)))
            return
        if before is not None:
            self.undoing.append((f"{change.verb} {change.name}", lambda: self._restore(model.name, before)))
        else:
            self._make_schema(model.name.schema)
        path = self._path(model.name)
        self._define(model.name, model.query, model.schedule, model.mode, model.options, model.owner, path)
        if before is None:
            self.undoing.append((f"create {change.name}", lambda: self._drop(model.name)))
        if model.description is not None:
            self._comment(model.name, model.description)

    def set_tests(self, change: Change) -> Sequence[Mapping[str, Any]]:
        """Set the tests of a stream table, if others are set now; what they found."""
        model, before = change.model, change.before
        if model is None or as_set(model.tests) == as_set(before.tests if before else ()):
            return []
        if before is not None:
            undo = lambda: self._tests(model.name, before.tests, before.owner)  # noqa: E731
            self.undoing.append((f"tests of {change.name}", undo))
        return self._tests(model.name, model.tests, model.owner)

    def drop(self, change: Change) -> None:
        """Drop what no file speaks of."""
        self._drop(change.name)

    def _path(self, name: Name) -> dict[str, str]:
        """Names without a schema are looked for where the file's table is, then in `public`."""
        return {"search_path": f"{sql.Identifier(name.schema).as_string(self.conn)}, public"}

    # -- details -------------------------------------------------------------------------------------------

    def _define(
        self,
        name: Name,
        query: str,
        schedule: str,
        mode: str,
        options: Mapping[str, str],
        owner: str | None,
        settings: Mapping[str, str],
    ) -> None:
        chosen = {key: options[key] for key in OPTIONS if key in options}
        chosen.setdefault("sink", "none")
        given = {"name": name.sql(), "query": query, "schedule": schedule, "refresh_mode": mode, **chosen}
        call = sql.SQL("SELECT pgtrickle.create_or_replace_stream_table({})").format(
            sql.SQL(", ").join(sql.SQL("{} => {}").format(sql.Identifier(key), sql.Placeholder(key)) for key in given)
        )
        with self._session(owner, settings):
            self.conn.execute(call, given)

    def _restore(self, name: Name, before: Present) -> None:
        """Bring a stream table back to the definition that it had."""
        options = {**UNSAID, **before.options}
        self._define(name, before.original, before.schedule, before.mode, options, before.owner, before.settings)
        self._comment(name, before.comment)

    def _tests(self, name: Name, tests: Sequence[Test], owner: str | None) -> Sequence[Mapping[str, Any]]:
        entries = [{**test.as_json(), "on_violation": test.on_violation} for test in tests]
        with self._session(owner, {}):
            found = self.conn.execute("SELECT pgtrickle.set_tests(%s, %s)", (name.sql(), Jsonb(entries))).fetchone()
        return found[0] or [] if found else []

    def _drop(self, name: Name) -> None:
        self.conn.execute("SELECT pgtrickle.drop_stream_table(%s)", (name.sql(),))

    def _comment(self, name: Name, text: str | None) -> None:
        comment = sql.SQL("COMMENT ON TABLE {} IS {}")
        self.conn.execute(comment.format(sql.Identifier(name.schema, name.name), sql.Literal(text)))

    def _make_schema(self, schema: str) -> None:
        if self.conn.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,)).fetchone() == (None,):
            self.conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            gone = sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema))
            self.undoing.append((f"schema {schema}", lambda: self.conn.execute(gone)))

    @contextmanager
    def _session(self, owner: str | None, settings: Mapping[str, str]) -> Iterator[None]:
        """As a role, with the settings that its definitions are read under."""
        try:
            for key, value in settings.items():
                self.conn.execute("SELECT set_config(%s, %s, false)", (key, value))
            if owner is not None:
                self.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(owner)))
            yield
        finally:
            if not self.conn.closed:
                self.conn.execute("RESET ROLE")
                for key in settings:
                    self.conn.execute(sql.SQL("RESET {}").format(sql.Identifier(key)))


def apply(
    conn: Connection,
    changes: Sequence[Change],
    report: Report,
    tell: Callable[[str], None] = lambda _: None,
    *,
    keep: bool = False,
) -> int:
    """Do what a plan says; how many steps that were."""
    _refuse_problems(changes)
    steps = Steps(conn)
    wanted = [change for change in changes if change.verb not in ("keep", "drop")]
    _validate(steps, wanted)
    change: Change | None = None
    try:
        for change in wanted:
            steps.do(change)
            report(change)
        for change in wanted:
            for found in steps.set_tests(change):
                if found["status"] != "ok":
                    tell(f"  ✗ {change.name}: {found['test']}: {found['problem'] or found['violations']}")
    except (psycopg.Error, KeyboardInterrupt) as error:
        assert change is not None
        outcome = _kept(steps) if keep else _undone(steps)
        if not isinstance(error, psycopg.Error):
            tell(outcome)
            raise
        raise _failed(change, error, outcome) from error
    drops = [change for change in changes if change.verb == "drop"]
    for change in drops:
        try:
            steps.drop(change)
        except psycopg.Error as error:
            raise _failed(change, error, "All else is done; the next apply --prune goes on.") from error
        report(change)
    return len(wanted) + len(drops)


def _refuse_problems(changes: Sequence[Change]) -> None:
    wrong = [change for change in changes if change.problem]
    if wrong:
        said = "; ".join(f"{change.verb} {change.name}: {change.problem}" for change in wrong)
        raise UserError(f"{said}. Nothing was changed.", hint="`runnel plan` shows this, too.")


def _validate(steps: Steps, changes: Sequence[Change]) -> None:
    new = {change.name for change in changes if change.verb in ("create", "rebuild")}
    for change in changes:
        if change.name in new and change.model is not None and not reads(change.model, new):
            try:
                steps.validate(change)
            except psycopg.Error as error:
                raise _failed(change, error, "Nothing was changed.") from error


def _undone(steps: Steps) -> str:
    left = steps.undo()
    if not left:
        return "What was done before is undone: all is as it was."
    return f"Not undone: {', '.join(left)}. The next apply goes on from there."


def _kept(steps: Steps) -> str:
    done = ", ".join(what for what, _ in steps.undoing) or "nothing"
    return f"Done so far: {done}. It stays, and the next apply goes on from there."


def _failed(change: Change, error: psycopg.Error, outcome: str) -> UserError:
    return UserError(
        f"{change.verb} {change.name}: {error.diag.message_primary or error}. {outcome}",
        hint=error.diag.message_hint,
        detail=error.diag.message_detail,
        sqlstate=error.sqlstate or "XX000",
    )


def move(conn: Connection, old: Name, new: Name) -> None:
    """Another name: the engine follows a table that is renamed or moved, and rebuilds nothing."""
    with conn.transaction():
        if old.schema != new.schema:
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(new.schema)))
            moved = sql.SQL("ALTER TABLE {} SET SCHEMA {}")
            conn.execute(moved.format(sql.Identifier(old.schema, old.name), sql.Identifier(new.schema)))
        if old.name != new.name:
            here = sql.Identifier(new.schema, old.name)
            conn.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(here, sql.Identifier(new.name)))
