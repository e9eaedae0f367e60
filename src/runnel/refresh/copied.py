"""Changes in temporary tables that PostgreSQL's planner knows: for joins of many changes with far larger tables.

A table of changes is never analysed, and a SELECT that nets them hides how many there are. Of what it does not know the
planner expects little, and would look through a whole table for each of what are many. Copied and analysed, it sees
that a hundred thousand changes of six million rows are best followed through indexes, or met first with the few rows
of another table that pass a filter; and each change is computed once, for however many terms need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from runnel.catalog.owner import AsOwner
from runnel.delta.as_sql import pg_type
from runnel.model.names import quote
from runnel.plan.stage import Branch, Leaf
from runnel.ports.rows import Query, Rows


@contextmanager
def copied_changes(
    owner: AsOwner, prefix: str, branch: Branch, changes: Mapping[int, Rows]
) -> Iterator[dict[int, Rows]]:
    """The same changes, by leaf, from tables that are there until the end."""
    tables: dict[int, str] = {}
    copies: dict[int, Rows] = {}
    for leaf, rows in changes.items():
        tables[leaf] = f"pg_temp.{quote(f'pgt_changed_{prefix}_{leaf}')}"
        count = _copy(owner, tables[leaf], branch.leaves[leaf], rows)
        copies[leaf] = Rows(count, select=partial(_select, tables[leaf], branch.leaves[leaf]))
    yield copies
    if tables:
        owner.conn.execute(f"DROP TABLE {', '.join(tables.values())}".encode())


def _columns(leaf: Leaf) -> list[str]:
    return [*(leaf.column(i) for i in range(len(leaf.computed))), "w"]


def _copy(owner: AsOwner, table: str, leaf: Leaf, rows: Rows) -> int:
    assert rows.select is not None
    query, names = rows.select(), ", ".join(_columns(leaf))
    collations = _collations(owner, leaf, query)
    definitions = [
        f"{name} {pg_type(computed)}{f' COLLATE {collations[name]}' if collations.get(name) else ''}"
        for name, computed in zip(_columns(leaf), leaf.computed, strict=False)
    ]
    owner.conn.execute(f"CREATE TEMP TABLE {table} ({', '.join([*definitions, 'w int8'])})".encode())
    if owner.runner is not None:
        owner.conn.execute(f"GRANT SELECT, INSERT ON {table} TO {quote(owner.runner.role)}".encode())
    text = f"INSERT INTO {table} ({names}) SELECT {names} FROM ({query.text}) AS d"
    count = owner.run(text, query.params or {"none": None})
    # ANALYZE would call functions of users' types with the engine's rights.
    if all(computed.form.kind != "value" or computed.type.is_builtin for computed in leaf.computed):
        owner.conn.execute(f"ANALYZE {table}".encode())
    return count


def _collations(owner: AsOwner, leaf: Leaf, query: Query) -> dict[str, str | None]:
    """The collations of texts: what is compared with them has the same, and PostgreSQL would not choose between two."""
    texts = [leaf.column(i) for i, computed in enumerate(leaf.computed) if computed.form.kind == "text"]
    if not texts:
        return {}
    items = ", ".join(f"pg_catalog.pg_collation_for({name})" for name in texts)
    asked = f"SELECT {items} FROM (SELECT) AS one LEFT JOIN ({query.text}) AS d ON false"
    (found,) = owner.rows(owner.merged(asked, query.params or {"none": None}), ["text"] * len(texts))
    return dict(zip(texts, found, strict=True))


def _select(table: str, leaf: Leaf) -> Query:
    return Query(f"SELECT {', '.join(_columns(leaf))} FROM {table}", {})
