"""Random histories: transactions over several tables, rollbacks, savepoints, and one that commits late."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.oracle.expressions import predicate
from tests.oracle.scenario import LATE
from tests.oracle.tables import Table, rows
from tests.oracle.values import Col, chance, pick, value


def history(draw: st.DrawFn, tables: Sequence[Table], most_steps: int) -> list[list[str]]:
    """Steps of statements; a verification follows each of them."""
    count = draw(st.integers(1, most_steps))
    steps = [_step(draw, tables) for _ in range(count)]
    if chance(draw, 25):
        _add_late(draw, tables, steps)
    return steps


def _step(draw: st.DrawFn, tables: Sequence[Table]) -> list[str]:
    statements: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = pick(draw, ["alone", "alone", "together", "savepoint", "rolled back"])
        if shape == "alone":
            statements.append(_statement(draw, tables))
            continue
        body = [_statement(draw, tables) for _ in range(draw(st.integers(1, 3)))]
        if shape == "savepoint":
            body += ["SAVEPOINT s", _statement(draw, tables, truncate=False)]
            body += [pick(draw, ["ROLLBACK TO s", "RELEASE s"]), _statement(draw, tables)]
        statements += ["BEGIN", *body, "ROLLBACK" if shape == "rolled back" else "COMMIT"]
    return statements


def _add_late(draw: st.DrawFn, tables: Sequence[Table], steps: list[list[str]]) -> None:
    """A transaction on a second connection: begun at one step, committed at a later one or after the last."""
    begin = draw(st.integers(0, len(steps) - 1))
    end = draw(st.integers(begin, len(steps)))
    opening = [LATE + "BEGIN"]
    opening += [LATE + _statement(draw, tables, first_key=100, truncate=False) for _ in range(draw(st.integers(1, 2)))]
    # Before the step's other statements, so that its transaction is the older one.
    steps[begin][:0] = opening
    if end < len(steps):
        more = [LATE + _statement(draw, tables, first_key=110, truncate=False)] if end > begin else []
        steps[end] += [*more, LATE + pick(draw, ["COMMIT", "COMMIT", "ROLLBACK"])]


def _statement(draw: st.DrawFn, tables: Sequence[Table], *, first_key: int | None = None, truncate: bool = True) -> str:
    table = pick(draw, tables)
    shapes = ["insert", "update", "delete", "insert", "update", "key", "move", "upsert", "merge"]
    if truncate:
        shapes += ["truncate"]
    columns = table.writable
    match pick(draw, shapes):
        case "update":
            return f"UPDATE {table.name} SET {_assignment(draw, table)}{_where(draw, table)}"
        case "delete":
            return f"DELETE FROM {table.name}{_where(draw, table)}"
        case "key":
            key = columns[0].sql
            by = pick(draw, ["+ 1", "- 1", "+ 10"] if not table.keyed else ["+ 10", "- 20", "+ 1"])
            return f"UPDATE {table.name} SET {key} = {key} {by}{_where(draw, table)}"
        case "move":
            names = ", ".join(c.sql for c in columns)
            return (
                f"WITH gone AS (DELETE FROM {table.name}{_where(draw, table)} RETURNING {names}) "
                f"INSERT INTO {table.name} ({names}) SELECT {_moved(table)} FROM gone"
            )
        case "upsert" if table.keyed:
            inserted = rows(draw, table, 1, 3, first_key=first_key or draw(st.integers(0, 8)))
            return f"{inserted} ON CONFLICT (id) DO UPDATE SET {_assignment(draw, table, key=False)}"
        case "merge":
            key = columns[0].sql
            return (
                f"MERGE INTO {table.name} USING (VALUES (0), (1), (2), (40)) AS v(n) ON {table.name}.{key} = v.n "
                f"WHEN MATCHED AND v.n = 1 THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {_assignment(draw, table, key=False)} "
                f"WHEN NOT MATCHED AND v.n = 40 THEN INSERT ({key}) VALUES (v.n)"
            )
        case "truncate" if chance(draw, 40):
            return f"TRUNCATE {table.name}"
        case _:
            return rows(draw, table, 1, 4, first_key=first_key or draw(st.integers(0, 30))) or ""


def _where(draw: st.DrawFn, table: Table) -> str:
    if chance(draw, 8):
        return ""
    key = table.columns[0].sql
    if draw(st.booleans()):
        return f" WHERE {key} {pick(draw, ['<', '>', '=', '>='])} {draw(st.integers(0, 6))}"
    return f" WHERE {predicate(draw, table.columns, 0)}"


def _assignment(draw: st.DrawFn, table: Table, *, key: bool = True) -> str:
    choices = table.writable if key and not table.keyed else table.writable[1:]
    column = pick(draw, choices)
    return f"{column.sql} = {_new_value(draw, column)}"


def _new_value(draw: st.DrawFn, column: Col) -> str:
    if chance(draw, 15):
        return "NULL"
    return value(draw, column.kind, finite=not chance(draw, 15))


def _moved(table: Table) -> str:
    """The same rows; with a key, under other keys, since the old ones still count within the statement."""
    first = f"{table.writable[0].sql} + 50" if table.keyed else table.writable[0].sql
    return ", ".join([first, *(c.sql for c in table.writable[1:])])
