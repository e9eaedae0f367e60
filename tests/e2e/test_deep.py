"""Deep and long queries: maintained, or FULL with a reason, or refused in PostgreSQL's own words. Never a crash."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError, UserError
from runnel.sql.compile import compile_query

TOO_MUCH = "too deep or too long"


def nested(levels: int) -> dict[str, str]:
    """One query per way to nest."""
    return {
        "concatenated": f"SELECT id, {' || '.join(['name'] * levels)} AS x FROM t",
        "added": f"SELECT id, {' + '.join(['id'] * levels)} AS x FROM t",
        "cases": f"SELECT id, {'CASE WHEN id = 1 THEN 0 ELSE ' * levels}id{' END' * levels} AS x FROM t",
        "parentheses": f"SELECT {'(' * levels}id{')' * levels} AS id FROM t",
        "calls": f"SELECT {'abs(' * levels}id{')' * levels} AS x FROM t",
        "conditions": f"SELECT id FROM t WHERE {' AND '.join(f'id <> {-i}' for i in range(1, levels))}",
        "alternatives": f"SELECT id FROM t WHERE {' OR '.join(f'id = {i}' for i in range(levels))}",
        "derived tables": f"SELECT id FROM {'(SELECT id FROM ' * levels}t{') x' * levels}",
        "subqueries": f"SELECT id FROM t WHERE {'id IN (SELECT id FROM t WHERE ' * levels}true{')' * levels}",
    }


MAINTAINED = {"concatenated", "added", "cases", "parentheses", "calls", "conditions", "alternatives"}
FLAT = {"parentheses", "conditions", "alternatives"}
"""PostgreSQL itself makes these flat."""


@pytest.fixture
def table(db: psycopg.Connection) -> psycopg.Connection:
    db.execute("CREATE TABLE t (id int, name text)")
    db.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    return db


@pytest.mark.parametrize("name", nested(1))
@pytest.mark.parametrize("levels", [90, 400])
def test_levels_of_nesting(table: psycopg.Connection, name: str, levels: int) -> None:
    compiled = compile_query(table, nested(levels)[name], settings={})
    assert (compiled.plan is not None) == (name in (FLAT if levels == 400 else MAINTAINED))
    if compiled.plan is None:
        assert TOO_MUCH in str(compiled.reason)
        assert [r.name.name for r in compiled.relations] == ["t"]


@pytest.mark.parametrize("name", nested(1))
def test_5000_levels(table: psycopg.Connection, name: str) -> None:
    try:
        compiled = compile_query(table, nested(5000)[name], settings={})
    except UserError as error:
        # PostgreSQL's grammar has a limit of its own.
        assert "memory exhausted" in error.message or "stack depth limit" in error.message
    else:
        assert compiled.plan is not None or TOO_MUCH in str(compiled.reason)


@pytest.mark.slow
def test_deep_stream_tables(client: runnel.Client, table: psycopg.Connection, check: Callable[..., None]) -> None:
    for name in ("concatenated", "cases"):
        client.create_stream_table(name, nested(90)[name], refresh_mode="DIFFERENTIAL")
        client.explain(name)
    client.create_stream_table("deeper", nested(400)["concatenated"])
    with pytest.raises(RunnelError, match="stack depth limit exceeded"):
        client.create_stream_table("deepest", nested(50_000)["concatenated"])
    table.execute("INSERT INTO t VALUES (4, 'd'); UPDATE t SET name = 'c' WHERE id = 3; DELETE FROM t WHERE id = 1")
    check("concatenated", "cases", "deeper")
    modes = {each.name: each.effective_mode for each in client.status()}
    assert modes == {"concatenated": "DIFFERENTIAL", "cases": "DIFFERENTIAL", "deeper": "FULL"}


def test_what_postgres_cannot_evaluate_is_told_to_the_caller_alone(
    table: psycopg.Connection, client: runnel.Client
) -> None:
    table.execute("CREATE TABLE other (v int)")
    client.create_stream_table("undisturbed", "SELECT sum(v) AS s FROM other", schedule="@yearly")
    with pytest.raises(RunnelError, match="stack depth limit exceeded"):
        client.create_stream_table("too_deep", nested(5000)["concatenated"], schedule="@yearly")
    table.execute("INSERT INTO other VALUES (1)")
    assert client.verify("undisturbed").ok
