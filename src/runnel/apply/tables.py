"""The tables a stage owns, and the SQL fragments that everybody who touches them shares.

| table | holds |
|---|---|
| `load` (temporary) | what Spark computed: carried columns, weight `w`, partial sums |
| `raw` (temporary) | the same as text, where `load` has columns of users' types |
| `delta` (temporary) | the stage's own output change: columns `o<i>` and weight `w` |
| `groups` | one row per group: keys `k<i>`, row count `n`, counters per aggregate, key hash `h` |
| `bag` | for aggregates that need their values: keys, values `v<i>`, multiplicity `n`, hashes `h` and `vh` |
| `output` | the stage's rows: the stream table itself, or a hidden table for inner stages |

Rows are found by a hash over all key columns, because NULL keys must be found too and no index serves
`IS NOT DISTINCT FROM`; the hash only narrows, the columns themselves decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runnel.model.names import Name, quote
from runnel.model.types import TEXTUAL, PgType
from runnel.plan.stage import Bag, Stage

# Of those, the ones whose text no index may hold (it could change with settings); a hash only narrows, so it does
# without them.
_UNHASHED = frozenset({
    143, 199, 629, 719, 790, 791, 1017, 1018, 1019, 1020, 1027, 1561, 1563, 2201, 2949, 3643, 3645, 4073, 5039,
})  # fmt: skip
# Types under a nondeterministic collation are described without an oid.
NONDETERMINISTIC = 0


@dataclass(frozen=True, slots=True)
class TableSpec:
    """How a table is made."""

    columns: Sequence[str]
    """Definitions."""
    indexes: Sequence[str] = ()
    """What each index is on; of a permanent table they are made after a bulk load."""


@dataclass(frozen=True, slots=True)
class StageTables:
    """Names of a stage's tables, each ready to be put into a statement."""

    load: str
    raw: str
    delta: str
    touched: str
    groups: str
    output: str
    prefix: str

    def bag(self, index: int) -> str:
        """The head's bag `index`."""
        return f"pgtrickle_state.{quote(f'b_{self.prefix}_{index}')}"

    def bag_touched(self, index: int) -> str:
        """The change of that bag (temporary)."""
        return f"pg_temp.{quote(f'pgt_b_{self.prefix}_{index}')}"


def stage_tables(pgt_id: int, stage: Stage, *, is_last: bool, result: Name) -> StageTables:
    """The tables of a stage of a stream table."""
    prefix = f"{pgt_id}_{stage.index}"
    return StageTables(
        load=f"pg_temp.{quote(f'pgt_load_{prefix}')}",
        raw=f"pg_temp.{quote(f'pgt_raw_{prefix}')}",
        delta=f"pg_temp.{quote(f'pgt_delta_{prefix}')}",
        touched=f"pg_temp.{quote(f'pgt_touched_{prefix}')}",
        groups=f"pgtrickle_state.{quote(f'g_{prefix}')}",
        output=result.sql() if is_last else f"pgtrickle_state.{quote(f's_{prefix}')}",
        prefix=prefix,
    )


def hash_sql(columns: Sequence[tuple[str, PgType]]) -> str:
    """The hash of some columns, the same for rows that are not distinct."""
    return hash_of([_hashable(name, type_) for name, type_ in columns if type_.oid not in _UNHASHED])


def hash_of(items: Sequence[str]) -> str:
    """The hash of some expressions."""
    return f"hash_record_extended(ROW({', '.join(items)}), 0)" if items else "0::int8"


def identity_sql(columns: Sequence[tuple[str, PgType]], seed: int) -> str:
    """A hash over every column, for queries; `hash_sql` leaves out what an index may not hold."""
    items = [f"({n})::text" if t.oid in _UNHASHED else _hashable(n, t) for n, t in columns]
    return f"hash_record_extended(ROW({', '.join(items)}), {seed})" if items else f"{seed}::int8"


def _hashable(name: str, type_: PgType) -> str:
    if type_.oid == NONDETERMINISTIC:
        # A record hashes its fields byte by byte; only the function itself minds the collation.
        return f"hashtextextended(({name})::text, 0)"
    return comparable(name, type_)


def comparable(name: str, type_: PgType) -> str:
    """An expression that is equal for values that are equal, whatever the type."""
    return f"({name})::text" if type_.oid in TEXTUAL else name


def image(name: str, type_: PgType) -> str:
    """An expression that is equal only for values that also look the same: 1.0 and 1.00 differ, so do 0 and -0."""
    return name if type_.is_plain else f'(({name})::text COLLATE "C")'


def bag_items(bag: Bag, names: Sequence[str]) -> list[str]:
    """What tells the values of a bag apart."""
    kind = image if bag.images else comparable
    return [kind(n, t) for n, t in zip(names, bag.types, strict=True)]


def bag_hash(bag: Bag, names: Sequence[str], key_hash: str) -> str:
    """The hash of a group's hash and some values of it."""
    kind = image if bag.images else _hashable
    return hash_of([key_hash, *(kind(n, t) for n, t in zip(names, bag.types, strict=True))])


def same_sql(left: Sequence[str], right: Sequence[str], types: Sequence[PgType]) -> str:
    """Whether two rows are not distinct."""
    if not left:
        return "true"
    a = ", ".join(comparable(n, t) for n, t in zip(left, types, strict=True))
    b = ", ".join(comparable(n, t) for n, t in zip(right, types, strict=True))
    return f"ROW({a}) IS NOT DISTINCT FROM ROW({b})"


def group_by_sql(columns: Sequence[tuple[str, PgType]]) -> str:
    """A GROUP BY list that works for every type."""
    return ", ".join(comparable(n, t) for n, t in columns)


def grouped_value(name: str, type_: PgType) -> str:
    """A column grouped by `group_by_sql`, back in its type."""
    return f"({name})::text::{type_.sql}" if type_.oid in TEXTUAL else name


def typed(name: str, type_: PgType, collation: str | None = None) -> str:
    """A column definition."""
    return f"{name} {type_.sql}{f' COLLATE {collation}' if collation else ''}"
