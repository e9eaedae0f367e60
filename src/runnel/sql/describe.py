"""Ask PostgreSQL what a query means.

The query becomes a temporary view inside a transaction that is rolled back. PostgreSQL thereby checks syntax,
names, types and privileges with its own messages, and `pg_get_viewdef` prints the query back with every star
expanded, every column qualified and every implicit cast written out. That print is what gets parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql as psql

from runnel.catalog.lost import is_about_the_moment
from runnel.catalog.owner import AsOwner, as_owner
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.model.types import Column, PgType
from runnel.plan.stage import Origin, Relation
from runnel.ports.source import Kind
from runnel.sql.positions import pointer, statements

PROBE = "pgt_probe"

# The settings that change what an expression means; recorded at creation and restored for every refresh.
SESSION_SETTINGS = ("TimeZone", "DateStyle", "IntervalStyle", "search_path")

_CLOCK_OR_SESSION = re.compile(
    r"^(pg_|has_|obj_|col_|shobj_|inet_|txid_|to_reg|current_|session_|getdatabase|statement_timestamp|timeofday|"
    r"version$|row_security_active|schema_to|table_to|query_to|database_to|cursor_to)"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that a query names, as PostgreSQL records it; `column` is the attribute of a relation, or 0."""

    catalog: int
    oid: int
    column: int


@dataclass(frozen=True, slots=True)
class Description:
    """A query as PostgreSQL understands it."""

    columns: tuple[Column, ...]
    canonical: str
    aggregates: frozenset[str]
    volatile: tuple[str, ...]
    unstable: tuple[str, ...]
    """Stable functions whose answer depends on more than their arguments and the clock."""
    set_returning: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()


@contextmanager
def scratch(conn: psycopg.Connection, settings: Mapping[str, str], role: str | None) -> Iterator[AsOwner]:
    """Ask as the query's owner with the creator's settings, and undo everything afterwards."""
    given = {key: settings[key] for key in SESSION_SETTINGS if key in settings}
    with conn.transaction(force_rollback=True):
        asking = AsOwner(conn, None, given) if role is None else as_owner(conn, role, given)
        with asking.at_work():
            yield asking


def qualified(asking: AsOwner) -> AsOwner:
    """The same asking for texts in which every name is qualified, unless it is built in."""
    return asking.under({**asking.settings, "search_path": "pg_catalog"})


def describe(asking: AsOwner, query: str, *, point: bool = False) -> Description:
    """Check a query and print it canonically; call inside `scratch`. `point`: errors show the place in the text."""
    conn = asking.conn
    _create_probe(asking, query, point=point)
    columns = _probe_columns(conn)
    action = conn.execute(
        "SELECT ev_action::text FROM pg_catalog.pg_rewrite WHERE ev_class = %s::regclass",
        (f"pg_temp.{PROBE}",),
    ).fetchone()
    assert action is not None
    functions = _functions(conn, action[0])
    references = _references(conn)
    canonical = _print_probe(conn)
    return Description(
        columns=columns,
        canonical=canonical,
        aggregates=frozenset(f.name for f in functions if f.kind == "a"),
        volatile=tuple(sorted({f.name for f in functions if f.volatility == "v"})),
        set_returning=tuple(sorted({f.name for f in functions if f.returns_set})),
        unstable=tuple(sorted({f.name for f in functions if f.volatility == "s" and _depends_on_more(f)})),
        references=references,
    )


def canonical_print(asking: AsOwner, query: str) -> str:
    """PostgreSQL's own print of a query; call inside `scratch`."""
    _create_probe(asking, query)
    return _print_probe(asking.conn)


def describe_expressions(asking: AsOwner, expressions: list[str], source: str) -> tuple[Column, ...]:
    """Types of expressions over a source; call inside `scratch`."""
    items = ", ".join(f'({e}) AS "{i}"' for i, e in enumerate(expressions))
    _create_probe(asking, f"SELECT {items} FROM {source}")
    columns = _probe_columns(asking.conn)
    _drop_probe(asking.conn)
    return columns


def tables_of(asking: AsOwner, query: str) -> list[Name]:
    """The relations of a query that sqlglot cannot parse, from PostgreSQL's dependency records."""
    _create_probe(asking, query)
    rows = asking.conn.execute(
        "SELECT DISTINCT n.nspname, c.relname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
        "JOIN pg_class c ON c.oid = d.refobjid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass "
        "AND r.ev_class = %s::regclass AND c.oid <> r.ev_class",
        (f"pg_temp.{PROBE}",),
    ).fetchall()
    _drop_probe(asking.conn)
    return [Name(schema, name) for schema, name in rows]


def _create_probe(asking: AsOwner, query: str, *, point: bool = False) -> None:
    prefix = f"CREATE TEMP VIEW {PROBE} AS\n"
    text = query.strip().rstrip(";")
    if point and statements(text) > 1:
        raise UserError("cannot insert multiple commands into a stream table's query", sqlstate="42601")
    try:
        asking.run(f"{prefix}{text}\n")
    except psycopg.Error as error:
        if is_about_the_moment(error):
            # Taken for a verdict on the query it would change the table's mode.
            raise
        position = error.diag.statement_position or error.diag.internal_position
        if not point or position is None:
            raise user_error(error) from None
        skipped = len(query) - len(query.lstrip())
        raise user_error(error, pointer(query, int(position) - 1 - len(prefix) + skipped)) from None
    # From here on names must print the same whoever asks: qualified unless built in.
    asking.conn.execute("SET LOCAL search_path = pg_catalog")


def _print_probe(conn: psycopg.Connection) -> str:
    row = conn.execute("SELECT pg_get_viewdef(%s::regclass)", (f"pg_temp.{PROBE}",)).fetchone()
    assert row is not None
    _drop_probe(conn)
    return str(row[0]).strip().rstrip(";")


def _drop_probe(conn: psycopg.Connection) -> None:
    conn.execute(psql.SQL("DROP VIEW pg_temp.{}").format(psql.Identifier(PROBE)))


def is_from_server(error: Exception) -> bool:
    """Whether an error is PostgreSQL's, or the connection's."""
    return isinstance(error, psycopg.Error)


def user_error(error: psycopg.Error, place: str | None = None) -> UserError:
    """PostgreSQL's message as ours."""
    diag = error.diag
    return UserError(
        diag.message_primary or str(error).strip(),
        detail="\n".join(p for p in (diag.message_detail, place) if p) or None,
        hint=diag.message_hint,
        sqlstate=error.sqlstate,
    )


_COLUMNS = """
SELECT a.attname, coalesce(nullif(t.typbasetype, 0), t.oid)::int8,
       CASE WHEN t.typbasetype <> 0 THEN t.typtypmod ELSE a.atttypmod END,
       format_type(a.atttypid, a.atttypmod), coalesce(b.typtype, t.typtype) = 'e', a.attnotnull,
       CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
            THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) END,
       c.collisdeterministic
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def relation_columns(conn: psycopg.Connection, oid: int) -> tuple[Column, ...]:
    """The columns of a relation with their types."""
    columns = []
    for name, type_oid, typmod, text, is_enum, not_null, collation, deterministic in conn.execute(_COLUMNS, (oid,)):
        # Equality under a nondeterministic collation is not equality of text: such a column is no join key.
        family_oid = 0 if deterministic is False else type_oid
        columns.append(Column(name, PgType(family_oid, typmod, text, is_enum), not_null, collation))
    return tuple(columns)


def _probe_columns(conn: psycopg.Connection) -> tuple[Column, ...]:
    row = conn.execute("SELECT %s::regclass::oid::int8", (f"pg_temp.{PROBE}",)).fetchone()
    assert row is not None
    return relation_columns(conn, row[0])


def _references(conn: psycopg.Connection) -> tuple[Reference, ...]:
    rows = conn.execute(
        "SELECT DISTINCT d.refclassid::int8, d.refobjid::int8, d.refobjsubid FROM pg_catalog.pg_depend d "
        "JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_catalog.pg_rewrite'::regclass "
        "WHERE r.ev_class = %s::regclass AND d.refobjid <> r.ev_class",
        (f"pg_temp.{PROBE}",),
    ).fetchall()
    return tuple(Reference(*row) for row in rows)


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    kind: str
    volatility: str
    builtin: bool
    arguments: int
    returns_set: bool


def _functions(conn: psycopg.Connection, action: str) -> list[_Function]:
    oids = {int(o) for o in re.findall(r":(?:funcid|opfuncid|aggfnoid|winfnoid|hashfuncid) (\d+)", action)}
    # An aggregate is always marked immutable; what it is made of may not be.
    parts = conn.execute(
        "SELECT aggtransfn::oid::int8, aggfinalfn::oid::int8 FROM pg_catalog.pg_aggregate WHERE aggfnoid = ANY(%s)",
        (sorted(oids),),
    ).fetchall()
    oids |= {int(oid) for pair in parts for oid in pair if oid}
    rows = conn.execute(
        "SELECT proname, prokind, provolatile, pronamespace = 'pg_catalog'::regnamespace, pronargs, proretset "
        "FROM pg_catalog.pg_proc WHERE oid = ANY(%s)",
        (sorted(oids),),
    ).fetchall()
    return [_Function(*row) for row in rows]


def _depends_on_more(function: _Function) -> bool:
    """A stable function of the user's may read tables; some built-in ones read the session or the catalog."""
    if not function.builtin:
        return True
    if function.name == "age":
        return function.arguments == 1
    return function.name != "pg_catalog" and bool(_CLOCK_OR_SESSION.match(function.name))


def unique_keys(conn: psycopg.Connection, name: Name) -> list[tuple[str, ...]]:
    """The sets of columns that identify a row of a table: unique, complete, never NULL."""
    rows = conn.execute(
        "SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
        "WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate "
        "AND i.indpred IS NULL AND i.indexprs IS NULL "
        # Rows of inheritance children are read with the parent's, but its index does not know them.
        "AND (c.relkind = 'p' OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid)) "
        "GROUP BY i.indexrelid HAVING bool_and(a.attnotnull)",
        (name.schema, name.name),
    ).fetchall()
    return [tuple(r[0]) for r in rows]


def returns_set(conn: psycopg.Connection, name: str) -> bool:
    """Whether some function of this name returns a set."""
    return conn.execute("SELECT FROM pg_proc WHERE proname = %s AND proretset", (name,)).fetchone() is not None


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """What a name in FROM stands for."""

    relation: Relation
    kind: str
    """r table, p partitioned, v view, m materialized view, f foreign table."""
    definition: str | None
    row_security: bool
    temporary: bool
    claimed: bool = False
    """Whether a kind of source has recognized it; an ordinary table need not be."""


_RELATION = """
SELECT c.oid::int8, c.relkind, n.nspname, c.relname, c.relrowsecurity, c.relpersistence = 't',
       coalesce((SELECT array_agg(DISTINCT a.attname::text) FROM pg_index i
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL), '{{}}')
       {found}
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


def relation_facts(conn: psycopg.Connection, name: Name, kinds: Sequence[Kind]) -> RelationFacts:
    """Look a relation up by its qualified name."""
    found_by = "".join(f", {kind.found_by}" for kind in kinds)
    row = conn.execute(_RELATION.format(found=found_by).encode(), (name.schema, name.name)).fetchone()
    if row is None:
        raise UserError(f'relation "{name}" does not exist', sqlstate="42P01")
    oid, kind, schema, relname, security, temporary, indexed, *found = row
    definition = None
    if kind == "v":
        text = conn.execute("SELECT pg_get_viewdef(%s::oid)", (oid,)).fetchone()
        assert text is not None
        definition = str(text[0]).strip().rstrip(";")
    origins = [k.origin(value) for k, value in zip(kinds, found, strict=True) if value is not None]
    relation = Relation(
        oid=oid,
        name=Name(schema, relname),
        columns=relation_columns(conn, oid),
        indexed=frozenset(indexed),
        origin=origins[0] if origins else Origin(),
    )
    return RelationFacts(relation, kind, definition, security, temporary, claimed=bool(origins))
