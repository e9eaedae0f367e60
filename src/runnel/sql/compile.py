"""Query text -> plan: the whole way, in order.

1. PostgreSQL checks the query and prints it canonically (`describe`).
2. Views are inlined, and the parsed tree is printed and compared with PostgreSQL's print: what sqlglot cannot
   carry faithfully is never maintained by deltas.
3. The query is cut into stages, innermost first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import RunnelError, UserError
from runnel.model.names import Name
from runnel.plan import expr as ex
from runnel.plan.dialect import Phrase
from runnel.plan.expr import mentions_clock
from runnel.plan.stage import Plan, Relation
from runnel.ports.source import Kind, Used
from runnel.sql import positions, registry
from runnel.sql.aggregates import called_names, mark_aggregates
from runnel.sql.deep import is_deep, with_room
from runnel.sql.describe import (
    Description,
    canonical_print,
    describe,
    is_from_server,
    qualified,
    scratch,
)
from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.registry import Entry
from runnel.sql.rewrite import decide, to_core
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.json_aggregates import function_of
from runnel.sql.rewrite.single_row import at_most_one_row, is_value
from runnel.sql.stages import Compiler

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)


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
    polled: bool = False
    """No plan, and the result may change although no captured table does: recomputed every period."""
    notes: tuple[str, ...] = ()
    """What the query leaves to chance, and how it is decided."""
    entry: Entry | None = None
    """Why there is no plan: what the registry says of the construct."""
    place: str | None = None
    """Where the construct is in the query's text, as far as it can be found."""
    over_lent: str | None = None
    """The query over lent rows, where PostgreSQL cannot read a relation under its name; None when it can read all."""
    view_texts: Mapping[Name, str] = field(default_factory=dict)
    """Definitions of the views that the query reads, through other views as well."""

    @property
    def used(self) -> tuple[Used, ...]:
        """The relations that it reads, with the columns it uses."""
        return tuple(Used(relation, self.column_uses.get(relation.oid, ())) for relation in self.relations)

    @property
    def detail(self) -> str | None:
        """Why there is no plan, and where it is seen."""
        if self.entry is None:
            return None
        why = f"{self.entry.why[0].upper()}{self.entry.why[1:]}."
        return f"{why}\n{self.place}" if self.place else why


def compile_query(
    conn: psycopg.Connection,
    query: str,
    *,
    settings: Mapping[str, str],
    role: str | None = None,
    kinds: Sequence[Kind] = (),
) -> Compiled:
    """Check a query and plan it, over sources of these kinds. Raises UserError when the query itself is bad."""
    with scratch(conn, settings, role) as asking:
        for kind in kinds:
            query = kind.resolve_names(conn, query)
        description = describe(asking, query, point=True)
        _refuse_volatile(description, query)
        if description.canonical.startswith("VALUES"):
            # The rows of a query, not the query: these are a table that never changes.
            description = describe(qualified(asking), f'SELECT * FROM ({description.canonical}) AS "values"')
        compiler = Compiler(qualified(asking), kinds)
        too_deep = NotDifferentiable(registry.DEEP, "a form that is too deep or too long to plan")
        if is_deep(description.canonical):
            return _untouched(compiler, query, description, too_deep)
        try:
            return with_room(lambda: _compiled(compiler, query, description, settings))
        except RecursionError:
            return _untouched(Compiler(qualified(asking), kinds), query, description, too_deep)


def _untouched(compiler: Compiler, query: str, description: Description, refusal: NotDifferentiable) -> Compiled:
    """A query of which nothing is known here but what PostgreSQL says of it."""
    relations = compiler.tables_by_rewrite(description.canonical)
    return _unplanned(query, refusal, compiler, description, relations, polled=True)


def _compiled(compiler: Compiler, query: str, description: Description, settings: Mapping[str, str]) -> Compiled:
    tree = parse_query(description.canonical)
    if tree is None:
        refusal = NotDifferentiable(registry.UNFAITHFUL, "syntax unknown to Runnel's SQL parser")
        return _untouched(compiler, query, description, refusal)
    compiler.aggregates = description.aggregates
    _refuse_unordered_limit(tree, query, compiler.context)
    try:
        return _planned(compiler, description, tree, settings, query)
    except NotDifferentiable as error:
        refusal = error
    except Exception as error:
        if isinstance(error, (RunnelError, RecursionError)) or is_from_server(error):
            raise
        # A mistake of ours costs speed, not the stream table.
        log.exception("planning failed")
        refusal = NotDifferentiable(registry.UNRULED, "a form that the compiler failed on")
    _refuse_unordered_limit(tree, query, compiler.context, values=False)
    compiler.touch_all(tree)
    relations = tuple(compiler.tables.values())
    polled = compiler.uncaptured or bool(description.unstable) or mentions_clock(tree)
    return _unplanned(query, refusal, compiler, description, relations, polled=polled)


def _unplanned(
    query: str,
    refusal: NotDifferentiable,
    compiler: Compiler,
    description: Description,
    relations: tuple[Relation, ...],
    *,
    polled: bool,
) -> Compiled:
    """A query that is recomputed, with the reason."""
    return Compiled(
        description=description,
        relations=relations,
        views=tuple(compiler.views.values()),
        plan=None,
        reason=str(refusal),
        column_uses=_column_uses(None, relations),
        polled=polled,
        entry=refusal.entry,
        place=_place(refusal, query, compiler),
        over_lent=_over_lent(compiler, description.canonical, relations),
        view_texts=_view_texts(compiler),
    )


def _view_texts(compiler: Compiler) -> dict[Name, str]:
    return {name: facts.definition for name, facts in compiler.facts.items() if facts.definition is not None}


def _over_lent(compiler: Compiler, canonical: str, relations: tuple[Relation, ...]) -> str | None:
    """The query with relations that PostgreSQL cannot read replaced by the temporary tables that lend their rows."""
    foreign = {r.name: r for r in relations if not r.origin.selectable}
    if not foreign:
        return None
    tree = None if is_deep(canonical) else parse_query(canonical)
    try:
        if tree is None or not compiler.round_trips(canonical, tree):
            raise NotDifferentiable(registry.UNFAITHFUL, "a form that Runnel's SQL parser cannot print back faithfully")
        return ex.pg(_with_lent(compiler.inline_views(tree), foreign))
    except NotDifferentiable as error:
        first = next(iter(foreign.values()))
        raise UserError(
            f"the query reads the {first.origin.noun} {first.name} and has {error}",
            hint=f"Such a query can neither be maintained nor evaluated over a {first.origin.noun}. "
            "Write it in another way.",
            sqlstate="0A000",
        ) from None


def _with_lent(tree: exp.Query, foreign: Mapping[Name, Relation]) -> exp.Query:
    for table in tree.find_all(exp.Table):
        relation = foreign.get(Name(table.db, table.name))
        if relation is not None and isinstance(table.this, exp.Identifier):
            if not table.args.get("alias"):
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            lent = relation.lent_name
            table.set("db", exp.to_identifier(lent.schema))
            table.set("this", exp.to_identifier(lent.name))
    return tree


def _place(refusal: NotDifferentiable, query: str, compiler: Compiler) -> str | None:
    views = [f.definition for f in compiler.facts.values() if f.definition]
    if refusal.table is not None:
        return positions.table_place(refusal.table, query)
    if refusal.call is not None:
        return positions.call_place(refusal.call, query, views)
    entry = replace(refusal.entry, find=refusal.words, always=False) if refusal.words else refusal.entry
    return positions.entry_place(entry, query, views)


def _planned(
    compiler: Compiler,
    description: Description,
    tree: exp.Query,
    settings: Mapping[str, str],
    query: str,
) -> Compiled:
    """The query with its plan; raises NotDifferentiable."""
    _check_round_trip(compiler, description.canonical, tree)
    tree = compiler.inline_views(tree)
    whole = description
    if compiler.views:
        # PostgreSQL's print of the whole gives every table a name of its own.
        whole = describe(compiler.asking, ex.pg(tree))
        tree = _read_back(compiler, whole.canonical)
    _refuse_volatile(whole, query)
    _check_functions(whole)
    _find_aggregates(tree, whole)
    compiler.aggregates = whole.aggregates
    context = compiler.context
    tree = decide(tree, context)
    if context.notes:
        # Maintained, recomputed and verified is the query in which nothing is left to chance. It is read back from
        # PostgreSQL's print of it, which is what the catalog keeps, so the plan is the same whenever it is made.
        description = replace(description, canonical=canonical_print(compiler.asking, ex.pg(tree)))
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
        notes=tuple(context.notes),
        over_lent=_over_lent(compiler, description.canonical, relations),
        view_texts=_view_texts(compiler),
    )


def _read_back(compiler: Compiler, canonical: str) -> exp.Query:
    tree = parse_query(canonical)
    if tree is None:
        raise NotDifferentiable(registry.UNFAITHFUL, "syntax unknown to Runnel's SQL parser")
    _check_round_trip(compiler, canonical, tree)
    return tree


def _check_round_trip(compiler: Compiler, canonical: str, tree: exp.Query) -> None:
    if not compiler.round_trips(canonical, tree):
        raise NotDifferentiable(
            registry.UNFAITHFUL, "an expression that Runnel's SQL parser cannot print back faithfully"
        )


def _refuse_volatile(description: Description, query: str) -> None:
    if description.volatile:
        name = description.volatile[0]
        raise registry.refused(
            registry.VOLATILE,
            f"the query calls {name}(), which is volatile: {registry.VOLATILE.why}",
            positions.call_place(name, query),
        )


def _check_functions(description: Description) -> None:
    """What PostgreSQL knows of the functions called, whatever sqlglot made of them."""
    if description.unstable:
        name = description.unstable[0]
        shown = f"{name}(), whose result depends on more than its arguments,"
        raise NotDifferentiable(registry.UNSTABLE, shown, call=name)


def _find_aggregates(tree: exp.Query, description: Description) -> None:
    """Every aggregate that PostgreSQL sees must be seen here too: taken for a function it would be computed per row."""
    mark_aggregates(tree, description.aggregates)
    known = called_names(tree) | {function_of(phrase) for phrase in tree.find_all(Phrase)}
    missed = sorted(description.aggregates - known)
    if missed:
        raise NotDifferentiable(registry.UNRULED, f"the aggregate {missed[0]}()", call=missed[0])


def _refuse_unordered_limit(tree: exp.Query, query: str, context: Context, *, values: bool = True) -> None:
    """Chance decides which rows it keeps. `values`: of a subquery that is one value, the tie rule keeps one."""
    for part in tree.find_all(exp.Query):
        if part.args.get("order") or not (part.args.get("limit") or part.args.get("offset")):
            continue
        harmless = isinstance(part.parent, exp.Exists) or at_most_one_row(part, context)
        if not harmless and not (values and is_value(part)):
            raise registry.refused(
                registry.UNORDERED_LIMIT,
                "LIMIT without ORDER BY keeps arbitrary rows: a maintained result could not equal the query",
                positions.unordered_limit(query),
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
