"""Make a failing scenario small: leave out what the failure does not need, a piece at a time.

Hypothesis shrinks the choices behind a scenario; a replay costs seconds, so it gets few attempts. Working on the text
itself gets further: steps, statements, rows, stream tables, and the clauses of their queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import sqlglot
from sqlglot import exp

from tests.oracle.scenario import LATE, Scenario, mentions

CLAUSES = ("where", "having", "order", "limit", "offset", "distinct", "with_", "windows")


def reduced(scenario: Scenario, fails: Callable[[Scenario], bool], is_over: Callable[[], bool]) -> Scenario:
    """The smallest scenario found that still fails."""
    progress = True
    while progress and not is_over():
        progress = False
        for smaller in _smaller(scenario):
            if is_over():
                break
            if len(str(smaller)) < len(str(scenario)) and fails(smaller):
                scenario, progress = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.twins:
        yield replace(scenario, twins=False)
    if scenario.time_zone != "UTC":
        yield replace(scenario, time_zone="UTC")
    yield from _fewer_streams(scenario)
    steps = [list(s) for s in scenario.steps]
    for i in range(len(steps)):
        yield replace(scenario, steps=steps[:i] + steps[i + 1 :])
    late = [[s for s in step if not s.startswith(LATE)] for step in steps]
    if late != steps:
        yield replace(scenario, steps=late)
    for i, step in enumerate(steps):
        for kept in _fewer_statements(step):
            yield replace(scenario, steps=[*steps[:i], kept, *steps[i + 1 :]])
    for name, query in scenario.streams.items():
        for text in simpler_queries(query):
            yield replace(scenario, streams={**scenario.streams, name: text})
    yield from _fewer_tables(scenario)
    for i, step in enumerate(steps):
        for j, statement in enumerate(step):
            for text in _fewer_rows(statement):
                changed = [*step[:j], text, *step[j + 1 :]]
                yield replace(scenario, steps=[*steps[:i], changed, *steps[i + 1 :]])


def _fewer_streams(scenario: Scenario) -> Iterator[Scenario]:
    for name in scenario.streams:
        others = {n: q for n, q in scenario.streams.items() if n != name}
        if others and not any(mentions(q, name) for q in others.values()):
            yield replace(scenario, streams=others)


def _fewer_statements(step: Sequence[str]) -> Iterator[list[str]]:
    if "BEGIN" in step:
        yield [s for s in step if s not in ("BEGIN", "COMMIT")]
    for j in range(len(step)):
        kept = [*step[:j], *step[j + 1 :]]
        if kept:
            yield kept


def _fewer_tables(scenario: Scenario) -> Iterator[Scenario]:
    tables = list(scenario.tables)
    for i, text in enumerate(tables):
        yield replace(scenario, tables=[*tables[:i], *tables[i + 1 :]])
        for fewer in _fewer_rows(text):
            yield replace(scenario, tables=[*tables[:i], fewer, *tables[i + 1 :]])
        if " PARTITION BY " in text:
            name = text.split()[2]
            kept = [t for t in tables if f"PARTITION OF {name} " not in t]
            yield replace(scenario, tables=[t.split(" PARTITION BY ")[0] if t == text else t for t in kept])


def _fewer_rows(statement: str) -> Iterator[str]:
    """The INSERT without one of its rows.

    >>> list(_fewer_rows("INSERT INTO t (k) VALUES (1), (2)"))
    ['INSERT INTO t (k) VALUES (2)', 'INSERT INTO t (k) VALUES (1)']
    """
    head, word, values = statement.partition(" VALUES (")
    if not statement.removeprefix(LATE).startswith("INSERT") or not word or " ON CONFLICT" in values:
        return
    rows = values.removesuffix(")").split("), (")
    for i in range(len(rows) if len(rows) > 1 else 0):
        yield f"{head}{word}{'), ('.join(rows[:i] + rows[i + 1 :])})"


def simpler_queries(query: str) -> Iterator[str]:
    """The query with one piece less; PostgreSQL says whether that is still a query."""
    try:
        tree = sqlglot.parse_one(query, read="postgres")
    except sqlglot.errors.ParseError:
        return
    count = sum(1 for _ in tree.walk())
    for number in range(count):
        for change in (_hoist, _drop_clauses, _drop_item, _one_side):
            yield from _changed(tree, number, change)


Change = Callable[[exp.Expr], Iterator[exp.Expr | None]]


def _changed(tree: exp.Expr, number: int, change: Change) -> Iterator[str]:
    choices = sum(1 for _ in change(_at(tree.copy(), number)))
    for choice in range(choices):
        copy = tree.copy()
        node = _at(copy, number)
        for i, result in enumerate(change(node)):
            if i == choice:
                if result is not None and node is copy:
                    copy = result
                elif result is not None:
                    node.replace(result.copy())
                text = copy.sql(dialect="postgres")
                yield re.sub(r"\s+", " ", text)
                break


def _at(tree: exp.Expr, number: int) -> exp.Expr:
    return next(n for i, n in enumerate(tree.walk()) if i == number)


def _hoist(node: exp.Expr) -> Iterator[exp.Expr | None]:
    """A member for the set operation, a derived table's query for the whole."""
    if isinstance(node, exp.SetOperation):
        yield node.this.copy()
        yield node.expression.copy()


def _drop_clauses(node: exp.Expr) -> Iterator[exp.Expr | None]:
    if isinstance(node, exp.Select):
        for key in CLAUSES:
            if node.args.get(key):
                kept = node.args[key]
                node.set(key, None)
                yield None
                node.set(key, kept)


def _drop_item(node: exp.Expr) -> Iterator[exp.Expr | None]:
    for key in ("expressions", "joins", "laterals"):
        items = node.args.get(key)
        if isinstance(node, (exp.Select, exp.Group, exp.With, exp.Order)) and isinstance(items, list):
            for i in range(len(items)):
                if len(items) > 1 or key != "expressions":
                    node.set(key, [*items[:i], *items[i + 1 :]])
                    yield None
                    node.set(key, items)


def _one_side(node: exp.Expr) -> Iterator[exp.Expr | None]:
    """One side of AND and OR, the argument of a function, the result of a CASE."""
    if isinstance(node, (exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe)):
        yield node.left
        yield node.right
    elif isinstance(node, (exp.Paren, exp.Not, exp.Neg, exp.Cast, exp.Coalesce, exp.Nullif, exp.Filter)):
        yield node.this
    elif isinstance(node, exp.Case):
        yield node.args["ifs"][0].args["true"]
