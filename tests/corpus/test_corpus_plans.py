"""Every case is planned in the mode it claims, and its core SQL means the same in PostgreSQL. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from runnel.errors import UserError
from runnel.plan import expr as ex
from runnel.server.embedded import EmbeddedServer
from runnel.sql.compile import Compiled, compile_query
from runnel.sql.describe import describe, qualified, scratch
from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import decide, to_core
from runnel.sql.stages import Compiler
from tests.conftest import TEMPLATE
from tests.corpus.cases import Case, Topic, load, topics
from tests.corpus.compare import difference
from tests.corpus.databases import without_engine
from tests.sampling import sampled


@pytest.mark.parametrize("path", sampled(topics(), every=4), ids=lambda path: path.stem)
def test_every_case_is_planned_as_it_says(path: Path, server: EmbeddedServer) -> None:
    topic = load(path)
    failures: list[str] = []
    with without_engine(server, topic, TEMPLATE) as (db, topic):
        core: list[tuple[Case, str, str]] = []
        for case in topic.maintained:
            said, compiled = _plan(db, case)
            if said:
                failures.append(f"{topic.name}.sql:{case.line}: {case.name}: {said}")
            elif compiled is not None and compiled.plan is not None:
                query = compiled.description.canonical.rstrip(";")
                core.append((case, query, _core(db, query)))
        failures += _differences(db, topic, core)
    assert not failures, "\n\n".join(["", *failures])


def _plan(db: psycopg.Connection, case: Case) -> tuple[str | None, Compiled | None]:
    """What is wrong with a case's plan, if anything."""
    try:
        compiled = compile_query(db, case.query, settings={})
    except UserError as error:
        return f"refused: {error}", None
    if case.full_because is None:
        return (None if compiled.plan else f"not maintained by deltas: {compiled.reason}"), compiled
    if compiled.plan is not None:
        return "maintained by deltas, so it is not FULL", compiled
    return (None if case.full_because in str(compiled.reason) else f"FULL because {compiled.reason}"), compiled


def _core(db: psycopg.Connection, query: str) -> str:
    """The query after all rewrites, as text."""
    with scratch(db, {}, None) as asking:
        compiler = Compiler(qualified(asking))
        tree = parse_query(describe(asking, query).canonical)
        assert tree is not None
        try:
            return ex.pg(to_core(decide(compiler.inline_views(tree), compiler.context), compiler.context))
        except NotDifferentiable as refusal:
            pytest.fail(f"planned, but without core SQL: {refusal}")


def _differences(db: psycopg.Connection, topic: Topic, core: list[tuple[Case, str, str]]) -> list[str]:
    """Cases whose core SQL has another answer than the query, before or after a change."""
    found: list[str] = []
    for change in [None, *topic.changes]:
        if change is not None:
            db.execute(change.sql.encode())
        moment = f"after line {change.line}" if change else "at first"
        for case, query, text in core:
            where = f"{topic.name}.sql:{case.line}: {case.name}: core SQL differs {moment}"
            try:
                differs = difference(db, text, query)
            except psycopg.Error as error:
                found.append(f"{where}: {error}\n{text}")
                continue
            if differs:
                found.append(f"{where}\n{differs}\n{text}")
    return found
