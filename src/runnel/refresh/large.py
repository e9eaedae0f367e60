"""Branches that PostgreSQL joins itself, because all their rows are its own and more than should travel.

Each part of a delta is one SELECT (`runnel.delta.as_sql`). If other sessions see the rows, its largest input is cut
into slices and each slice becomes the SELECT of a Spark task; a part is linear in every leaf that no join pads, so the
slices add up to the whole. If only the refresh transaction sees them, it runs the SELECT itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import pyarrow as pa

from runnel.delta.added_up import added_up
from runnel.delta.as_sql import Selected, Sum, branch_sql, negated, plain_sums, union, with_values
from runnel.delta.parts import Part, Version, required
from runnel.delta.telescope import from_nothing, telescope
from runnel.model.types import DECIMAL_DIGITS
from runnel.plan.stage import Branch, GroupHead, Leaf, Stage, carried_name
from runnel.ports.rows import Query, Rows, arrow_type
from runnel.refresh.cuts import ONE_CORE, cheapest_cut, planned_costs
from runnel.refresh.leaves import SLICES_PER_TASK, Leaves
from runnel.sources.slices import printable_slices
from runnel.spark.slices import Slices

_READ_AGAIN = 1_000_000
"""So many rows of the other inputs may be read and hashed again for each slice, where the planner cannot say."""

_MOST_ROWS = 500_000
"""About so many rows of the sliced input are a slice."""

# Doubled percent signs are text.
_PARAMETER = re.compile(r"%%|%\((\w+)\)s")


@dataclass
class LargeBranch:
    """One branch of a stage, to be joined by PostgreSQL."""

    stage: Stage
    number: int
    leaves: Leaves
    changes: bool
    """Whether what changed is wanted, or everything."""
    adds_up: bool
    """Whether equal rows are added up."""
    copies: Mapping[int, Rows] | None = None
    """The changes of its leaves where the planner knows them (`runnel.refresh.copied`)."""

    @cached_property
    def _as_postgres_adds(self) -> tuple[Branch, tuple[Sum, ...] | None]:
        """The branch as PostgreSQL best computes it, and its sums; None if nothing is added up."""
        branch = with_values(self.stage.branches[self.number])
        if not self.adds_up:
            return branch, None
        found = added_up(branch, self.stage.head) if isinstance(self.stage.head, GroupHead) else None
        return found or (branch, plain_sums(branch))

    @property
    def branch(self) -> Branch:
        """The branch."""
        return self._as_postgres_adds[0]

    @property
    def schema(self) -> pa.Schema:
        """Of its load rows: branch, carried columns, weight, and sums, which are numbers whatever their form."""
        computed = [self.branch.leaves[leaf].computed[i] for leaf, i in self.branch.carried]
        carried = [(carried_name(self.number, i), arrow_type(c.form)) for i, c in enumerate(computed)]
        sums = [(f"s{k}", pa.decimal128(DECIMAL_DIGITS)) for k in range(len(self.branch.sums))]
        return pa.schema([("b", pa.int64()), *carried, ("w", pa.int64()), *sums])

    def slices(self) -> Slices | None:
        """The SELECTs of its load rows, for tasks; None when nothing has changed."""
        queries = list(self._queries(self.leaves.reading.spark.parallelism))
        settings = {**self.settings, **(ONE_CORE if len(queries) > 1 else {})}
        return printable_slices(self.leaves.reading, queries, self.schema, settings) if queries else None

    def queries(self) -> list[Query]:
        """The SELECTs of its load rows, for the refresh transaction."""
        return list(self._queries(0))

    @property
    def settings(self) -> Mapping[str, str]:
        """For the sessions that run them.

        Nobody analyses tables of changes, and where PostgreSQL expects few it would look through a whole table for
        each.
        """
        return {"enable_nestloop": "off"} if self.changes and self.copies is None else {}

    def offers(self) -> dict[int, Rows]:
        """What changed in its leaves, as their sources offer it."""
        offers = {leaf.id: self.leaves.offered(leaf) for leaf in self.branch.leaves}
        return {leaf: rows for leaf, rows in offers.items() if rows is not None}

    def _queries(self, tasks: int) -> Iterator[Query]:
        """One SELECT per part and slice, for so many tasks side by side; no slices at all for none of them (0)."""
        deltas: dict[int, Rows] = {}
        terms = [from_nothing(self.branch.tree)]
        if self.changes:
            deltas = self.offers() if self.copies is None else dict(self.copies)
            terms = telescope(self.branch.tree, sorted(deltas))
        for leaf in self.branch.leaves:
            self.leaves.count(leaf, None)
        for term in terms:
            for part in term.parts:
                yield from self._part(part, deltas, tasks)

    def _part(self, part: Part, deltas: Mapping[int, Rows], tasks: int) -> Iterator[Query]:
        inputs = _Inputs(self.branch, self.leaves, deltas)
        sliced = inputs.largest(part) if tasks else None
        if sliced is None:
            yield self._select(part, inputs)
            return
        # No task has much more to do than another, and results come in parts that the driver can hold.
        most = max(tasks * SLICES_PER_TASK, ceil(inputs.estimate(part, sliced) / _MOST_ROWS))

        def cut(count: int) -> list[Query]:
            # Without a condition on pages, an index may find what a join wants.
            found = [None] if count == 1 else inputs.slices(part, sliced, count)
            return [self._select(part, inputs, sliced, query) for query in found]

        if self.changes:
            # Nobody analyses tables of changes: the planner knows nothing of them.
            count = most if inputs.others(part, sliced) <= _READ_AGAIN else tasks
        else:
            counts = sorted({1, tasks, most})
            costs = planned_costs(self.leaves.reading.as_owner, [cut(count)[0] for count in counts])
            count = cheapest_cut(dict(zip(counts, costs, strict=True)), tasks)
        yield from cut(count)

    def _select(self, part: Part, inputs: _Inputs, sliced: int | None = None, query: Query | None = None) -> Query:
        """A part's load rows, with a slice in place of one input."""
        params: dict[str, object] = {}
        selected = {
            leaf: inputs.selected(leaf, version, query if leaf == sliced else None, params)
            for leaf, version in part.versions.items()
        }
        return Query(branch_sql(self.branch, self.number, part, selected, self._as_postgres_adds[1]), params)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The leaves of a branch as SELECTs."""

    branch: Branch
    leaves: Leaves
    deltas: Mapping[int, Rows]

    def largest(self, part: Part) -> int | None:
        """The leaf to cut into slices: the part must be linear in it."""
        linear = [leaf for leaf in required(part.tree) if not part.versions[leaf].startswith("before")]
        return max(linear, key=lambda leaf: self.estimate(part, leaf), default=None)

    def estimate(self, part: Part, leaf: int) -> float:
        """About how many rows a leaf has."""
        return self._rows(leaf, part.versions[leaf]).estimate

    def others(self, part: Part, leaf: int) -> float:
        """About how many rows each slice of a leaf is joined with."""
        return sum(self.estimate(part, i) for i in part.versions if i != leaf)

    def slices(self, part: Part, leaf: int, most: int) -> Sequence[Query]:
        """The SELECTs of the leaf's slices."""
        found = self._rows(leaf, part.versions[leaf]).slices
        assert found is not None
        return found(most)

    def selected(self, leaf: int, version: Version, query: Query | None, params: dict[str, object]) -> Selected:
        """A leaf at a version; `query` in place of the whole of it."""
        each = self.branch.leaves[leaf]
        match version:
            case "before" | "before_keys":
                parts = [self.selected(leaf, "after", None, params)]
                if leaf in self.deltas:
                    parts.append(negated(self.selected(leaf, "delta", None, params)))
                return union(parts) if len(parts) > 1 else parts[0]
            case "after" | "after_keys" | "delta":
                if query is None:
                    select = self._rows(leaf, version).select
                    assert select is not None
                    query = select()
                columns = tuple(each.column(i) for i in range(len(each.computed)))
                return Selected(_own_params(query, f"l{leaf}_{version}", params), columns, version == "delta")

    def _rows(self, leaf: int, version: Version) -> Rows:
        if version == "delta":
            return self.deltas[leaf]
        each: Leaf = self.branch.leaves[leaf]
        return self.leaves.source(each).read(each, None)


def _own_params(query: Query, prefix: str, params: dict[str, object]) -> str:
    """A query's text with its parameters under names of its own, which are added to `params`."""
    params |= {f"{prefix}_{name}": value for name, value in query.params.items()}
    return _PARAMETER.sub(lambda m: f"%({prefix}_{m[1]})s" if m[1] else "%%", query.text)
