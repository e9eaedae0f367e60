"""What the rewrites may ask about a query, and where they leave their remarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runnel.model.types import Column

_SET_RETURNING = frozenset(
    {
        "generate_series", "generate_subscripts", "json_array_elements", "json_array_elements_text", "json_each",
        "json_each_text", "json_object_keys", "json_populate_recordset", "json_to_recordset", "jsonb_array_elements",
        "jsonb_array_elements_text", "jsonb_each", "jsonb_each_text", "jsonb_object_keys", "jsonb_path_query",
        "jsonb_path_query_tz", "jsonb_populate_recordset", "jsonb_to_recordset", "regexp_matches",
        "regexp_split_to_table", "string_to_table", "unnest",
    }
)  # fmt: skip
BUILT_IN_AGGREGATES = frozenset(
    {
        "any_value", "array_agg", "avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "corr", "count",
        "covar_pop", "covar_samp", "cume_dist", "dense_rank", "every", "json_agg", "json_agg_strict",
        "json_object_agg", "json_object_agg_strict", "json_object_agg_unique", "json_object_agg_unique_strict",
        "jsonb_agg", "jsonb_agg_strict", "jsonb_object_agg", "jsonb_object_agg_strict", "jsonb_object_agg_unique",
        "jsonb_object_agg_unique_strict", "max", "min", "mode", "percent_rank", "percentile_cont", "percentile_disc",
        "range_agg", "range_intersect_agg", "rank", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept",
        "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "stddev", "stddev_pop", "stddev_samp",
        "string_agg", "sum", "var_pop", "var_samp", "variance", "xmlagg",
    }
)  # fmt: skip


@dataclass
class Context:
    """The query's surroundings. Function names are given without quotes and, if not built in, without schema."""

    describe: Callable[[str], tuple[Column, ...]]
    """Query text -> its result columns as PostgreSQL types them."""
    unique_keys: Callable[[str, str], list[tuple[str, ...]]]
    """(schema, table) -> the sets of columns that are unique and never NULL, over the rows of all its children."""
    is_set_returning: Callable[[str], bool] = _SET_RETURNING.__contains__
    """Whether some function of this name returns a set."""
    is_aggregate: Callable[[str], bool] = BUILT_IN_AGGREGATES.__contains__
    """Whether some function of this name is an aggregate."""
    has_any_value: bool = True
    """Whether PostgreSQL itself has the aggregate any_value; pgtrickle_compat.any_value stands in for it otherwise."""
    notes: list[str] = field(default_factory=list)
    """Where the query leaves its result to chance, and how the rewritten one decides."""
    _last: int = 0

    def fresh(self, prefix: str) -> str:
        """A new alias, unique within the query.

        >>> ctx = Context(lambda text: (), lambda schema, table: [])
        >>> ctx.fresh("s"), ctx.fresh("u")
        ('pgt_s1', 'pgt_u2')
        """
        self._last += 1
        return f"pgt_{prefix}{self._last}"

    def note(self, sentence: str) -> None:
        """Leave a remark, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)
