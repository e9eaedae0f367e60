"""Plans as text, for people: a tree from the stream table down to its sources, with rules, state and cost.

`!` marks what costs more than the change itself. Lines are at most 100 characters long.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from runnel.delta.ranges import ranges
from runnel.explain import access
from runnel.explain.words import Words, aliases, bare, called, hidden, made_for, select_items, tidy
from runnel.plan.stage import (
    Branch,
    Constant,
    Equi,
    GroupHead,
    Inner,
    Leaf,
    LeafNode,
    Outer,
    PartitionHead,
    Plan,
    RecursiveHead,
    Relation,
    Residual,
    RowsHead,
    Stage,
    StageRef,
    Tree,
)

WIDTH = 100
Evaluated = Callable[[Leaf], tuple[str, str] | None]
"""Who computes a leaf of many rows, and the expression that decides it; None where there is no choice."""
MARK = "! "
_KEPT_AS_BAG = "a bag of its values"


@dataclass
class Node:
    """A title, what there is to say about it, and what it reads."""

    title: str
    notes: list[str] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


def render_plan(plan: Plan, name: str = "the stream table", evaluated: Evaluated | None = None) -> Iterator[str]:
    """The whole plan as a tree, and what a refresh costs; `evaluated` says who computes a leaf with many rows."""
    drawing = _Drawing(plan, evaluated)
    lines = [*draw(drawing.stage(plan.stages[-1], name)), "", *drawing.cost()]
    yield from lines
    yield from _glossary(" ".join(lines))


def draw(node: Node, first: str = "", rest: str = "") -> Iterator[str]:
    """A node and what is below it, as lines."""
    yield from _wrapped(node.title, first, rest + ("│    " if node.children else "     "))
    for note in node.notes:
        bar = "│  " if node.children else "   "
        yield from _wrapped(note, rest + bar, rest + bar + "    ")
    for child in node.children:
        last = child is node.children[-1]
        yield from draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """Lines of a text; what follows a line break is kept in one piece, so that it can be copied."""
    body, *pieces = text.split("\n")
    lines = textwrap.wrap(
        body, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return lines + [rest + piece for piece in pieces]


class _Drawing:
    """One plan being drawn: stages that several others read are shown once."""

    def __init__(self, plan: Plan, evaluated: Evaluated | None = None) -> None:
        self.plan = plan
        self.evaluated = evaluated
        self.words = Words(plan)
        self.shown: set[int] = set()
        self.changes: list[str] = []
        self.reads: list[str] = []
        self.by_index: dict[str, list[str]] = {}
        self.marks: list[str] = []
        self.state: list[str] = []

    # -- stages ----------------------------------------------------------------------------------------------

    def stage(self, stage: Stage, name: str) -> Node:
        """A stage with everything below it."""
        title = name
        if len(self.plan.stages) > 1:
            title = f"{name} = stage {stage.index}" if name else f"stage {stage.index}"
        if stage.index in self.shown:
            return Node(f"{title}, shown above")
        self.shown.add(stage.index)
        node = Node(f"{title}: {self._rule(stage)}")
        if stage.index < len(self.plan.stages) - 1:
            self.state.append(f"the rows of stage {stage.index}")
        match stage.head:
            case GroupHead():
                self._group(stage, node)
            case PartitionHead(source=source):
                self._partitions(stage.head, node)
                node.children.append(self.stage(self.plan.stages[source.index], ""))
            case RecursiveHead():
                self._recursion(stage.head, node)
            case RowsHead():
                node.notes.append("delta: the delta of the rows; no state")
            case unknown:
                assert_never(unknown)
        several = len(stage.branches) > 1
        for number, branch in enumerate(stage.branches):
            below = self._branch(branch)
            if several:
                below.title = f"member {number + 1}: {below.title}"
            node.children.append(below)
        return node

    def _rule(self, stage: Stage) -> str:
        union = " of a UNION ALL" if len(stage.branches) > 1 else ""
        match stage.head:
            case GroupHead(aggregates=()) as head:
                return f"distinct rows{union}" if head.keys else f"whether there are rows{union}"
            case GroupHead():
                keys = self.words.keys(stage)
                return f"groups{union} by {', '.join(keys)}" if keys else f"one group{union} of all rows"
            case PartitionHead() as head:
                keys = [self.words.over_source(f's."{k.name}"', head) for k in head.keys]
                kind = {"DISTINCT ON": "the first row", "First rows in order": "the first rows"}.get(
                    head.rule, "window functions"
                )
                return f"{kind} by {', '.join(keys)}" if keys else kind
            case RecursiveHead(name=name, distinct=distinct):
                return f"recursion {name} ({'UNION' if distinct else 'UNION ALL'})"
            case RowsHead():
                return f"rows{union}"
            case unknown:
                assert_never(unknown)

    def _group(self, stage: Stage, node: Node) -> None:
        head = stage.head
        assert isinstance(head, GroupHead)
        self.state.append(
            f"a row per group of stage {stage.index}" if head.keys else f"one row for stage {stage.index}"
        )
        if not head.aggregates:
            node.notes.append("delta: rows whose multiplicity becomes or leaves zero; state: a count per row")
            return
        node.notes.append("delta: output after - before, for touched groups")
        for aggregate in head.aggregates:
            text = tidy(aggregate.text)
            if aggregate.strategy != "bag":
                node.notes.append(f"{text}: counters")
            elif aggregate.call is None:
                node.notes.append(f"{text}: {_KEPT_AS_BAG}, a state row per value; read at one end or counted")
            else:
                node.notes.append(f"{text}: {_KEPT_AS_BAG}, aggregated anew for a touched group")
                self._read(f"the bags of touched groups of stage {stage.index}")
                if not head.keys:
                    self._mark(node, f"one group: {text} is computed from all values at each change")
        if head.bags:
            count = f"{len(head.bags)} bags" if len(head.bags) > 1 else "a bag"
            self.state.append(f"{count} of stage {stage.index}, a row per group and value")
        if head.having:
            node.notes.append(f"having {self.words.over_group(head.having, stage)}")

    def _partitions(self, head: PartitionHead, node: Node) -> None:
        windows = [i for i in select_items(head.items) if " OVER " in i]
        node.notes += [self.words.over_source(text, head) for text in windows]
        if head.rest:
            node.notes.append(self.words.over_source(head.rest.strip(), head))
        source = head.source.index
        if head.keys:
            node.notes.append("delta: result after - before, for touched partitions; PostgreSQL computes them")
            self._read(f"the rows of touched partitions of stage {source}")
            return
        node.notes.append("delta: result after - before; PostgreSQL computes it")
        if head.order:
            self._read(f"the first rows of stage {source}, by index")
        elif head.rule.startswith("First"):
            self._mark(node, f"no index serves this ORDER BY: all rows of stage {source} are sorted at each change")
        else:
            self._mark(node, f"a window without PARTITION BY: all rows of stage {source} are recomputed at each change")

    def _recursion(self, head: RecursiveHead, node: Node) -> None:
        rule = "rows that lost a derivation are removed and derived again" if head.distinct else "sum of all rounds"
        node.notes.append(f"delta: {rule}; iterated by PostgreSQL over what the change touches")
        node.notes += [f"starts from {tidy(text)}" for text in head.constants]
        if not head.linear:
            self._mark(node, "an outer join in the recursive member: a change of its tables evaluates it anew")
        for base in head.bases:
            node.children.append(self.stage(self.plan.stages[base.stage], "base"))
        for item in head.inputs:
            node.children.append(self.stage(self.plan.stages[item.stage], item.alias))

    # -- branches --------------------------------------------------------------------------------------------

    def _branch(self, branch: Branch) -> Node:
        ways = access.accesses(self.plan, branch)
        node = self._tree(branch.tree, branch, ways)
        for text in branch.late:
            shown = self.words.over_carried(text, branch)
            node.notes.append(f"filtered by PostgreSQL after the join: {shown}")
        return node

    def _tree(self, tree: Tree, branch: Branch, ways: dict[int, access.Access]) -> Node:
        match tree:
            case LeafNode(leaf):
                return self._leaf(branch.leaves[leaf], branch, ways[leaf])
            case Inner(children=children, equi=equi, residual=residual):
                on = self._on(equi, residual, branch)
                if len(children) > 1:
                    node = Node(f"join{on}" if on else "cross join")
                    node.notes.append("delta: one term per changed input, the others narrowed by its keys")
                else:
                    node = Node(f"filter{on.replace(' on ', ' ', 1)}")
            case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
                children = (left, right)
                node = Node(f"{kind} join{self._on(equi, residual, branch)}")
                simple = isinstance(right, LeafNode) and equi and not residual
                how = (
                    "matches, and padding that flips, by key counts" if simple else "after - before under touched keys"
                )
                node.notes.append(f"delta: {how}")
        if any(e.null_safe for e in equi):
            node.notes.append("NULL-safe keys: rows without a value are read together with the keys")
        node.children = [self._tree(child, branch, ways) for child in children]
        return node

    def _on(self, equi: Sequence[Equi], residual: Sequence[Residual], branch: Branch) -> str:
        parts = [f"{e.left_sql} {'is' if e.null_safe else '='} {e.right_sql}" for e in equi] + [r.sql for r in residual]
        return f" on {' and '.join(self.words.over_leaves(p, branch) for p in parts)}" if parts else ""

    def _leaf(self, leaf: Leaf, branch: Branch, way: access.Access) -> Node:
        name = aliases(branch)[leaf.id]
        made = made_for(leaf.alias)
        shown = f"{name} ({made})" if made else name
        match leaf.source:
            case StageRef(index=index):
                node = self.stage(self.plan.stages[index], "" if leaf.alias == "s" else shown)
                used = [c.name for c in leaf.source.columns if c.name in leaf.uses and hidden(c.name)]
                for column in used:
                    text = self.words.column(index, column)
                    if text != column:
                        node.notes.append(f"{column}: {text}")
            case Relation(name=table, origin=origin):
                node = Node(f"{shown}: {origin.noun} {table}")
                if str(table) not in self.changes:
                    self.changes.append(str(table))
            case Constant(sql=sql):
                node = Node(f"{shown}: constant rows" if sql != "SELECT" else "one row without columns")
        self._evaluated(leaf, branch, node)
        self._access(leaf, branch, way, node)
        return node

    def _evaluated(self, leaf: Leaf, branch: Branch, node: Node) -> None:
        """What PostgreSQL does while reading the leaf."""
        for function in leaf.functions:
            node.notes.append(f"expanded by PostgreSQL: {called(function)}")
        for text in leaf.filters:
            node.notes.append(f"filter: {self.words.over_leaves(text, branch)}")
        for text in leaf.clock_filters:
            node.notes.append(f"filter, moving with the clock: {self.words.over_leaves(text, branch)}")
        computed = dict.fromkeys(bare(c.sql) for c in leaf.computed)
        shown = [self.words.over_leaves(c, branch) for c in computed if not _is_plain(c)]
        for text in dict.fromkeys(shown):
            node.notes.append(f"computed by PostgreSQL: {text}")
        found = self.evaluated(leaf) if self.evaluated is not None else None
        if found is not None:
            who, expression = found
            what = f" {self.words.over_leaves(bare(expression), branch)}" if expression else ""
            node.notes.append(f"many rows are computed by {who}{what}")

    def _access(self, leaf: Leaf, branch: Branch, way: access.Access, node: Node) -> None:
        names = aliases(branch)
        if isinstance(leaf.source, Relation):
            self._clock_scan(leaf, node)
        if isinstance(leaf.source, Constant):
            return
        what = str(leaf.source.name) if isinstance(leaf.source, Relation) else f"stage {leaf.source.index}"
        if way.indexed:
            keys = ", ".join(self._key(leaf, branch, sql) for sql in way.indexed)
            node.notes.append(f"rows by index on {keys}")
            self.by_index.setdefault(what, []).extend(self._key(leaf, branch, sql) for sql in way.indexed)
        for sql, causes in way.scanned.items():
            who = " or ".join(dict.fromkeys(names[c] for c in causes))
            if isinstance(leaf.source, Relation) and leaf.source.origin.by_statistics and leaf.plain_column(sql):
                key = self._key(leaf, branch, sql)
                node.notes.append(f"when {who} changes, only files that may hold the {key} are opened, by statistics")
                self._read(f"files of {what} by statistics on {key}")
                continue
            statement = access.create_index(leaf, sql)
            cure = f"; instead:\n{statement}" if statement else ""
            self._mark(node, f"{what} is scanned when {who} changes, by {self._key(leaf, branch, sql)}{cure}")
        self._whole(leaf, branch, way, node, what)

    def _key(self, leaf: Leaf, branch: Branch, sql: str) -> str:
        return leaf.plain_column(sql) or self.words.over_leaves(sql, branch)

    def _whole(self, leaf: Leaf, branch: Branch, way: access.Access, node: Node, what: str) -> None:
        names = aliases(branch)
        one_row = {x.id for x in branch.leaves if access.is_one_row_leaf(self.plan, x)}
        if leaf.id in one_row:
            others = [x for x in branch.leaves if leaf.id != x.id and not isinstance(x.source, Constant)]
            compared = next((r for r in ranges(branch) if r.values == leaf.id), None)
            if compared is not None:
                self._compared(branch.leaves[compared.leaf], compared.sql, branch, node)
            elif any(x.id not in one_row for x in others):
                text = (
                    f"one value for all rows: when it changes, all of {', '.join(names[x.id] for x in others)} is read"
                )
                self._mark(node, f"{text} and everything above recomputed")
            return
        causes = [c for c in way.whole if c not in one_row]
        if causes:
            who = " or ".join(names[c] for c in causes)
            self._mark(node, f"all of {what} is read when {who} changes: no equality leads there")

    def _compared(self, leaf: Leaf, sql: str, branch: Branch, node: Node) -> None:
        """A leaf whose rows are compared with a value that moves: those between the old and the new one are read."""
        rows, between = aliases(branch)[leaf.id], f"{self._key(leaf, branch, sql)} between the old and the new one"
        statement = access.create_index(leaf, sql)
        if access.has_index(self.plan, leaf, sql) or statement is None:
            node.notes.append(f"one value for all rows: when it moves, rows of {rows} with {between} are read")
        else:
            self._mark(
                node, f"one value for all rows: when it moves, {rows} is scanned for {between}; instead:\n{statement}"
            )

    def _clock_scan(self, leaf: Leaf, node: Node) -> None:
        assert isinstance(leaf.source, Relation)
        columns = access.clock_columns(leaf)
        if columns and not set(columns) & leaf.source.indexed:
            if leaf.source.origin.by_statistics:
                self._mark(node, f"all of {leaf.source.name} is read as time passes")
                return
            statement = access.create_index(leaf, f'l{leaf.id}."{columns[0]}"')
            self._mark(node, f"{leaf.source.name} is scanned as time passes; instead:\n{statement}")

    # -- cost ------------------------------------------------------------------------------------------------

    def _mark(self, node: Node, text: str) -> None:
        node.notes.append(MARK + text)
        if text not in self.marks:
            self.marks.append(text)

    def _read(self, text: str) -> None:
        if text not in self.reads:
            self.reads.append(text)

    def cost(self) -> Iterator[str]:
        """What a refresh reads, what is kept, and what is dear."""
        yield "Cost"
        changes = f"the changes of {_listed(self.changes)}" if self.changes else "nothing: no table is read"
        found = [f"rows of {what} by index on {', '.join(dict.fromkeys(keys))}" for what, keys in self.by_index.items()]
        yield from _wrapped(f"reads: {'; '.join([changes, *self.reads, *found])}", "  ", "    ")
        kept = "; ".join(dict.fromkeys(self.state)) or "nothing besides the result"
        yield from _wrapped(f"keeps: {kept}", "  ", "    ")
        for text in self.marks:
            yield from _wrapped(MARK + text, "  ", "    ")
        if not self.marks:
            yield "  Nothing is read or computed beyond what a change touches."


def _glossary(text: str) -> Iterator[str]:
    """Names that rewrites made, where the tree does not explain them."""
    for alias in dict.fromkeys(re.findall(r"\bpgt_[a-z]\d+(?=\.)", text)):
        made = made_for(alias)
        if made and f"{alias} ({made})" not in text:
            yield f"{alias}: {made}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _is_plain(sql: str) -> bool:
    """Whether a computed column is just a column, or bookkeeping over one."""
    text = sql.replace('"', "")
    inner = text.split(".", 1)[-1]
    return (
        inner.replace("_", "").replace("#", "").replace(".", "").isalnum()
        or "IS DISTINCT FROM NULL" in sql
        or (sql.endswith("= 'NaN'"))
    )
