"""Which operators a query uses, by its text: so that a soak can say what it has tried."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

PATTERNS: Mapping[str, str] = {
    "inner join": r"(?<!LEFT )(?<!RIGHT )(?<!FULL )(?<!CROSS )(?<!NATURAL )\bJOIN\b",
    "left/right join": r"\b(LEFT|RIGHT) JOIN (?!LATERAL)",
    "full join": r"\bFULL JOIN\b",
    "cross join": r"\bCROSS JOIN (?!LATERAL)",
    "using": r"\bUSING \(",
    "natural join": r"\bNATURAL\b",
    "exists": r"(?<!NOT )EXISTS \(SELECT",
    "not exists": r"NOT EXISTS \(SELECT",
    "in (subquery)": r"(?<!NOT )\bIN \(SELECT",
    "not in (subquery)": r"NOT IN \(SELECT",
    "any": r"\bANY \(SELECT",
    "all": r"(?<!UNION )(?<!EXCEPT )(?<!INTERSECT )\bALL \(SELECT",
    "scalar subquery": r"(?<!S )(?<! IN )(?<!A[NL][YL] )(?<!LATERAL )\(SELECT ((?!FROM|\(SELECT).)*FROM \w+ [b-h]\d",
    "lateral subquery": r"LATERAL \(SELECT",
    "set-returning function": r"\b(unnest|generate_series|jsonb_array_elements(_text)?)\(",
    "with ordinality": r"WITH ORDINALITY",
    "union all": r"\) UNION ALL ",
    "union": r"\) UNION (?!ALL)",
    "except": r"\) EXCEPT ",
    "intersect": r"\) INTERSECT ",
    "distinct": r"SELECT DISTINCT (?!ON)",
    "distinct on": r"DISTINCT ON \(",
    "group by": r"GROUP BY",
    "grouping sets": r"ROLLUP|CUBE|GROUPING SETS",
    "having": r"HAVING",
    "sum/count/avg": r"\b(sum|count|avg)\(",
    "min/max": r"\b(min|max)\(",
    "statistics": r"\b(stddev\w*|var\w*|corr|covar_\w+|regr_\w+)\(",
    "bits and truth": r"\b(bit_(or|and|xor)|bool_(and|or)|every)\(",
    "ordered set": r"WITHIN GROUP",
    "collecting aggregate": r"\b(array|string|jsonb?(_object)?)_agg\(",
    "distinct aggregate": r"\w\(DISTINCT",
    "filter": r"FILTER \(WHERE",
    "window": r"\) OVER \(?",
    "window frame": r"\b(ROWS|RANGE|GROUPS) BETWEEN",
    "frame exclusion": r"\bEXCLUDE (CURRENT|GROUP|TIES)",
    "named window": r"WINDOW w\d",
    "limit/offset": r"\b(LIMIT|OFFSET) \d",
    "with ties": r"WITH TIES",
    "with": r"WITH q\d+ AS",
    "recursive": r"WITH RECURSIVE",
    "derived table": r"(FROM|JOIN|,) \((SELECT|WITH|\(SELECT)",
    "stream table source": r"(FROM|JOIN|,) s\d ",
    "view": r"(FROM|JOIN|,) v\d ",
}
_COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}


def operators(query: str) -> set[str]:
    """The operators of one query.

    >>> sorted(operators("SELECT a0.k AS c0 FROM t0 a0 WHERE EXISTS (SELECT 1 FROM t1 b0 WHERE b0.k = a0.k)"))
    ['exists']
    """
    return {name for name, pattern in _COMPILED.items() if pattern.search(query)}


def table_of(counts: Counter[str]) -> str:
    """The counts in columns, including the operators that were never met."""
    cells = [f"{name} {counts[name]}" for name in PATTERNS]
    width = max(map(len, cells)) + 3
    lines = [cells[i : i + 4] for i in range(0, len(cells), 4)]
    return "\n".join("  " + "".join(c.ljust(width) for c in line).rstrip() for line in lines)
