"""What it takes to bring a project to a database: found without changing anything, and without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from runnel.checks.catalog import load_tests
from runnel.checks.tests import Test, as_set
from runnel.model.names import Name
from runnel.project.duration import build_speed, expected_seconds
from runnel.project.model import OPTIONS, Model
from runnel.project.project import Project

Connection = psycopg.Connection[Any]
Verb = Literal["create", "alter", "rebuild", "rename", "drop", "keep"]

PRESENT = """
SELECT t.pgt_schema, t.pgt_name, t.original_query, t.defining_query, t.schedule, t.refresh_mode, t.status,
       obj_description(t.pgt_relid, 'pg_class'), s.sink, s.mode, s.lake, s.compression, s.delta_export_path,
       s.delta_export_compression,
       t.pgt_id, t.tested, t.settings, pg_get_userbyid(t.owner), t.ducklake_expired, t.cdc_mode,
       (SELECT max(h.end_time - h.start_time) FROM pgtrickle.pgt_refresh_history h
        WHERE h.pgt_id = t.pgt_id AND h.action <> 'DIFFERENTIAL' AND h.status = 'COMPLETED')
FROM pgtrickle.pgt_stream_tables t LEFT JOIN pgtrickle.pgt_sinks s ON s.pgt_id = t.pgt_id
ORDER BY t.pgt_id
"""
UNSAID = {"sink": "none", "ducklake_expired": "fallback", "cdc_mode": "default"}
"""What holds where a stream table was not told."""
# Rows of all tables that a view reads, as PostgreSQL's statistics have them; where there are none yet, by the size.
ROWS_READ = """
SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples
                         WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) / 100 ELSE 0 END), 0)::int8
FROM pg_class c WHERE c.oid IN (
    SELECT d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    WHERE r.ev_class = 'pg_temp.runnel_plan'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid <> r.ev_class)
"""


@dataclass(frozen=True, slots=True)
class Present:
    """A stream table as the database has it."""

    name: Name
    original: str
    canonical: str
    schedule: str
    mode: str
    status: str
    comment: str | None
    options: Mapping[str, str]
    tests: tuple[Test, ...]
    settings: Mapping[str, str]
    """Of the session that defined it."""
    owner: str
    seconds: float | None
    """How long it took to build, if that is still in the history."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step."""

    verb: Verb
    name: Name
    why: str = ""
    rows: int | None = None
    """About how many rows are read again."""
    seconds: float | None = None
    """How long that took the last time; of what is yet to be made, about how long it will take."""
    model: Model | None = None
    before: Present | None = None
    """What is there now, if it is changed."""
    problem: str | None = None
    """Why it will fail, as far as that can be seen now."""


def present(conn: Connection) -> dict[Name, Present]:
    """All stream tables of a database, in the order in which they were made."""
    found = {}
    for row in conn.execute(PRESENT).fetchall():
        schema, name, original, canonical, schedule, mode, status, comment, sink, how, lake, packed = row[:12]
        export_path, export_packed, pgt_id, tested, settings, owner, expired, captured, took = row[12:]
        options = {"sink": sink, "ducklake_sink_mode": how, "ducklake_lake": lake, "ducklake_compression": packed}
        given = {key: str(value) for key, value in options.items() if value} if sink == "ducklake" else {}
        if expired != "fallback":
            given["ducklake_expired"] = expired
        if captured is not None:
            given["cdc_mode"] = captured
        if export_path is not None:
            given |= {"delta_export_path": export_path, "delta_export_compression": export_packed}
        found[Name(schema, name)] = Present(
            name=Name(schema, name),
            original=original,
            canonical=canonical,
            schedule=schedule,
            mode=mode,
            status=status,
            comment=comment,
            options=given,
            tests=tuple(kept.test for kept in load_tests(conn, pgt_id)) if tested else (),
            settings=settings,
            owner=owner,
            seconds=None if took is None else took.total_seconds(),
        )
    return found


def make_plan(conn: Connection, project: Project, *, prune: bool = False) -> list[Change]:
    """The steps in their order; what is as it should be is kept."""
    with conn.transaction(force_rollback=True):
        return _steps(conn, project, prune=prune)


def _steps(conn: Connection, project: Project, *, prune: bool) -> list[Change]:
    there = present(conn)
    speed = build_speed(conn)
    changes: list[Change] = []
    coming: set[Name] = set()
    for model in project.models:
        now = there.get(model.name)
        old = model.renamed_from
        if now is None and old is not None and old in there:
            now = there.pop(old)
            changes.append(Change("rename", model.name, f"was {old}", model=model, before=now))
        changes.append(_compared(conn, model, now, coming, speed))
        if (now is None and not _stands_in(conn, model)) or changes[-1].verb == "rebuild":
            coming.add(model.name)
    if prune:
        wanted = {model.name for model in project.models}
        gone = [name for name in there if name.schema in project.schemas and name not in wanted]
        changes += [Change("drop", name, "no file says what it is", before=there[name]) for name in reversed(gone)]
    return changes


def _compared(conn: Connection, model: Model, now: Present | None, coming: set[Name], speed: float) -> Change:
    canonical, rows, problem = _described(conn, model)
    if now is None:
        # What it reads may be made just before it.
        seconds = expected_seconds(rows, speed)
        return Change("create", model.name, "", rows, seconds, model, problem=None if coming else problem)
    if model.owner not in (None, now.owner):
        problem = f"it belongs to {now.owner}, and an owner stays: drop it first"
        return Change("rebuild", model.name, f"owner {now.owner} -> {model.owner}", rows, None, model, now, problem)
    different = model.query != now.original if canonical is None else canonical != now.canonical
    if different:
        why = "its query is another"
    elif now.status == "ERROR":
        why, different = "it is in ERROR", True
    elif model.mode != now.mode:
        why, different = f"mode {now.mode} -> {model.mode}", True
    if different:
        seconds = now.seconds if now.seconds is not None else expected_seconds(rows, speed)
        return Change("rebuild", model.name, why, rows, seconds, model, now, None if coming else problem)
    said = [f"schedule {now.schedule} -> {model.schedule}"] if model.schedule != now.schedule else []
    for key in OPTIONS:
        wanted, has = model.options.get(key), now.options.get(key)
        if key == "sink":
            wanted = wanted or "none"
        if has is None:
            has = UNSAID.get(key)
        if wanted is not None and wanted != has:
            said.append(f"{key} {has} -> {wanted}")
    if model.description is not None and model.description != now.comment:
        said.append("description")
    if as_set(model.tests) != as_set(now.tests):
        said.append("tests")
    return Change("alter" if said else "keep", model.name, ", ".join(said), model=model, before=now)


def _stands_in(conn: Connection, model: Model) -> bool:
    """Let a view stand for a stream table that is yet to be made, so that queries which read it can be read."""
    schema = sql.Identifier(model.name.schema)
    try:
        with conn.transaction():
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            conn.execute(sql.SQL("SET LOCAL search_path = {}, public").format(schema))
            conn.execute(f"CREATE VIEW {model.name.sql()} AS {model.query}".encode())
    except psycopg.Error:
        # The caller may not, or the query is wrong, which is told elsewhere.
        return False
    return True


def _described(conn: Connection, model: Model) -> tuple[str | None, int | None, str | None]:
    """A query as PostgreSQL prints it, the rows that it reads, and what is wrong with it; all is rolled back."""
    path = sql.SQL("SET LOCAL search_path = {}, public").format(sql.Identifier(model.name.schema))
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(path)
            conn.execute(f"CREATE TEMP VIEW runnel_plan AS {model.query}".encode())
            conn.execute("SET LOCAL search_path = pg_catalog, pg_temp")
            row = conn.execute("SELECT pg_get_viewdef('pg_temp.runnel_plan'::regclass)").fetchone()
            read = conn.execute(ROWS_READ).fetchone()
            assert row is not None and read is not None  # noqa: PT018
            return str(row[0]).strip().rstrip(";"), int(read[0]), None
    except psycopg.Error as error:
        return None, None, error.diag.message_primary or str(error)
