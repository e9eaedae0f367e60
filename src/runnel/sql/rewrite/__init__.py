"""SQL -> core SQL: a chain of rewrites, each of which keeps the meaning of the query in PostgreSQL."""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.rewrite import partitions, qualify
from runnel.sql.rewrite.context import Context


def decide(tree: exp.Query, ctx: Context) -> exp.Query:
    """The query with full names, and with nothing left to chance."""
    return qualify.rewrite(tree, ctx)


def to_core(tree: exp.Query, ctx: Context) -> exp.Query:
    """The query in the few forms that the compiler cuts into stages."""
    return partitions.rewrite(tree)
