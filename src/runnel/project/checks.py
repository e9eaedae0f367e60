"""`runnel test`: what the headers promise, looked at now and in whole, with the caller's rights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from runnel.checks.statements import Target, whole_sql
from runnel.errors import UserError
from runnel.project.model import Model
from runnel.project.project import Project
from runnel.sql.describe import relation_columns


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a test found."""

    model: str
    test: str
    violations: int


def run_checks(conn: psycopg.Connection[Any], project: Project) -> Iterator[Outcome]:
    """All tests of all stream tables, in one snapshot each."""
    for model in project.models:
        if model.tests:
            target = _target(conn, model)
            for test in model.tests:
                yield Outcome(str(model.name), test.name, _counted(conn, model, whole_sql(target, test)))


def _counted(conn: psycopg.Connection[Any], model: Model, select: str) -> int:
    path = sql.SQL("SET LOCAL search_path = {}, public").format(sql.Identifier(model.name.schema))
    with conn.transaction(force_rollback=True):
        conn.execute(path)
        row = conn.execute(select.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _target(conn: psycopg.Connection[Any], model: Model) -> Target:
    row = conn.execute("SELECT to_regclass(%s)::oid::int8", (model.name.sql(),)).fetchone()
    if row is None or row[0] is None:
        raise UserError(f"There is no {model.name} in the database.", hint="Bring it there with: runnel apply DIR")
    return Target(0, model.name, relation_columns(conn, row[0]))
