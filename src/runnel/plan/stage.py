"""The plan: a query as a short list of stages.

A stage is a UNION ALL of branches under one head. A branch is a tree of joins over leaves; a leaf is one
occurrence of a source. Scalar expressions are sqlglot trees whose columns are written `l<leaf>.<column>`;
treat them as immutable. A stage under a PartitionHead has no branches: it reads an earlier stage's rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from runnel.model.names import Name, quote
from runnel.model.types import Column, Form, PgType


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows and changes of a relation come from, and what planning must know of it.

    `source` is the kind of source, as the catalog names it; `ref` is how that kind finds the relation again, and means
    nothing to others.
    """

    source: str = "TABLE"
    ref: Hashable = None
    noun: str = "table"
    """What people call such a relation."""
    selectable: bool = True
    """Whether PostgreSQL reads it under its name; if not, its source lends PostgreSQL the rows (`lent_name`)."""
    by_statistics: bool = False
    """Whether a read by key opens only what may hold the key; an index cannot be made then."""
    upstream: int | None = None
    """The stream table that the relation is."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation outside of the query: a table, a stream table, or what stands for a table elsewhere."""

    oid: int
    name: Name
    columns: tuple[Column, ...]
    indexed: frozenset[str] = frozenset()
    """Columns that lead some index: a restriction by them is cheap."""
    origin: Origin = Origin()

    @property
    def lent_name(self) -> Name:
        """The temporary table in which its source lends all of its rows to PostgreSQL."""
        return Name("pg_temp", f"pgt_lent_{self.oid}")


@dataclass(frozen=True, slots=True)
class StageRef:
    """The hidden output table of an earlier stage of the same stream table."""

    index: int
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """Rows that the query itself spells out (VALUES, a function of constants); they never change."""

    sql: str
    columns: tuple[Column, ...]


Source = Relation | StageRef | Constant


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A set-returning function of one leaf's columns, expanded by PostgreSQL while reading the leaf.

    `sql` follows the leaf's rows in FROM, over their alias `r`: `CROSS JOIN LATERAL unnest(r."tags") AS f0("#f0.tag")`.
    """

    sql: str
    columns: tuple[Column, ...]
    """The function's columns under the names that they have as columns of the leaf."""


@dataclass(frozen=True, slots=True)
class Computed:
    """An expression over one leaf, evaluated by PostgreSQL while reading it."""

    sql: str
    form: Form
    type: PgType
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One occurrence of a source: what is read from it, all of it evaluated by PostgreSQL."""

    id: int
    source: Source
    filters: tuple[str, ...] = ()
    clock_filters: tuple[str, ...] = ()
    """Predicates over the clock, with `:clock` where the current time goes."""
    clock_negations: tuple[str, ...] = ()
    """Their negations; of a plain comparison the opposite comparison, so that an index on the column serves."""
    computed: tuple[Computed, ...] = ()
    alias: str = ""
    """What the query calls it, for people."""
    may_raise: bool = False
    """Whether some expression could raise on a row that is gone again: captured rows are then netted first."""
    uses: tuple[str, ...] = ()
    """Source columns that any filter or computed column mentions."""
    functions: tuple[TableFunction, ...] = ()

    def column(self, index: int) -> str:
        """The name of a computed column in every DataFrame of this stage."""
        return f"l{self.id}_{index}"

    def plain_column(self, sql: str) -> str | None:
        """The column of its source that an expression over the leaf is, if it is just one."""
        return next((c.name for c in self.source.columns if sql == f"l{self.id}.{quote(c.name)}"), None)


@dataclass(frozen=True, slots=True)
class Equi:
    """`left = right` between computed columns of two leaves: a join key."""

    left_leaf: int
    left: int
    right_leaf: int
    right: int
    array_type: str
    """The PostgreSQL type in which key values are handed to a restricted read."""
    left_sql: str
    right_sql: str
    null_safe: bool = False


@dataclass(frozen=True, slots=True)
class Residual:
    """A condition that Spark evaluates: Spark SQL text over computed columns."""

    sql: str
    leaves: frozenset[int]


@dataclass(frozen=True, slots=True)
class LeafNode:
    """A leaf in the tree."""

    leaf: int


@dataclass(frozen=True, slots=True)
class Inner:
    """Inner or cross join of any number of inputs, or a filter when there is one input."""

    children: tuple[Tree, ...]
    equi: tuple[Equi, ...] = ()
    residual: tuple[Residual, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer:
    """LEFT or FULL join; RIGHT is written as LEFT with its sides exchanged."""

    kind: Literal["left", "full"]
    left: Tree
    right: Tree
    equi: tuple[Equi, ...] = ()
    residual: tuple[Residual, ...] = ()


Tree = LeafNode | Inner | Outer


@dataclass(frozen=True, slots=True)
class Branch:
    """One select-project-join block. `carried` maps the head's inputs onto computed columns."""

    tree: Tree
    leaves: tuple[Leaf, ...]
    carried: tuple[tuple[int, int], ...]
    """(leaf, computed) of each column that leaves Spark as it is, in order."""
    sums: tuple[tuple[int, int], ...]
    """(leaf, computed) of each column that Spark adds up, weighted."""
    inputs: tuple[str, ...] = ()
    """Per head input: PostgreSQL SQL over the carried columns, named `c0`, `c1`, ..."""
    late: tuple[str, ...] = ()
    """Conditions that only PostgreSQL can evaluate, over the carried columns, before the head."""


Strategy = Literal["rows", "count", "sum", "bools", "bag"]


@dataclass(frozen=True, slots=True)
class Bag:
    """The multiset of some values per group, from which PostgreSQL's own aggregates are computed.

    Of `string_agg(name, ', ' ORDER BY id) FILTER (WHERE paid)` the values are (name, id): what varies from row to row.
    """

    values: tuple[int, ...]
    """Indexes into the head's inputs; value i is the bag's column `v<i>`."""
    types: tuple[PgType, ...]
    collations: tuple[str | None, ...]
    filter: int | None = None
    """Index of the input that says whether a row is in the bag at all."""
    nulls: bool = False
    """Whether rows with a NULL among their values are kept."""
    images: bool = True
    """Whether values are told apart by what they look like (1.0 and 1.00 are two values) or by equality."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate call: how it is kept, and how its value is computed from what is kept."""

    function: str
    strategy: Strategy
    distinct: bool
    args: tuple[int, ...]
    """Indexes into the head's inputs (the filter clause is folded into them)."""
    type: PgType | None
    """Of a call over a bag PostgreSQL itself knows the type."""
    text: str
    """The call as the user wrote it, for people."""
    squares: bool = False
    nan: bool = False
    partial: int | None = None
    """Index of the first of Spark's partial sums for it; None when PostgreSQL adds up carried values."""
    chunks: tuple[str, ...] = ("1",)
    """What each partial sum of the values counts: numbers too long for Spark are added up in pieces."""
    square_chunks: tuple[str, ...] = ("1",)
    bag: int | None = None
    """Index of its bag, which equal calls and calls over the same values share."""
    call: str | None = None
    """PostgreSQL SQL over the bag `b` and the group `g`; None for min, max and count(DISTINCT), which need no scan."""


@dataclass(frozen=True, slots=True)
class RowsHead:
    """No state: the rows themselves are the result. Output i is input i."""

    inputs: tuple[PgType, ...]


@dataclass(frozen=True, slots=True)
class GroupHead:
    """GROUP BY (DISTINCT is a GROUP BY of every column without aggregates)."""

    keys: tuple[PgType, ...]
    key_collations: tuple[str | None, ...]
    aggregates: tuple[Aggregate, ...]
    inputs: tuple[PgType, ...]
    """Types of all inputs; the first len(keys) are the keys."""
    outputs: tuple[str, ...]
    """PostgreSQL SQL of each output column over `k<i>` (keys) and `a<j>` (aggregates)."""
    having: str | None = None
    bags: tuple[Bag, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """Window functions, DISTINCT ON, LIMIT: PostgreSQL recomputes the touched partitions of an earlier stage's rows."""

    source: StageRef
    keys: tuple[Column, ...]
    """Columns of the source: rows that agree in them belong together. None: all rows do."""
    items: str
    """The select list (with DISTINCT ON), over the input under the alias `s`."""
    rest: str
    """What follows FROM: ORDER BY, LIMIT, OFFSET."""
    order: tuple[str, ...] = ()
    """For LIMIT without partitions: the ORDER BY items, which an index on the source serves."""
    sorted: tuple[str, ...] = ()
    """In which order the rows are given to windows over floats, whose sums depend on it."""
    rule: str = ""
    """What it is, for people."""


@dataclass(frozen=True, slots=True)
class RecursiveInput:
    """An earlier stage that a recursive query reads: its rows, and their change."""

    stage: int
    alias: str
    """What the recursive member calls it."""
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class RecursiveHead:
    """WITH RECURSIVE: `R = base UNION [ALL] step(R, inputs)`. PostgreSQL iterates; the stage has no branches."""

    name: str
    """The CTE's name, for people."""
    distinct: bool
    """UNION, not UNION ALL."""
    bases: tuple[RecursiveInput, ...]
    """The parts of the base member that read tables."""
    constants: tuple[str, ...]
    """The parts of the base member that read none, as SQL."""
    reference: str
    """What the recursive member calls R."""
    inputs: tuple[RecursiveInput, ...]
    outputs: tuple[str, ...]
    """The recursive member's select list."""
    source: tuple[str | int, ...]
    """Its FROM clause: SQL, and the number of an input (-1: R) where a relation with its alias goes."""
    condition: str | None
    """Its WHERE clause."""
    joined: tuple[tuple[int, str], ...]
    """(input or -1, column) that the member compares by equality: worth an index."""
    plain: tuple[int, ...]
    """Outputs that are plain columns: a given result row leads back to them through an index."""
    linear: bool = True
    """Whether the member distributes over its inputs; with an outer join it does so over R alone."""


Head = RowsHead | GroupHead | PartitionHead | RecursiveHead


@dataclass(frozen=True, slots=True)
class Stage:
    """Branches under a head, with the columns of the result."""

    index: int
    branches: tuple[Branch, ...]
    head: Head
    columns: tuple[Column, ...]
    indexed: tuple[str, ...] = ()
    """Output columns that a later stage joins by."""
    partitioned: tuple[tuple[Column, ...], ...] = ()
    """Sets of output columns by which a later stage recomputes partitions."""
    ordered: tuple[tuple[str, ...], ...] = ()
    """Orders of the output in which a later stage takes the first rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages in order; the last one is the stream table."""

    stages: tuple[Stage, ...]
    relations: tuple[Relation, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def uses_clock(self) -> bool:
        """Whether rows enter or leave as time passes."""
        return any(leaf.clock_filters for stage in self.stages for b in stage.branches for leaf in b.leaves)


def tree_leaves(tree: Tree) -> Iterator[int]:
    """The leaves below a node, left to right."""
    match tree:
        case LeafNode(leaf):
            yield leaf
        case Inner(children=children):
            for child in children:
                yield from tree_leaves(child)
        case Outer(left=left, right=right):
            yield from tree_leaves(left)
            yield from tree_leaves(right)


def carried_name(branch: int, position: int) -> str:
    """A carried column's name in Spark's result and in the load table."""
    return f"b{branch}_{position}"
