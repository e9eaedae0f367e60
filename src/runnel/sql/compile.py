"""Query text -> plan: the whole way, in order.

1. PostgreSQL checks the query and prints it canonically (`describe`).
2. Views are inlined, and the parsed tree is printed and compared with PostgreSQL's print: what sqlglot cannot
   carry faithfully is never maintained by deltas.
3. The query is cut into stages, innermost first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import UserError
from runnel.plan import expr as ex
from runnel.plan.expr import mentions_clock
from runnel.plan.stage import Plan, Relation
from runnel.sql.aggregates import called_names, mark_aggregates
from runnel.sql.describe import (
    Description,
    canonical_print,
    describe,
    scratch,
)
from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import decide, to_core
from runnel.sql.stages import Compiler

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True)
class Compiled:
    """A checked query: its result columns, its sources, and its plan when deltas can maintain it."""

    description: Description
    relations: tuple[Relation, ...]
    views: tuple[Relation, ...]
    plan: Plan | None
    reason: str | None
    """Why there is no plan: the construct, in words."""
    column_uses: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    untrusted: tuple[str, ...] = ()
    polled: bool = False
    """No plan, and the result may change although no captured table does: recomputed every period."""
    notes: tuple[str, ...] = ()
    """What the query leaves to chance, and how it is decided."""


def compile_query(
    conn: psycopg.Connection, query: str, *, settings: Mapping[str, str], role: str | None = None
) -> Compiled:
    """Check a query and plan it. Raises UserError when the query itself is bad."""
    with scratch(conn, settings, role):
        description = describe(conn, query)
        _refuse_volatile(description)
        compiler = Compiler(conn)
        tree = parse_query(description.canonical)
        if tree is None:
            reason = "syntax unknown to Runnel's SQL parser"
            relations = compiler.tables_by_rewrite(description.canonical)
            uses = _column_uses(None, relations)
            return Compiled(description, relations, (), None, reason, uses, description.untrusted, polled=True)
        _refuse_unordered_limit(tree)
        try:
            return _planned(conn, compiler, description, tree, settings)
        except NotDifferentiable as refusal:
            compiler.touch_all(tree)
            relations = tuple(compiler.tables.values())
            uses = _column_uses(None, relations)
            polled = compiler.uncaptured or bool(description.unstable) or mentions_clock(tree)
            views = tuple(compiler.views.values())
            return Compiled(
                description, relations, views, None, str(refusal), uses, description.untrusted, polled
            )  # fmt: skip


def _planned(
    conn: psycopg.Connection, compiler: Compiler, description: Description, tree: exp.Query, settings: Mapping[str, str]
) -> Compiled:
    """The query with its plan; raises NotDifferentiable."""
    _check_round_trip(compiler, description.canonical, tree)
    tree = compiler.inline_views(tree)
    whole = description
    if compiler.views:
        # PostgreSQL's print of the whole gives every table a name of its own.
        whole = describe(conn, ex.pg(tree))
        tree = _read_back(compiler, whole.canonical)
    _refuse_volatile(whole)
    _check_functions(whole)
    _find_aggregates(tree, whole)
    compiler.aggregates = whole.aggregates
    context = compiler.context
    tree = decide(tree, context)
    if context.notes:
        # Maintained, recomputed and verified is the query in which nothing is left to chance. It is read back from
        # PostgreSQL's print of it, which is what the catalog keeps, so the plan is the same whenever it is made.
        description = replace(description, canonical=canonical_print(conn, ex.pg(tree)))
        again = _read_back(compiler, description.canonical)
        _find_aggregates(again, whole)
        tree = decide(again, context)
    plan = compiler.plan(to_core(tree, context), description.columns, settings)
    relations = tuple(compiler.tables.values())
    return Compiled(
        description=description,
        relations=relations,
        views=tuple(compiler.views.values()),
        plan=plan,
        reason=None,
        column_uses=_column_uses(plan, relations),
        untrusted=description.untrusted + whole.untrusted,
        notes=tuple(context.notes),
    )


def _read_back(compiler: Compiler, canonical: str) -> exp.Query:
    tree = parse_query(canonical)
    if tree is None:
        raise NotDifferentiable("syntax unknown to Runnel's SQL parser")
    _check_round_trip(compiler, canonical, tree)
    return tree


def _check_round_trip(compiler: Compiler, canonical: str, tree: exp.Query) -> None:
    if not compiler.round_trips(canonical, tree):
        raise NotDifferentiable("an expression that Runnel's SQL parser cannot print back faithfully")


def _refuse_volatile(description: Description) -> None:
    if description.volatile:
        raise UserError(
            f"the query calls {description.volatile[0]}(), which is volatile: two evaluations may differ, "
            "so no maintained result could ever equal the query",
            hint="Store the value in a table, or compute it when querying the stream table.",
            sqlstate="0A000",
        )


def _check_functions(description: Description) -> None:
    """What PostgreSQL knows of the functions called, whatever sqlglot made of them."""
    if description.unstable:
        raise NotDifferentiable(f"{description.unstable[0]}(), whose result depends on more than its arguments,")


def _find_aggregates(tree: exp.Query, description: Description) -> None:
    """Every aggregate that PostgreSQL sees must be seen here too: taken for a function it would be computed per row."""
    mark_aggregates(tree, description.aggregates)
    missed = sorted(description.aggregates - called_names(tree))
    if missed:
        raise NotDifferentiable(f"the aggregate {missed[0]}()")


def _refuse_unordered_limit(tree: exp.Query) -> None:
    for query in tree.find_all(exp.Query):
        if (query.args.get("limit") or query.args.get("offset")) and not query.args.get("order"):
            raise UserError(
                "LIMIT without ORDER BY keeps arbitrary rows: a maintained result could not equal the query",
                hint="Add an ORDER BY that decides which rows are kept, or apply LIMIT when querying the stream table.",
                sqlstate="0A000",
            )


def _column_uses(plan: Plan | None, relations: tuple[Relation, ...]) -> dict[int, tuple[str, ...]]:
    if plan is None:
        return {r.oid: tuple(c.name for c in r.columns) for r in relations}
    uses: dict[int, set[str]] = {r.oid: set() for r in relations}
    for stage in plan.stages:
        for branch in stage.branches:
            for leaf in branch.leaves:
                if isinstance(leaf.source, Relation):
                    uses[leaf.source.oid] |= set(leaf.uses)
    return {oid: tuple(sorted(names)) for oid, names in uses.items()}
