"""Expressions over a table of many values, evaluated by PostgreSQL and by Spark; one job per table."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from runnel.lake.read.copytext import as_text
from runnel.model.types import BOOL, DOUBLE, LONG, TEXT, Column, Form, PgType, decimal_form
from runnel.plan.stage import Computed, Constant, Leaf
from runnel.spark.floats import register
from runnel.spark.session import Sessions
from runnel.sparksql.translate import Around, Translation, Untranslated, translate
from runnel.sql.describe import relation_columns
from runnel.transport import render_csv

UTC = {"TimeZone": "UTC", "DateStyle": "ISO, MDY"}
__all__ = ["BOOL", "DOUBLE", "LONG", "TEXT", "UTC", "Values", "decimal_form"]


@dataclass(frozen=True)
class Values:
    """Columns with their type in PostgreSQL, their type in Arrow, and the values that they take in turn."""

    columns: Mapping[str, tuple[str, pa.DataType, Sequence[Any]]]
    count: int = 200

    def table(self) -> pa.Table:
        """Each value of each column occurs, in company that changes."""
        chance = random.Random(4711)
        arrays = {}
        for name, (_, kind, values) in self.columns.items():
            drawn = [*values, *(chance.choice(values) for _ in range(self.count - len(values)))]
            chance.shuffle(drawn)
            arrays[name] = pa.array(drawn, kind) if not _is_time(kind) else _times(drawn, kind)
        return pa.table({**arrays, "place": pa.array(range(self.count), pa.int64())})

    def store(self, db: psycopg.Connection) -> tuple[Column, ...]:
        """The values in PostgreSQL, as rows of a lake are lent to it."""
        items = ", ".join(f"{name} {pg}" for name, (pg, _, _) in self.columns.items())
        db.execute(f"CREATE TABLE v ({items}, place int8)".encode())
        with db.cursor() as cursor, cursor.copy("COPY v FROM STDIN (FORMAT csv)") as copy:
            for batch in self.table().to_batches():
                copy.write(render_csv(as_text(batch)))
        row = db.execute("SELECT 'v'::regclass::oid::int8").fetchone()
        assert row is not None
        return relation_columns(db, row[0])

    def check(
        self, db: psycopg.Connection, sessions: Sessions, expressions: Sequence[tuple[str, Form]], **around: Any
    ) -> None:
        """All of these are translated, and give in Spark what they give in PostgreSQL."""
        columns = self.store(db)
        known = Around(UTC, **around)
        computed = tuple(Computed(_over_leaf(sql, columns), form, PgType(25, -1, "text")) for sql, form in expressions)
        alone = [(c.sql, translate(leaf_of(computed=(c,)), columns, known)) for c in computed]
        missing = [(sql, found.reason) for sql, found in alone if isinstance(found, Untranslated)]
        assert missing == [], f"not translated: {missing}"
        translated = translate(leaf_of(computed=computed), columns, known)
        assert isinstance(translated, Translation)
        items = ", ".join(f"({c.sql})::text" for c in computed)
        db.execute("SET TimeZone = 'UTC'")
        expected = db.execute(f"SELECT {items} FROM v AS l0 ORDER BY place".encode()).fetchall()
        register(sessions.large)
        frame = sessions.large.createDataFrame(self.table())
        found = frame.selectExpr(*translated.columns, "place").toArrow().sort_by("place")
        rows = list(zip(*(found.column(i).to_pylist() for i in range(len(computed))), strict=True))
        different = [
            (expressions[i][0], {n: str(v) for n, v in zip(self.columns, inputs, strict=False)}, mine[i], theirs[i])
            for mine, theirs, inputs in zip(rows, expected, self._inputs(db), strict=True)
            for i in range(len(computed))
            if not _same(mine[i], theirs[i], computed[i].form)
        ]
        assert different == [], f"{len(different)} of {len(rows) * len(computed)} differ, the first: {different[:3]}"

    def _inputs(self, db: psycopg.Connection) -> list[tuple[Any, ...]]:
        names = ", ".join(f"{name}::text" for name in self.columns)
        return db.execute(f"SELECT {names} FROM v ORDER BY place".encode()).fetchall()


def refused(db: psycopg.Connection, values: Values, expressions: Sequence[str], **around: Any) -> list[str]:
    """Those that are translated although they should not be."""
    columns = values.store(db)
    known = Around(**{"settings": UTC, **around})
    return [
        sql
        for sql in expressions
        if isinstance(translate(leaf_of((_over_leaf(f"({sql}) IS NULL", columns),)), columns, known), Translation)
    ]


def leaf_of(filters: tuple[str, ...] = (), computed: tuple[Computed, ...] = (), **how: Any) -> Leaf:
    return Leaf(0, Constant("SELECT", ()), filters=filters, computed=computed, **how)


def _over_leaf(text: str, columns: tuple[Column, ...]) -> str:
    """Plain column names as those of a leaf."""
    names = "|".join(c.name for c in columns)
    pieces = re.split(r"('(?:[^']|'')*')", text)
    return "".join(
        p if p.startswith("'") else re.sub(rf"(?<![\w.:])\b({names})\b(?!\()", r'l0."\1"', p) for p in pieces
    )


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_date32(kind) or pa.types.is_timestamp(kind)


def _times(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """From days or microseconds since 1970: beyond Python's calendar, too."""
    plain = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array(values, plain).view(kind)


def _same(mine: Any, theirs: str | None, form: Form) -> bool:
    if mine is None or theirs is None:
        return mine is None and theirs is None
    match form.kind:
        case "text":
            return bool(mine == theirs)
        case "bool":
            return ("true" if mine else "false") == theirs
        case "long":
            return int(mine) == int(theirs)
        case "decimal":
            return bool(mine == Decimal(theirs))
        case "double":
            right = float(theirs.replace("Infinity", "inf"))
            return mine == right or (math.isnan(mine) and math.isnan(right))
