"""SQL -> core SQL: a chain of rewrites, each of which keeps the meaning of the query in PostgreSQL.

Every step takes a tree and gives an equivalent tree, so each can be checked by running both texts. Their order matters:
names first, then what decides between ties, then one construct after the other, the subqueries last.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sqlglot import exp

from runnel.sql.rewrite import determine, grouping_sets, qualify, set_operations, table_functions
from runnel.sql.rewrite.context import Context

Step = Callable[[exp.Query, Context], exp.Query]


def _subqueries(tree: exp.Query, ctx: Context) -> exp.Query:
    step: Step = import_module("runnel.sql.rewrite.subqueries").rewrite
    return step(tree, ctx)


STEPS: tuple[Step, ...] = (
    qualify.rewrite,
    determine.rewrite,
    table_functions.rewrite,
    grouping_sets.rewrite,
    set_operations.rewrite,
    _subqueries,
)


def to_core(tree: exp.Query, ctx: Context) -> exp.Query:
    """Rewrite a query into core SQL; raises NotDifferentiable for what has no equivalent there."""
    for step in STEPS:
        tree = step(tree, ctx)
    return tree
