"""What is not maintained by deltas: one entry per construct, with the reason and a way out.

The compiler refuses nothing without naming an entry, and docs/sql.md shows the same entries:

    python -m runnel.sql.registry
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runnel.errors import UserError


@dataclass(frozen=True, slots=True)
class Entry:
    """A construct as a user knows it."""

    construct: str
    mode: Literal["FULL", "refused"]
    """Recomputed at each refresh, or not accepted at all."""
    why: str
    way_out: str = ""
    find: tuple[str, ...] = ()
    """How it looks in a query's text: words; a call ends with a parenthesis."""
    always: bool = True
    """Whether whatever looks so is one; otherwise a place is shown only if there is a single one."""
    selected: bool = False
    """Whether it is one in a select list only."""


CLOCK = (
    "now(", "transaction_timestamp(", "CURRENT_TIMESTAMP",
    "CURRENT_DATE", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME",
)  # fmt: skip

# -- the current time --------------------------------------------------------------------------------------------

CLOCK_VALUE = Entry(
    "the current time as a value",
    "FULL",
    "every row would change at every refresh",
    "Compute it when querying the stream table; in WHERE it is maintained.",
    CLOCK,
    selected=True,
)
CLOCK_SEVERAL = Entry(
    "the current time compared with columns of several tables",
    "FULL",
    "rows that enter or leave with time are found by the columns of one table",
    "Compare it with columns of one table at a time.",
    CLOCK,
    always=False,
)
CLOCK_OUTER = Entry(
    "the current time in the condition of an outer join",
    "FULL",
    "padding with NULL would come and go with time",
    "Filter the table in a stream table of its own, and join that.",
    CLOCK,
    always=False,
)
CLOCK_RECURSIVE = Entry(
    "the current time in a recursive member, other than compared with one table's columns",
    "FULL",
    "each round would have to be undone with time",
    "Filter the table in a stream table of its own, and read that.",
    CLOCK,
    always=False,
)

# -- what is read ------------------------------------------------------------------------------------------------

MATERIALIZED_VIEW = Entry(
    "materialized views",
    "FULL",
    "PostgreSQL tells nobody which rows a REFRESH changed, so the query is recomputed every period",
    "Make a stream table of its query, and read that.",
)
FOREIGN_TABLE = Entry(
    "foreign tables", "FULL", "changes of a foreign table happen elsewhere, so the query is recomputed every period"
)
SYSTEM_CATALOG = Entry(
    "system catalogs",
    "FULL",
    "system catalogs, and Runnel's own tables but those of provenance, carry no triggers, so the query is "
    "recomputed every period",
)
ROW_SECURITY = Entry(
    "tables with row-level security",
    "FULL",
    "policies apply to the table, not to its captured changes",
    "Put the condition of the policy into the query, as a role that bypasses row-level security.",
)
TABLESAMPLE = Entry(
    "TABLESAMPLE",
    "FULL",
    "which rows are drawn depends on where they are stored",
    "Choose rows by a condition over their columns, such as hashint8(id) % 10 = 0.",
    ("TABLESAMPLE",),
)
ONLY = Entry(
    "FROM ONLY",
    "FULL",
    "the changes of a table and of its children are captured together",
    "Read the table with its children.",
    ("FROM ONLY", "JOIN ONLY"),
)
ROW_LOCK = Entry(
    "FOR UPDATE, FOR SHARE",
    "FULL",
    "a stream table holds no locks",
    "Leave it out.",
    ("FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "FOR KEY SHARE"),
)
SYSTEM_COLUMN = Entry(
    "system columns (ctid, xmin, tableoid)",
    "FULL",
    "system columns are not captured",
    "Use columns of the table.",
    ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"),
    always=False,
)

# -- functions and expressions -----------------------------------------------------------------------------------

UNSTABLE = Entry(
    "functions whose result depends on more than their arguments (age(x), pg_*, user-defined STABLE functions)",
    "FULL",
    "such a result may change although no row does, so the query is recomputed every period",
    "If the result depends on the arguments alone, declare the function IMMUTABLE.",
)
WHOLE_ROW = Entry(
    "a whole row as a value (SELECT t FROM t)",
    "FULL",
    "only its columns are followed",
    "Write ROW(t.a, t.b) with the columns that are needed.",
)
ROW_FUNCTION = Entry(
    "a set-returning function that returns rows, used as one value",
    "FULL",
    "only its columns are followed",
    "Call it in FROM.",
)
TABLE_FUNCTION = Entry(
    "a function of a table's columns in FROM, under LEFT JOIN .. ON a condition, or over several tables of a join "
    "that is itself an operand of an outer join",
    "FULL",
    "PostgreSQL expands a function while it reads the one table, or stage, that it depends on",
    "Use LEFT JOIN .. ON true and filter, or call the function in a derived table.",
)
AGGREGATE = Entry(
    "an aggregate whose values cannot be kept (arguments of a pseudo-type, types without equality and text)",
    "FULL",
    "aggregates are kept as counters or as a bag of their values",
)
UNFAITHFUL = Entry(
    "syntax that Runnel's SQL parser does not know, or cannot print back faithfully",
    "FULL",
    "a query is maintained only if PostgreSQL reads the parsed one as the same query",
    "Write it with other words, or put it into an IMMUTABLE function.",
)

# -- joins, subqueries, recursion --------------------------------------------------------------------------------

OUTER_CONDITION = Entry(
    "FULL JOIN, and LEFT or RIGHT JOIN with a join in parentheses, on a condition that only PostgreSQL can evaluate "
    "(a.x LIKE b.y); "
    "subqueries correlated by arrays, jsonb, or the merged column of FULL JOIN .. USING",
    "FULL",
    "what is padded with NULL is found by equality, or by comparing numbers and times",
    "Use LEFT or RIGHT JOIN of a single table, for which any condition is maintained.",
)
JOIN_SUBQUERY = Entry(
    "a subquery in the condition of an outer join, over both of its sides",
    "FULL",
    "it would have to be evaluated while joining",
    "Compute its value in a derived table first, and compare that.",
)
LATERAL = Entry(
    "a correlated LATERAL subquery inside a nested outer join, before a RIGHT or FULL JOIN, or joined by USING",
    "FULL",
    "it becomes a join, which cannot stand at these places",
    "Join it with CROSS JOIN or LEFT JOIN .. ON, after the other joins.",
    ("LATERAL (",),
    always=False,
)
CORRELATION = Entry(
    "a correlated subquery over a RIGHT or FULL JOIN, with a computed LIMIT, or ordered over a set operation",
    "FULL",
    "a correlated subquery becomes a join by its outer values, which cannot cross these",
    "Write it as a join.",
)
SUBQUERY_PLACE = Entry(
    "a subquery in LIMIT, in VALUES or in the arguments of a function in FROM",
    "FULL",
    "it would change constant rows, or how many are kept",
    "Join with the subquery instead.",
)
RECURSION = Entry(
    "WITH RECURSIVE whose recursive member aggregates, limits or uses windows, or reads the recursion inside a "
    "subquery; SEARCH and CYCLE; WITH RECURSIVE inside a correlated subquery",
    "FULL",
    "a change is followed from round to round, which needs a member that distributes over the recursion",
    "Aggregate outside of the recursion.",
    ("RECURSIVE",),
    always=False,
)
GROUPING = Entry(
    "more than 64 grouping sets in one GROUP BY; constants as their keys; aggregates of the outer query inside a "
    "subquery",
    "FULL",
    "each grouping set reads all rows once, and groups by columns",
    "Use UNION ALL of several GROUP BYs.",
    ("GROUPING SETS", "ROLLUP", "CUBE"),
    always=False,
)
JOIN_ALIAS = Entry(
    "an alias for a join in parentheses that holds such a join itself, or a function",
    "FULL",
    "names inside are hidden by the alias",
    "Name the tables instead of the join.",
)
DEEP = Entry(
    "more than 100 levels of parentheses or CASEs, 50 queries inside one another, 1,000 conditions with AND and OR, or "
    "500 members of set operations",
    "FULL",
    "planning such a query would take more time and memory than it saves",
    "Split it: give a name to a part of it in a view of its own, or in a stream table.",
)
UNRULED = Entry(
    "rare forms that no rule covers yet",
    "FULL",
    "the message names the form",
    "Write it differently, or use FULL.",
)

# -- not accepted ------------------------------------------------------------------------------------------------

VOLATILE = Entry(
    "volatile functions (random(), clock_timestamp(), nextval())",
    "refused",
    "two evaluations may differ, so no maintained result could ever equal the query",
    "Store the value in a table, or compute it when querying the stream table.",
)
UNORDERED_LIMIT = Entry(
    "LIMIT or OFFSET without ORDER BY",
    "refused",
    "it keeps arbitrary rows: a maintained result could not equal the query",
    "Add an ORDER BY that decides which rows are kept, or apply LIMIT when querying the stream table.",
    ("LIMIT", "OFFSET", "FETCH FIRST", "FETCH NEXT"),
    always=False,
)
TEMPORARY = Entry(
    "temporary tables",
    "refused",
    "only the session that made it can read it",
    "Use a permanent table.",
)
UNCAPTURED = Entry(
    "unlogged tables; partitioned tables with a foreign partition",
    "refused",
    "a crash, or another server, changes them without telling a trigger",
    "Use logged tables.",
)
CIRCLE = Entry(
    "a stream table that would read itself, directly or not",
    "refused",
    "its result would depend on the order of refreshes",
    "A stream table may read other stream tables, but not in a circle.",
)

ENTRIES = tuple(e for e in list(globals().values()) if isinstance(e, Entry))


def refused(entry: Entry, message: str, detail: str | None = None) -> UserError:
    """The error for a query that is not accepted."""
    return UserError(message, detail=detail, hint=entry.way_out or None, sqlstate="0A000")


def table() -> str:
    """The entries as Markdown."""
    lines = ["| construct | mode | why | instead |", "|---|---|---|---|"]
    lines += [f"| {e.construct} | {e.mode} | {e.why} | {e.way_out} |" for e in ENTRIES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
