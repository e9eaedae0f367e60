"""SQL -> core SQL: a chain of rewrites, each of which keeps the meaning of the query in PostgreSQL.

Every step takes a tree and gives an equivalent tree, so each can be checked by running both texts. Their order matters:
names first, then what decides between ties, then one construct after the other, the subqueries after what may
contain them, and the layers of windows and limits last.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.rewrite import (
    array_queries,
    determine,
    enclose,
    grouping_sets,
    json_aggregates,
    partitions,
    qualify,
    set_operations,
    subqueries,
    table_functions,
)
from runnel.sql.rewrite.context import Context


def decide(tree: exp.Query, ctx: Context) -> exp.Query:
    """The query with full names, and with nothing left to chance."""
    named = qualify.rewrite(json_aggregates.rewrite(tree.copy()), ctx)
    return determine.rewrite(array_queries.rewrite(named, ctx), ctx)


def to_core(tree: exp.Query, ctx: Context) -> exp.Query:
    """A decided query in the few forms that the compiler cuts into stages; raises NotDifferentiable."""
    for step in (table_functions, grouping_sets, set_operations, subqueries, enclose):
        tree = step.rewrite(tree, ctx)
    return partitions.rewrite(tree)
