"""Random histories of a lake table, written by DuckDB: what a reader must be able to follow.

Every step is one DuckDB transaction or call. The log says what was done, so that a failure can be read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import duckdb

from tests.lake.duck import Duck

# What each type's values look like in DuckDB, given a row number `i`.
TYPES = {
    "INTEGER": "(i * 7 % 100)::INTEGER",
    "BIGINT": "(i * 1000003)::BIGINT",
    "DOUBLE": "(i / 4.0)::DOUBLE",
    "DECIMAL(10,2)": "(i / 100.0)::DECIMAL(10,2)",
    "VARCHAR": "CASE i % 5 WHEN 0 THEN 'it''s ' || i WHEN 1 THEN 'é,\"' || i ELSE repeat('x', (i % 40)::INT) || i END",
    "DATE": "DATE '2020-01-01' + (i % 1000)::INTEGER",
    "TIMESTAMP": "TIMESTAMP '2020-01-01' + INTERVAL (i) SECOND + INTERVAL (i % 1000) MICROSECOND",
    "TIMESTAMPTZ": "TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) MINUTE",
    "BOOLEAN": "i % 2 = 0",
    "UUID": "md5(i::VARCHAR)::UUID",
    "BLOB": "encode('b' || i)",
    "JSON": "('{\"a\": ' || i || '}')::JSON",
    "UBIGINT": "(i + 9000000000000000000)::UBIGINT",
    "TIME": "TIME '00:00:00' + INTERVAL (i % 86400) SECOND",
    "INTEGER[]": "[i, NULL, i + 1]::INTEGER[]",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': i, 'b': 'v' || i}::STRUCT(a INTEGER, b VARCHAR)",
    "MAP(VARCHAR, INTEGER)": "MAP {'k' || i: i}::MAP(VARCHAR, INTEGER)",
}

WIDER = {"INTEGER": ["BIGINT", "DOUBLE"], "DECIMAL(10,2)": ["DECIMAL(14,2)"], "DATE": ["TIMESTAMP"]}

DEFAULTS = {"INTEGER": "42", "VARCHAR": "'a ''default'''", "DATE": "'2021-03-04'", "DECIMAL(10,2)": "1.50"}


@dataclass
class History:
    """A table `t` that is changed at random. `calm` keeps to steps after which DuckDB's own feed is right."""

    duck: Duck
    seed: int
    inline: int = 10
    partitioned: bool = False
    calm: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    rows: int = 0
    names: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.duck.run(f"CALL {self.duck.alias}.set_option('data_inlining_row_limit', {self.inline})")
        types = self.random.sample(sorted(TYPES), 4)
        self.columns = {"id": "BIGINT", "part": "INTEGER", **{f"c{n}": type for n, type in enumerate(types)}}
        self.names = len(types)
        self._run(f"CREATE TABLE t({', '.join(f'{name} {type}' for name, type in self.columns.items())})")
        if self.partitioned:
            self._run("ALTER TABLE t SET PARTITIONED BY (part)")

    def step(self) -> None:
        """Do one thing."""
        steps = {
            self._insert_few: 4, self._insert_many: 3, self._delete_few: 3, self._delete_many: 2, self._update: 3,
            self._delete_all: 0.3, self._add_column: 0.7, self._drop_column: 0.4, self._rename_column: 0.4,
            self._widen: 0.6,
        }  # fmt: skip
        if not self.calm:
            steps |= {self._flush: 1, self._merge: 1, self._rewrite: 1, self._several: 1}
        self.random.choices(list(steps), list(steps.values()))[0]()

    def _run(self, text: str) -> bool:
        self.log.append(text)
        try:
            self.duck.run(text)
        except duckdb.Error as error:
            # A few steps meet limits of DuckDB itself; the next step starts from what is there.
            self.log.append(f"-- {str(error).splitlines()[0]}")
            return False
        return True

    def _values(self, count: int) -> str:
        first = self.rows
        self.rows += count
        chosen = []
        for name, type in self.columns.items():
            value = {"id": "i", "part": "(i % 4)::INTEGER"}.get(name) or TYPES.get(type) or f"(i % 90)::{type}"
            chosen.append(value if name in ("id", "part") else f"CASE WHEN i % 7 = 3 THEN NULL ELSE {value} END")
        return f"SELECT {', '.join(chosen)} FROM range({first}, {first + count}) r(i)"

    def _insert_few(self) -> None:
        self._run(f"INSERT INTO t {self._values(self.random.randint(1, 8))}")

    def _insert_many(self) -> None:
        self._run(f"INSERT INTO t {self._values(self.random.randint(30, 200))}")

    def _some(self, width: int) -> str:
        low = self.random.randint(0, max(1, self.rows))
        return f"id BETWEEN {low} AND {low + width}"

    def _delete_few(self) -> None:
        self._run(f"DELETE FROM t WHERE {self._some(3)}")

    def _delete_many(self) -> None:
        self._run(f"DELETE FROM t WHERE {self._some(60)} AND id % {self.random.randint(1, 3)} = 0")

    def _update(self) -> None:
        self._run(f"UPDATE t SET part = part + 1 WHERE {self._some(self.random.choice([2, 40]))}")

    def _delete_all(self) -> None:
        self._run("DELETE FROM t")

    def _added(self) -> list[str]:
        return [name for name in self.columns if name not in ("id", "part")]

    def _add_column(self) -> None:
        type = self.random.choice(sorted(TYPES))
        name = f"c{self.names}"
        self.names += 1
        default = f" DEFAULT {DEFAULTS[type]}" if type in DEFAULTS and self.random.random() < 0.7 else ""
        if self._run(f"ALTER TABLE t ADD COLUMN {name} {type}{default}"):
            self.columns[name] = type

    def _drop_column(self) -> None:
        if len(self._added()) > 1:
            name = self.random.choice(self._added())
            if self._run(f"ALTER TABLE t DROP COLUMN {name}"):
                del self.columns[name]

    def _rename_column(self) -> None:
        name = self.random.choice(self._added())
        # A name that was used before must not bring back what it meant then.
        new = self.random.choice([f"c{n}" for n in range(self.names) if f"c{n}" not in self.columns] or [f"{name}x"])
        if self._run(f"ALTER TABLE t RENAME COLUMN {name} TO {new}"):
            self.columns = {new if n == name else n: type for n, type in self.columns.items()}

    def _widen(self) -> None:
        able = [name for name in self._added() if self.columns[name] in WIDER]
        if able:
            name = self.random.choice(able)
            type = self.random.choice(WIDER[self.columns[name]])
            if self._run(f"ALTER TABLE t ALTER {name} TYPE {type}"):
                self.columns[name] = type

    def _flush(self) -> None:
        self._run(f"CALL ducklake_flush_inlined_data('{self.duck.alias}')")

    def _merge(self) -> None:
        self._run(f"CALL ducklake_merge_adjacent_files('{self.duck.alias}')")

    def _rewrite(self) -> None:
        self._run(f"CALL ducklake_rewrite_data_files('{self.duck.alias}', delete_threshold => 0.1)")

    def _several(self) -> None:
        self._run("BEGIN")
        for _ in range(self.random.randint(2, 3)):
            self.random.choice([self._insert_few, self._insert_many, self._delete_few, self._update])()
        if not self._run("COMMIT"):
            self._run("ROLLBACK")
