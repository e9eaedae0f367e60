"""Read what the terms of a stage's delta need: the changed leaves, and of the others the rows that these can meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from runnel.delta.parts import Term, Version, required
from runnel.delta.restrict import MAX_KEYS, Many, Met, Reads, edges, restricted_reads
from runnel.delta.telescope import from_nothing, telescope
from runnel.delta.work import Work
from runnel.plan.stage import Branch, Stage
from runnel.ports.rows import Restriction
from runnel.refresh.leaves import Leaves


def read_changes(stage: Stage, leaves: Leaves, branches: Sequence[int]) -> list[Work]:
    """What one refresh has to evaluate of these branches; empty when no row of them can have changed."""
    work: list[Work] = []
    for number in branches:
        branch = stage.branches[number]
        deltas = {leaf.id: leaves.delta(leaf) for leaf in branch.leaves}
        changed = {leaf: rows for leaf, rows in deltas.items() if isinstance(rows, Many) or rows.num_rows}
        for term in telescope(branch.tree, sorted(changed)):
            reads = _read_term(branch, term, changed, leaves)
            kept = _without_empty_parts(Work(number, branch, term, reads, changed, term))
            if kept.term.parts:
                work.append(kept)
    return work


def read_everything(stage: Stage, leaves: Leaves, branches: Sequence[int]) -> list[Work]:
    """What a build of these branches from nothing has to evaluate."""
    work = []
    for number in branches:
        branch = stage.branches[number]
        term = from_nothing(branch.tree)
        work.append(Work(number, branch, term, _read_term(branch, term, {}, leaves), {}, term))
    return work


def _read_term(branch: Branch, term: Term, changed: Mapping[int, pa.Table | Many], leaves: Leaves) -> Reads:
    counted = {leaf for part in term.parts for leaf, v in part.versions.items() if v.endswith("_keys")}
    known: dict[int, float] = {}

    def read(leaf_id: int, restriction: Restriction | None) -> Met | None:
        leaf = branch.leaves[leaf_id]
        if leaf_id in counted:
            return leaves.keys(leaf, restriction, _key_columns(branch, leaf_id))
        return leaves.after(leaf, restriction, few=known.get(leaf_id, MAX_KEYS + 1) <= MAX_KEYS)

    def cost(leaf_id: int, sql: str, keys: int) -> float:
        return leaves.cost(branch.leaves[leaf_id], sql, keys)

    def few(leaf_id: int) -> float:
        if leaf_id not in known:
            known[leaf_id] = leaves.rows(branch.leaves[leaf_id])
        return known[leaf_id]

    return restricted_reads(branch, term, changed, read, cost, few)


def _key_columns(branch: Branch, leaf: int) -> tuple[int, ...]:
    """The computed columns of a leaf that any join compares."""
    found: set[int] = set()
    for key in edges(branch.tree):
        if key.left_leaf == leaf:
            found.add(key.left)
        if key.right_leaf == leaf:
            found.add(key.right)
    return tuple(sorted(found))


def _without_empty_parts(work: Work) -> Work:
    """The work without the parts that certainly have no rows: tasks need not be asked."""

    def has_rows(leaf: int, version: Version) -> bool:
        if version == "delta":
            return True
        if leaf in work.reads.scanned or (version.startswith("before") and leaf in work.changed):
            return True
        return bool(work.after(leaf).num_rows)

    parts = tuple(p for p in work.term.parts if all(has_rows(i, p.versions[i]) for i in required(p.tree)))
    return replace(work, term=replace(work.term, parts=parts))
