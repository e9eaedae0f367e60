"""SQL -> core SQL: a chain of rewrites, each of which keeps the meaning of the query in PostgreSQL.

Every step takes a tree and gives an equivalent tree, so each can be checked by running both texts. Their order matters:
names first, then what decides between ties, then one construct after the other, the subqueries after what may
contain them, and the layers of windows and limits last.
"""

from __future__ import annotations

from collections.abc import Callable

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

Rewrite = Callable[[exp.Query, Context], exp.Query]

DECIDING: tuple[Rewrite, ...] = (
    json_aggregates.rewrite,
    qualify.rewrite,
    array_queries.rewrite,
    determine.rewrite,
)
TO_CORE: tuple[Rewrite, ...] = (
    table_functions.rewrite,
    grouping_sets.rewrite,
    set_operations.rewrite,
    subqueries.rewrite,
    enclose.rewrite,
    partitions.rewrite,
)


def decide(tree: exp.Query, ctx: Context) -> exp.Query:
    """The query with full names, and with nothing left to chance."""
    return _rewritten(tree.copy(), DECIDING, ctx)


def to_core(tree: exp.Query, ctx: Context) -> exp.Query:
    """A decided query in the few forms that the compiler cuts into stages; raises NotDifferentiable."""
    return _rewritten(tree, TO_CORE, ctx)


def _rewritten(tree: exp.Query, chain: tuple[Rewrite, ...], ctx: Context) -> exp.Query:
    for rewrite in chain:
        tree = rewrite(tree, ctx)
    return tree
