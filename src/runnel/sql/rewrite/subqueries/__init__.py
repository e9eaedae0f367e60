"""Subqueries -> joins."""
from sqlglot import exp
from runnel.sql.rewrite.context import Context
def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Nothing yet."""
    return tree
