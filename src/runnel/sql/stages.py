"""A parsed query -> stages: where its tables are, where it is cut, and what each piece becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import UserError
from runnel.model.names import Name
from runnel.model.types import Column
from runnel.model.versions import version_of
from runnel.plan import expr as ex
from runnel.plan.stage import (
    Branch,
    Head,
    Inner,
    LeafNode,
    Outer,
    PartitionHead,
    Plan,
    Relation,
    Stage,
    StageRef,
    Tree,
)
from runnel.ports.source import Kind
from runnel.sql import heads, refuse, registry
from runnel.sql.aggregates import STANDARD
from runnel.sql.ctes import Ctes, recursive_name, standalone, with_ctes
from runnel.sql.describe import (
    RelationFacts,
    describe,
    describe_expressions,
    relation_facts,
    returns_set,
    tables_of,
    unique_keys,
)
from runnel.sql.draft import NotDifferentiable, OuterCondition
from runnel.sql.from_clause import FromBuilder
from runnel.sql.lower import Lowering
from runnel.sql.parse import parse_query
from runnel.sql.partitions import is_partition_block, partition_head
from runnel.sql.recursive import recursive_head, wanted_indexes
from runnel.sql.rewrite import outer_conditions
from runnel.sql.rewrite.context import Context
from runnel.sql.round_trip import round_trips

if TYPE_CHECKING:
    from runnel.catalog.owner import AsOwner

SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pgtrickle", "pgtrickle_changes", "pgtrickle_state")
PROVENANCE = "_provenance"
"""Runnel's own tables of this ending, one per sink, may be captured: publications write there, not all refreshes."""


@dataclass
class Compiler:
    """Turns one parsed query into stages, looking relations up as it meets them."""

    asking: AsOwner
    """The way to let PostgreSQL read texts with the rights of the query's owner."""
    kinds: Sequence[Kind] = ()
    """The kinds of sources that relations are looked up in."""
    tables: dict[Name, Relation] = field(default_factory=dict)
    """The sources whose changes are followed."""
    views: dict[Name, Relation] = field(default_factory=dict)
    """The views that were replaced by their definitions."""
    facts: dict[Name, RelationFacts] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    known: dict[str, StageRef] = field(default_factory=dict)
    """The hidden stage of each subquery's text, so that the same subquery is maintained once."""
    inline: bool = True
    """Whether derived tables without state become part of the query around them; otherwise each is a stage."""
    aggregates: frozenset[str] = frozenset()
    """Names of the aggregates that the query calls."""
    uncaptured: bool = False
    """Whether some source is neither a table nor a view over tables."""

    # -- sources -------------------------------------------------------------------------------------------

    def look_up(self, name: Name) -> RelationFacts:
        if name not in self.facts:
            self.facts[name] = relation_facts(self.asking.conn, name, self.kinds)
        return self.facts[name]

    def relation(self, name: Name) -> Relation:
        facts = self.look_up(name)
        self._record(facts)
        if facts.kind == "m":
            raise NotDifferentiable(registry.MATERIALIZED_VIEW, f"the materialized view {name}", table=name.name)
        if facts.kind == "f" and not facts.claimed:
            raise NotDifferentiable(registry.FOREIGN_TABLE, f"the foreign table {name}", table=name.name)
        if facts.row_security:
            raise NotDifferentiable(registry.ROW_SECURITY, f"row-level security on {name}", table=name.name)
        if _is_system(name):
            raise NotDifferentiable(registry.SYSTEM_CATALOG, f"the system catalog {name}", table=name.name)
        return facts.relation

    def _record(self, facts: RelationFacts) -> None:
        name = facts.relation.name
        if facts.temporary:
            raise registry.refused(registry.TEMPORARY, f'relation "{name}" is temporary: {registry.TEMPORARY.why}')
        if (facts.kind in ("r", "p") and not _is_system(name)) or facts.claimed:
            self.tables[name] = facts.relation
        elif facts.kind != "v":
            self.uncaptured = True

    def touch_all(self, tree: exp.Query) -> None:
        """Record every table of a query that has no plan: FULL refreshes still follow their changes."""
        ctes = {c.alias for c in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            if _names_a_relation(table) and (table.db or table.name not in ctes):
                self._record(self.look_up(Name(table.db or "pg_catalog", table.name)))

    def tables_by_rewrite(self, query: str) -> tuple[Relation, ...]:
        """The tables of a query that sqlglot cannot parse, from PostgreSQL's dependency records."""
        for name in tables_of(self.asking, query):
            self._record(self.look_up(name))
        return tuple(self.tables.values())

    def inline_views(self, tree: exp.Query) -> exp.Query:
        """Replace every view by its definition, all the way down."""
        ctes = {c.alias for c in tree.find_all(exp.CTE)}
        for table in list(tree.find_all(exp.Table)):
            if not _names_a_relation(table) or (not table.db and table.name in ctes):
                continue
            facts = self.look_up(Name(table.db or "pg_catalog", table.name))
            if facts.definition is None:
                continue
            body = parse_query(facts.definition)
            if body is None or not self.round_trips(facts.definition, body):
                shown = f"the view {facts.relation.name}, which cannot be printed back faithfully"
                raise NotDifferentiable(registry.UNFAITHFUL, shown, table=table.name)
            self.views[facts.relation.name] = facts.relation
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
            inlined = exp.Subquery(this=self.inline_views(body), alias=alias.copy())
            if table.args.get("joins"):
                inlined.set("joins", table.args["joins"])
            table.replace(inlined)
        return tree

    def round_trips(self, canonical: str, tree: exp.Query) -> bool:
        """Whether sqlglot's print of the tree means the same to PostgreSQL as the original."""
        return round_trips(self.asking, canonical, tree)

    @cached_property
    def context(self) -> Context:
        """What rewrites may ask."""
        return Context(
            describe=self.columns_of,
            unique_keys=lambda schema, table: unique_keys(self.asking.conn, Name(schema, table)),
            is_set_returning=lambda name: returns_set(self.asking.conn, name),
            is_aggregate=lambda name: name in STANDARD or name in self.aggregates,
            has_any_value=version_of(self.asking.conn.info.server_version).has_any_value,
        )

    # -- stages --------------------------------------------------------------------------------------------

    def plan(self, tree: exp.Query, columns: tuple[Column, ...], settings: Mapping[str, str]) -> Plan:
        self._stage(tree, {}, columns)
        return Plan(tuple(self._with_indexes()), tuple(self.tables.values()), dict(settings))

    def stage_ref(self, query: exp.Query, ctes: Ctes) -> StageRef:
        """A hidden stage for a subquery; the same subquery twice is one stage."""
        text = ex.pg(standalone(query, ctes))
        if text not in self.known:
            columns = self.columns_of(text)
            index = self._stage(query, ctes, columns)
            self.known[text] = StageRef(index, columns)
        return self.known[text]

    def columns_of(self, text: str) -> tuple[Column, ...]:
        """The result columns of a query, as PostgreSQL types them."""
        try:
            with self.asking.conn.transaction():
                return describe(self.asking, text).columns
        except UserError as error:
            # The user's query is fine; it is our form of it that PostgreSQL does not take.
            shown = f"a part that could not be rewritten ({error.message})"
            raise NotDifferentiable(registry.UNRULED, shown) from None

    def _stage(self, query: exp.Query, ctes: Ctes, columns: tuple[Column, ...]) -> int:
        while isinstance(query, exp.Subquery) and not query.args.get("joins"):
            query = query.this
        name = recursive_name(query, ctes)
        if name is not None:
            recursion = recursive_head(name, ctes, columns, self.stage_ref, self.context)
            self.stages.append(Stage(len(self.stages), (), recursion, columns))
            return len(self.stages) - 1
        ctes = with_ctes(query, ctes)
        head, branches = self._first_that_works(query, ctes, columns)
        index = len(self.stages)
        self.stages.append(Stage(index, tuple(branches), head, columns))
        return index

    def _first_that_works(self, query: exp.Query, ctes: Ctes, columns: tuple[Column, ...]) -> tuple[Head, list[Branch]]:
        """The head and branches of a query, in the cheapest of three forms.

        An outer join whose condition Spark cannot evaluate raises OuterCondition. The values it compares may come from
        a derived table, so the second attempt makes stages of those, whose values PostgreSQL computes. The third moves
        the condition into an inner join (`outer_conditions`). Stages that an attempt has left behind are removed.
        """
        mark, known = len(self.stages), dict(self.known)
        try:
            return self._head(query, ctes, columns)
        except OuterCondition:
            if not self.inline:
                raise
            del self.stages[mark:]
            self.known = dict(known)
        self.inline = False
        try:
            return self._head(query, ctes, columns)
        except OuterCondition:
            del self.stages[mark:]
            self.known = known
            return self._head(outer_conditions.rewrite_members(query, self.context), ctes, columns)
        finally:
            self.inline = True

    def _head(self, query: exp.Query, ctes: Ctes, columns: tuple[Column, ...]) -> tuple[Head, list[Branch]]:
        if isinstance(query, exp.SetOperation):
            return self._union(query, ctes, columns)
        if isinstance(query, exp.Select):
            if is_partition_block(query):
                return partition_head(query, lambda below: self.stage_ref(below, ctes)), []
            return self._select(query, ctes, columns)
        raise NotDifferentiable(registry.UNRULED, refuse.name_of(query))

    def _union(self, query: exp.SetOperation, ctes: Ctes, columns: tuple[Column, ...]) -> tuple[Head, list[Branch]]:
        if not isinstance(query, exp.Union):
            raise NotDifferentiable(registry.UNRULED, type(query).__name__.upper())
        if query.args.get("limit") or query.args.get("offset"):
            raise NotDifferentiable(registry.UNRULED, "LIMIT")
        distinct = bool(query.args.get("distinct"))
        members = _flatten(_without_ctes(query), distinct)
        inputs = [i for m in members for i in self._members(m, ctes)]
        return heads.distinct_head(inputs, columns) if distinct else heads.rows_head(inputs, columns)

    def _members(self, query: exp.Query, ctes: Ctes) -> list[heads.BranchInput]:
        """A member of a UNION as branches: inlined when it has no state, else through a stage of its own."""
        while isinstance(query, exp.Subquery):
            query = query.this
        ctes = with_ctes(query, ctes)
        if isinstance(query, exp.Select) and not refuse.is_stateful(query):
            return self._branches(query, ctes)
        ref = self.stage_ref(query, ctes)
        return [self._whole(ref)]

    def _whole(self, ref: StageRef) -> heads.BranchInput:
        """A branch that is all columns and rows of a stage."""
        builder = FromBuilder(self.relation, self.stage_ref, self.columns_of, self.inline)
        tree, scope = builder.leaf(ref, exp.TableAlias(this=exp.to_identifier("s")))
        lowering = Lowering(builder.leaves, tree, self._types)
        items = [scope.resolve(exp.column(exp.to_identifier(c.name, quoted=True), table="s")) for c in ref.columns]
        return heads.BranchInput(lowering, scope, items)

    def _branches(self, select: exp.Select, ctes: Ctes) -> list[heads.BranchInput]:
        """A SELECT as branches: one, or over a UNION ALL one per member."""
        refuse.check_block(select)
        union = _sole_union(select)
        if union is not None and self._members_agree(union, with_ctes(union, ctes)):
            source = select.args["from_"].this
            result = []
            for member in _flatten(_without_ctes(union), False):
                inner = exp.Subquery(this=_named_like(member, union), alias=source.args["alias"].copy())
                clone = select.copy()
                clone.set("from_", exp.From(this=inner))
                result += self._branches(clone, with_ctes(union, ctes))
            return result
        builder = FromBuilder(self.relation, self.stage_ref, self.columns_of, self.inline)
        tree, scope = builder.build(select, ctes)
        lowering = Lowering(builder.leaves, tree, self._types)
        if refuse.is_stateful(select) and (select.args.get("group") or refuse.has_aggregates(select)):
            return [heads.BranchInput(lowering, scope, [])]
        return [heads.BranchInput(lowering, scope, [scope.resolve(e.unalias()) for e in select.expressions])]

    def _members_agree(self, union: exp.Union, ctes: Ctes) -> bool:
        """Whether all members of a union have its column types: otherwise its stage casts them, as PostgreSQL does."""
        whole = _without_ctes(union)
        queries = [whole, *(_named_like(m, union) for m in _flatten(whole, False))]
        try:
            kinds = [[(c.type, c.collation) for c in self.columns_of(ex.pg(standalone(q, ctes)))] for q in queries]
        except UserError:
            # Two columns of one name, which nothing refers to.
            return True
        return all(k == kinds[0] for k in kinds)

    def _select(self, select: exp.Select, ctes: Ctes, columns: tuple[Column, ...]) -> tuple[Head, list[Branch]]:
        refuse.check_block(select)
        grouped = bool(select.args.get("group") or select.args.get("having") or refuse.has_aggregates(select))
        if select.args.get("distinct") and grouped:
            inner = select.copy()
            inner.set("distinct", None)
            inner.set("order", None)
            return heads.distinct_head([self._whole(self.stage_ref(inner, ctes))], columns)
        branches = self._branches(select, ctes)
        if grouped:
            return heads.group_head(branches, select, columns)
        if select.args.get("distinct"):
            return heads.distinct_head(branches, columns)
        return heads.rows_head(branches, columns)

    def _types(self, expressions: list[str], source: str) -> tuple[Column, ...]:
        with self.asking.conn.transaction():
            return describe_expressions(self.asking, expressions, source)

    def _with_indexes(self) -> list[Stage]:
        """The stages, told how later ones look into them: joined columns, partition keys, the order of a LIMIT."""
        wanted = wanted_indexes(self.stages)
        for stage in self.stages:
            for branch in stage.branches:
                for leaf_id, sql in _join_keys(branch.tree):
                    source = branch.leaves[leaf_id].source
                    if isinstance(source, StageRef):
                        names = {c.name for c in source.columns if sql == f'l{leaf_id}."{c.name}"'}
                        wanted.setdefault(source.index, set()).update(names)
        readers: dict[int, list[PartitionHead]] = {}
        for stage in self.stages:
            if isinstance(stage.head, PartitionHead):
                readers.setdefault(stage.head.source.index, []).append(stage.head)
        return [
            replace(
                stage,
                indexed=tuple(sorted(wanted.get(stage.index, ()))),
                partitioned=tuple(dict.fromkeys(h.keys for h in readers.get(stage.index, ()) if h.keys)),
                ordered=tuple(dict.fromkeys(h.order for h in readers.get(stage.index, ()) if h.order)),
            )
            for stage in self.stages
        ]


def _is_system(name: Name) -> bool:
    return name.schema in SYSTEM_SCHEMAS and not (name.schema == "pgtrickle" and name.name.endswith(PROVENANCE))


def _names_a_relation(table: exp.Table) -> bool:
    """Whether a table node is one: not a function, and not what FOR UPDATE OF names, which is an alias."""
    return isinstance(table.this, exp.Identifier) and not isinstance(table.parent, exp.Lock)


def _without_ctes(query: exp.Query) -> exp.Query:
    """The query without its WITH clause, whose CTEs are visible already."""
    copy = query.copy()
    copy.set("with_", None)
    return copy


def _flatten(query: exp.Query, distinct: bool) -> list[exp.Query]:
    """The members of a chain of unions: of UNION ALL only, or, below a UNION that is `distinct`, of both kinds.

    There duplicates go anyway, so it does not matter which of the two brought them.
    """
    if isinstance(query, exp.Union) and not query.args.get("limit") and not query.args.get("with_"):
        same = bool(query.args.get("distinct")) == distinct or distinct
        if same:
            return _flatten(query.this, distinct) + _flatten(query.expression, distinct)
    return [query]


def _sole_union(select: exp.Select) -> exp.Union | None:
    """The UNION ALL that is a SELECT's only source, if so: its members can become branches."""
    source = select.args.get("from_")
    if source is None or select.args.get("joins"):
        return None
    item = source.this
    if not isinstance(item, exp.Subquery) or item.args.get("joins") or not isinstance(item.this, exp.Union):
        return None
    union = item.this
    if union.args.get("distinct") or union.args.get("limit") or union.args.get("offset"):
        return None
    return union


def _named_like(member: exp.Query, union: exp.Union) -> exp.Query:
    """A member of a union with the column names of the union (its first member's)."""
    first: exp.Query = union
    while isinstance(first, (exp.SetOperation, exp.Subquery)):
        first = first.this
    names = [e.alias_or_name for e in first.expressions]
    copy = member.copy()
    if isinstance(copy, exp.Select):
        items = [exp.alias_(e.unalias(), n, quoted=True) for e, n in zip(copy.expressions, names, strict=True)]
        copy.set("expressions", items)
    return copy


def _join_keys(tree: Tree) -> list[tuple[int, str]]:
    """What the equalities of a join tree compare: leaves, and their side of each equality in SQL."""
    match tree:
        case LeafNode():
            return []
        case Inner(children=children, equi=equi):
            below = [k for c in children for k in _join_keys(c)]
        case Outer(left=left, right=right, equi=equi):
            below = _join_keys(left) + _join_keys(right)
    return below + [p for e in equi for p in ((e.left_leaf, e.left_sql), (e.right_leaf, e.right_sql))]
