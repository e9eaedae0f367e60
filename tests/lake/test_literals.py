"""Structs that DuckDB keeps in the catalog: read as they were given, where DuckDB itself loses characters."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from decimal import Decimal
from typing import Any

import pytest

from runnel.errors import UserError
from runnel.lake.format.columns import from_text
from runnel.lake.format.model import LakeColumn

IDS = itertools.count(1)


def column(name: str, type: str, *children: LakeColumn) -> LakeColumn:
    return LakeColumn(next(IDS), name, type, children=children)


def struct(**fields: str | LakeColumn) -> LakeColumn:
    return column("s", "struct", *(_field(name, given) for name, given in fields.items()))


def _field(name: str, given: str | LakeColumn) -> LakeColumn:
    if isinstance(given, str):
        return column(name, given)
    return LakeColumn(given.id, name, given.type, children=given.children)


TEXTS = column("l", "list", column("element", "varchar"))
PAIRS = column("m", "map", column("key", "varchar"), column("value", "varchar"))

# As DuckDB 1.5.5 wrote them for these values.
KEPT: list[tuple[str, LakeColumn, Any]] = [
    (r"""{'v': 'it''s', 'w': 'b\s'}""", struct(v="varchar", w="varchar"), {"v": "it's", "w": "b\\s"}),
    ("{'v': 'a\nb', 'w': '', 'x': 'NULL', 'y': NULL}", struct(v="varchar", w="varchar", x="varchar", y="varchar"),
     {"v": "a\nb", "w": "", "x": "NULL", "y": None}),
    (r"""{'v': 'CAST(''x'' AS DATE)', 'd': CAST('2020-01-01' AS VARCHAR)}""", struct(v="varchar", d="date"),
     {"v": "CAST('x' AS DATE)", "d": dt.date(2020, 1, 1)}),
    (r"""{'b': CAST('\x00\xFF\x27,}' AS VARCHAR), 'c': CAST('plain' AS VARCHAR)}""", struct(b="blob", c="blob"),
     {"b": b"\x00\xff',}", "c": b"plain"}),
    (r"""{'s': {'x': 'it''s', 'd': CAST('2020-01-02' AS VARCHAR)}}""", struct(s=struct(x="varchar", d="date")),
     {"s": {"x": "it's", "d": dt.date(2020, 1, 2)}}),
    (r"""{'l': ['it\'s', b\s, plain, 'a,b', NULL, 'NULL', '', 'CAST(\'x\' AS DATE)', 'q]', '"dq"']}""", struct(l=TEXTS),
     {"l": ["it's", "b\\s", "plain", "a,b", None, "NULL", "", "CAST('x' AS DATE)", "q]", '"dq"']}),
    (r"""{'m': {'k\'k'=v\v, 'a,b'='c=d', p=plain, n=NULL}}""", struct(m=PAIRS),
     {"m": [("k'k", "v\\v"), ("a,b", "c=d"), ("p", "plain"), ("n", None)]}),
    (r"""{'l': [{'x': 'it\'s', 'd': 2020-01-02}, {'x': b\s, 'd': NULL}]}""",
     struct(l=column("l", "list", struct(x="varchar", d="date"))),
     {"l": [{"x": "it's", "d": dt.date(2020, 1, 2)}, {"x": "b\\s", "d": None}]}),
    (r"""{'it''s': 'x', 'b\s': 'y', 'a"b': 'z'}""", struct(**{"it's": "varchar", "b\\s": "varchar", 'a"b': "varchar"}),
     {"it's": "x", "b\\s": "y", 'a"b': "z"}),
    (r"""{'d': 1.50, 't': CAST('01:02:03' AS TIME), 'n': 7, 'b': true}""",
     struct(d="decimal(10,2)", t="time", n="uint64", b="boolean"),
     {"d": Decimal("1.50"), "t": dt.time(1, 2, 3), "n": 7, "b": True}),
    # Lists and maps are read as they are.
    (r"""['it\'s', b\s, 'q]']""", TEXTS, ["it's", "b\\s", "q]"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "type", "value"), KEPT)
def test_what_is_kept_is_what_was_given(text: str, type: LakeColumn, value: Any) -> None:
    assert from_text([text, None], type).to_pylist() == [value, None]


def test_numbers_that_are_none() -> None:
    (found,) = from_text(["{'f': CAST('nan' AS DOUBLE PRECISION)}"], struct(f="float64")).to_pylist()
    assert math.isnan(found["f"])


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(UserError, match="column s: a value that is kept in the catalog cannot be read as STRUCT"):
        from_text(["{'d': no date}"], struct(d="date"))
