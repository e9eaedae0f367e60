"""The aggregates that deltas can maintain, by name."""

from __future__ import annotations

from sqlglot import exp

VARIANCES = frozenset({"variance", "var_samp", "var_pop", "stddev", "stddev_samp", "stddev_pop"})
BOOLEANS = frozenset({"bool_and", "bool_or", "every"})
BAG = frozenset({"min", "max", "sum", "avg", "count", "bit_and", "bit_or", "bit_xor"}) | VARIANCES
"""Aggregates that can be computed from the multiset of their values."""
SUPPORTED = BAG | BOOLEANS


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is an aggregate call, with or without its FILTER clause."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower() in SUPPORTED
    return isinstance(node, (exp.Filter, exp.AggFunc))
