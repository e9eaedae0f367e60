"""Branches that DuckDB joins inside of tasks, because all their rows lie in files.

One table of each part is divided among the tasks, and each of them reads the others whole; so these must be small. What
the tasks find is added up by Spark, or, if it is little, by PostgreSQL. Wherever DuckDB does not know a word, Spark
reads and joins everything itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from runnel.delta import as_duckdb
from runnel.delta.added_up import PartialSum, added_up
from runnel.delta.as_duckdb import Unsaid
from runnel.delta.as_sql import negated, union, with_values
from runnel.delta.parts import Part, Version
from runnel.delta.telescope import from_nothing, telescope
from runnel.plan.stage import Branch, GroupHead, Stage
from runnel.ports.rows import FileColumn, FileRows
from runnel.refresh.leaves import Leaves
from runnel.spark.files import FileSlices, file_slices

_READ_AGAIN = 1_000_000
"""So many rows of the other tables may be read by each task."""


def file_branch(stage: Stage, number: int, leaves: Leaves, *, changes: bool, adds_up: bool) -> list[FileSlices] | None:
    """A branch as tasks let DuckDB compute it, part by part: all of it, or what changed. None if others must."""
    parts = asked(stage, number, leaves, changes=changes, adds_up=adds_up)
    if parts is None:
        return None
    for leaf in stage.branches[number].leaves:
        leaves.count(leaf, None)
    tasks = leaves.reading.spark.parallelism
    return [
        file_slices(
            {name: rows.files() for name, rows in each.tables.items()}, each.sliced, each.query, each.schema, tasks
        )
        for each in parts
    ]


def asked(stage: Stage, number: int, leaves: Leaves, *, changes: bool, adds_up: bool) -> list[Asked] | None:
    """What DuckDB would be asked; nothing is read."""
    if leaves.reading.spark.joins:
        return None
    branch, sums = with_values(stage.branches[number]), None
    if adds_up and isinstance(stage.head, GroupHead):
        found = added_up(branch, stage.head)
        if found is None:
            return None
        branch, sums = found
    elif adds_up:
        sums = ()
    files = _Files(branch, leaves)
    try:
        return [files.part(part, number, sums) for part in _parts(branch, leaves, changes)]
    except Unsaid:
        return None


def _parts(branch: Branch, leaves: Leaves, changes: bool) -> Iterator[Part]:
    terms = [from_nothing(branch.tree)]
    if changes:
        changed = [leaf.id for leaf in branch.leaves if leaves.offered(leaf) is not None]
        terms = telescope(branch.tree, changed)
    for term in terms:
        yield from term.parts


@dataclass(frozen=True, slots=True)
class Asked:
    """A part as a query over tables, of which one is divided."""

    tables: dict[str, FileRows]
    sliced: str
    query: str
    schema: pa.Schema


@dataclass
class _Files:
    """The leaves of a branch as files, each asked for once."""

    branch: Branch
    leaves: Leaves
    _known: dict[tuple[int, bool], FileRows] = field(default_factory=dict)

    def part(self, part: Part, number: int, sums: tuple[PartialSum, ...] | None) -> Asked:
        """A part in DuckDB's words."""
        tables: dict[str, FileRows] = {}
        inputs = {leaf: self._leaf(leaf, version, tables) for leaf, version in part.versions.items()}
        linear = {_name(leaf, v == "delta") for leaf, v in part.versions.items() if v in ("after", "delta")}
        sliced = max(linear, key=lambda name: tables[name].estimate, default=None)
        if sliced is None or sum(rows.estimate for name, rows in tables.items() if name != sliced) > _READ_AGAIN:
            raise Unsaid
        text, schema = as_duckdb.branch_sql(self.branch, number, part, inputs, sums)
        return Asked(tables, sliced, text, schema)

    def _leaf(self, leaf: int, version: Version, tables: dict[str, FileRows]) -> as_duckdb.Leaf:
        match version:
            case "after" | "delta":
                rows = self._rows(leaf, changed=version == "delta")
                name = _name(leaf, version == "delta")
                tables[name] = rows
                each = self.branch.leaves[leaf]
                return as_duckdb.leaf([each.column(i) for i in range(len(rows.columns))], rows, name)
            case "before":
                after, delta = self._leaf(leaf, "after", tables), self._leaf(leaf, "delta", tables)
                columns = tuple(map(_wider, after.columns, delta.columns))
                return as_duckdb.Leaf(union([after.rows, negated(delta.rows)]), columns)
            case _:
                raise Unsaid

    def _rows(self, leaf: int, *, changed: bool) -> FileRows:
        if (leaf, changed) not in self._known:
            each = self.branch.leaves[leaf]
            rows = self.leaves.offered(each) if changed else self.leaves.source(each).read(each, None)
            found = rows.files() if rows is not None and rows.files is not None else None
            if found is None:
                raise Unsaid
            self._known[leaf, changed] = found
        return self._known[leaf, changed]


def _wider(one: FileColumn, other: FileColumn) -> FileColumn:
    """A column with the digits of both: what is gone may have been larger than anything that is there."""
    if (one.type, one.scale) != (other.type, other.scale):
        raise Unsaid
    return max(one, other, key=lambda column: column.digits)


def _name(leaf: int, changed: bool) -> str:
    """Of a table, inside of a task."""
    return f"{'d' if changed else 'r'}{leaf}"
