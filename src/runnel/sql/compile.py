"""Query text -> plan: the whole way, in order.

1. PostgreSQL checks the query and prints it canonically (`describe`).
2. Views are inlined, and the parsed tree is printed and compared with PostgreSQL's print: what sqlglot cannot
   carry faithfully is never maintained by deltas.
3. The query is cut into stages, innermost first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import UserError
from runnel.plan import expr as ex
from runnel.plan.expr import mentions_clock
from runnel.plan.stage import Plan, Relation
from runnel.sql.aggregates import SUPPORTED
from runnel.sql.describe import (
    Description,
    describe,
    scratch,
)
from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import partitions
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


def compile_query(
    conn: psycopg.Connection, query: str, *, settings: Mapping[str, str], role: str | None = None
) -> Compiled:
    """Check a query and plan it. Raises UserError when the query itself is bad."""
    with scratch(conn, settings, role):
        description = describe(conn, query)
        _refuse_volatile(description)
        compiler = Compiler(conn)
        reason: str | None = None
        plan: Plan | None = None
        tree = parse_query(description.canonical)
        if tree is None:
            reason = "syntax unknown to Runnel's SQL parser"
            relations = compiler.tables_by_rewrite(description.canonical)
            uses = _column_uses(None, relations)
            return Compiled(description, relations, (), None, reason, uses, description.untrusted, polled=True)
        _refuse_unordered_limit(tree)
        whole = description
        try:
            if not compiler.round_trips(description.canonical, tree):
                raise NotDifferentiable("an expression that Runnel's SQL parser cannot print back faithfully")
            tree = compiler.inline_views(tree)
            if compiler.views:
                whole = describe(conn, ex.pg(tree))
            _refuse_volatile(whole)
            _check_functions(whole)
            core = partitions.rewrite(tree)
            plan = compiler.plan(core, description.columns, settings)
        except NotDifferentiable as refusal:
            reason = str(refusal)
            compiler.touch_all(tree)
        relations = tuple(compiler.tables.values())
        uses = _column_uses(plan, relations)
        polled = plan is None and (compiler.uncaptured or bool(description.unstable) or mentions_clock(tree))
        views = tuple(compiler.views.values())
        untrusted = description.untrusted + whole.untrusted
        return Compiled(description, relations, views, plan, reason, uses, untrusted, polled)


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
    unknown = sorted(description.aggregates - SUPPORTED)
    if unknown:
        raise NotDifferentiable(f"the aggregate {unknown[0]}()")


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
