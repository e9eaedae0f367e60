"""Every type on its way to a lake, as text in small publications and in binary in large ones."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import runnel
from runnel.errors import RunnelError
from tests.lake.duck import Duck
from tests.lake.places import Place
from tests.lake.sinks import lake, place, same
from tests.sampling import sampled

__all__ = ["lake", "place"]

Db = psycopg.Connection[Any]

COLUMNS = (
    "a smallint, b int, c bigint, d real, e double precision, f numeric, g numeric(38,3), h text, i varchar(5), "
    "j char(4), k bool, l date, m time, n timestamp, o timestamptz, p uuid, q bytea, r json, s jsonb, t int[], "
    'u interval, v mood, w timetz, x int4range, y inet, z text[], "We ""ird, %s" int'
)
ORDINARY = r"""
INSERT INTO everything VALUES (1, -2, 3, 1.5, -0.1, 123.456789, 99.125, 'é''x" ,
  z', 'ab', 'c', true, '2024-02-29', '12:34:56.789', '1999-12-31 23:59:59.999999', '2024-06-01 12:00:00+02',
  '00000000-0000-0000-0000-0000000000ff', '\x00ff', '{"a": 1}', '[1, {"b": null}]', '{1,NULL,3}', '1 mon 2 days 03:04',
  'ok', '12:00+02', '[1,3)', '10.0.0.1/8', '{"a,b",NULL,""}', 7);
INSERT INTO everything VALUES (2, 0, 0, 0, 0, 0, 0, '', '', '', false)
"""
# Python has no such dates: they are compared as text.
SPECIAL = """
INSERT INTO everything (a, d, e, l, n, o, m) VALUES
  (10, 'NaN', 'Infinity', 'infinity', 'infinity', '-infinity', '24:00'),
  (11, '-Infinity', 'NaN', '-infinity', '-infinity', 'infinity', '00:00'),
  (12, 1, 1, '4000-01-01 BC', '0001-01-01 BC', '20000-12-31 00:00+00', NULL)
"""


@pytest.mark.parametrize("large", sampled([False, True], every=2))
def test_every_type(
    large: bool, db: Db, place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    db.execute("CREATE TYPE mood AS ENUM ('ok', 'bad')")
    db.execute(f"CREATE TABLE everything ({COLUMNS})".encode())
    db.execute(ORDINARY.encode())
    client.create_stream_table("t", "SELECT * FROM everything", schedule="1h", sink="ducklake")
    same(db, lake, "t")
    types = dict(lake.rows("SELECT column_name, column_type FROM (DESCRIBE t)"))
    assert (types["g"], types["f"], types["s"], types["v"]) == ("DECIMAL(38,3)", "DECIMAL(38,20)", "JSON", "VARCHAR")
    db.execute(SPECIAL)
    client.refresh("t")
    shown = "SELECT a, d::{0}, e::{0}, l::{0}, n::{0}, m::{0} FROM t WHERE a >= 10 ORDER BY a"
    ours = db.execute(shown.format("text").encode()).fetchall()
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "1.0": "1"}
    theirs = [
        tuple(words.get(v, v.replace(" (BC)", " BC")) if isinstance(v, str) else v for v in row)
        for row in lake.rows(shown.format("VARCHAR"))
    ]
    assert [(*row[:4], *row[5:]) for row in theirs] == [(*row[:4], *row[5:]) for row in ours]
    assert lake.rows("SELECT a FROM t WHERE l = 'infinity'::DATE OR o = 'infinity'::TIMESTAMPTZ ORDER BY 1") == [
        (10,),
        (11,),
    ]
    db.execute("DELETE FROM everything WHERE a >= 10; UPDATE everything SET v = 'bad' WHERE a = 1")
    client.refresh("t")
    same(db, lake, "t")
    assert db.execute("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE reason IS NOT NULL").fetchone() == (0,)


def test_sums_keep_their_digits_and_what_does_not_fit_is_named(
    db: Db, place: Place, lake: Duck, client: runnel.Client
) -> None:
    db.execute("CREATE TABLE sales (kind text, amount numeric(10,2), wild numeric)")
    db.execute("INSERT INTO sales VALUES ('a', 1.50, 1), ('a', 2.25, 2)")
    client.create_stream_table(
        "totals", "SELECT kind, sum(amount) AS total, avg(amount) AS mean FROM sales GROUP BY kind", sink="ducklake"
    )
    assert str(lake.rows("SELECT total, mean FROM totals")[0][0]) == "3.75"
    with pytest.raises(RunnelError, match=r"column wild is decimal\(38,20\) there; .*NaN"):
        db.execute("INSERT INTO sales VALUES ('b', 1, 'NaN')")
        client.create_stream_table("wild", "SELECT wild FROM sales", sink="ducklake")


MISFITS = [
    ("numeric", "NaN", r"column v is decimal\(38,20\) there; decimals have no NaN", "NULLIF(v, 'NaN')"),
    ("numeric(10,2)", "NaN", r"column v is decimal\(10,2\) there; decimals have no NaN", "float8"),
    ("numeric", "-Infinity", r"column v is decimal\(38,20\) there; decimals have no Infinity", "float8"),
    ("numeric", "1e30", r"column v is decimal\(38,20\) there; ", "18 before and 20 after the point"),
    ("timestamp", "294276-12-31 23:59", "column v is timestamp there; .* year 294246", "v::text"),
    ("timestamptz", "294276-12-31 23:59+00", "column v is timestamptz there; .* year 294246", "'infinity'"),
]


@pytest.mark.parametrize("large", sampled([False, True], every=2))
def test_a_value_without_a_place_is_named_with_its_way_out(
    large: bool, db: Db, place: Place, lake: Duck, client: runnel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    for i, (column, value, said, way_out) in enumerate(MISFITS):
        db.execute(f"CREATE TABLE t{i} (id int, v {column})".encode())
        db.execute(f"INSERT INTO t{i} VALUES (1, NULL), (2, '{value}')".encode())
        with pytest.raises(RunnelError, match=said) as refused:
            client.create_stream_table(f"s{i}", f"SELECT id, v FROM t{i}", schedule="1h", sink="ducklake")
        assert way_out in (refused.value.hint or "")


def test_a_value_without_a_place_harms_nothing_else(db: Db, place: Place, lake: Duck, client: runnel.Client) -> None:
    db.execute("CREATE TABLE t (id int, v numeric)")
    db.execute("INSERT INTO t VALUES (1, NULL), (2, 0.5)")
    client.create_stream_table("copy", "SELECT id, v FROM t", schedule="1h", sink="ducklake")
    client.create_stream_table("count", "SELECT count(*) AS n FROM t", schedule="1h", sink="ducklake")
    db.execute("INSERT INTO t VALUES (3, 'NaN')")
    with pytest.raises(RunnelError, match="decimals have no NaN"):
        client.refresh("copy")
    client.refresh("count")
    same(db, lake, "count")
    db.execute("DELETE FROM t WHERE id = 3")
    client.refresh("copy")
    same(db, lake, "copy")
