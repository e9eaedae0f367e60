"""Events as Nexmark generates them, made inside PostgreSQL, and what happens to them afterwards.

Of 50 events one is a person, three are auctions and 46 are bids. Half of the bids go to a hot auction, the others to
one of the last hundred; most sellers and bidders are hot too. Event n happens half a second after event n - 1.
"""

from __future__ import annotations

from runnel.bench.workload import Connection

_PERSONS = """
INSERT INTO person
SELECT e / 50,
       (ARRAY['Peter', 'Paul', 'Luke', 'John', 'Saul', 'Vicky', 'Kate', 'Julie', 'Sarah', 'Deiter', 'Walter'])[
           1 + dice(e, 1, 11)] || ' ' ||
       (ARRAY['Shultz', 'Abrams', 'Spencer', 'White', 'Bartels', 'Walton', 'Smith', 'Jones', 'Noris'])[
           1 + dice(e, 2, 9)],
       'p' || e / 50 || '@example.com',
       lpad(dice(e, 3, 10000000000000000)::text, 16, '0'),
       (ARRAY['Phoenix', 'Los Angeles', 'San Francisco', 'Boise', 'Portland', 'Bend', 'Redmond', 'Seattle', 'Kent',
              'Cheyenne'])[1 + dice(e, 4, 10)],
       (ARRAY['AZ', 'CA', 'ID', 'OR', 'WA', 'WY'])[1 + dice(e, 5, 6)],
       timestamp '2015-07-15 18:00' + e * interval '0.5 s',
       md5('p' || e)
FROM generate_series(%(first)s::int8, %(last)s::int8) e WHERE e %% 50 = 0
"""

_AUCTIONS = """
INSERT INTO auction
SELECT a.id, 'item ' || dice(a.id, 1, 1000), md5('d' || a.id), price, price + dice(a.id, 3, 10000),
       a.at, a.at + (10 + dice(a.id, 4, 600)) * interval '1 s',
       CASE WHEN dice(a.id, 5, 4) > 0 THEN a.person / 10 * 10 ELSE greatest(a.person - dice(a.id, 6, 200), 0) END,
       10 + dice(a.id, 7, 5), md5('a' || a.id)
FROM (SELECT e / 50 * 3 + e %% 50 - 1 AS id, e / 50 AS person,
             timestamp '2015-07-15 18:00' + e * interval '0.5 s' AS at
      FROM generate_series(%(first)s::int8, %(last)s::int8) e WHERE e %% 50 BETWEEN 1 AND 3) a,
     LATERAL (SELECT (100 * 10 ^ (dice(a.id, 2, 6000) / 1000.0))::bigint AS price) p
"""

_BIDS = """
INSERT INTO bid
SELECT CASE WHEN dice(b.e, 1, 2) = 0 THEN b.auction / 100 * 100 ELSE greatest(b.auction - dice(b.e, 2, 100), 0) END,
       CASE WHEN dice(b.e, 3, 4) > 0 THEN b.person / 10 * 10 + 1 ELSE greatest(b.person - dice(b.e, 4, 1000), 0) END,
       (100 * 10 ^ (dice(b.e, 5, 6000) / 1000.0))::bigint,
       CASE WHEN c.n < 4 THEN (ARRAY['Google', 'Facebook', 'Baidu', 'Apple'])[1 + c.n] ELSE 'channel-' || c.n END,
       'https://www.nexmark.com/' || left(md5('x' || c.n), 3) || '/' || left(md5('y' || c.n), 3) || '/' ||
       left(md5('z' || c.n), 3) || '/item.htm?query=1' ||
       CASE WHEN c.n >= 4 THEN '&channel_id=' || c.n * 7919 ELSE '' END,
       timestamp '2015-07-15 18:00' + b.e * interval '0.5 s',
       md5('b' || b.e)
FROM (SELECT e, e / 50 * 3 + 2 AS auction, e / 50 AS person
      FROM generate_series(%(first)s::int8, %(last)s::int8) e WHERE e %% 50 >= 4) b,
     LATERAL (SELECT CASE WHEN dice(b.e, 6, 2) = 0 THEN dice(b.e, 7, 4) ELSE dice(b.e, 8, 10000) END AS n) c
"""

_CHANGES = (
    """
DELETE FROM bid WHERE date_time IN (
    SELECT date_time FROM bid ORDER BY hashtextextended(extra, %(seed)s) LIMIT %(bids)s)
""",
    """
UPDATE bid SET price = price + 1 + dice(price, %(seed)s, 100000) WHERE date_time IN (
    SELECT date_time FROM bid ORDER BY hashtextextended(extra, %(seed)s + 1) LIMIT %(bids)s)
""",
    """
UPDATE auction SET
    category = 10 + dice(id, %(seed)s, 5),
    expires = expires + (dice(id, %(seed)s + 1, 601) - 300) * interval '1 s'
WHERE id IN (SELECT id FROM auction ORDER BY hashint8extended(id, %(seed)s) LIMIT %(auctions)s)
""",
    """
UPDATE person SET state = (ARRAY['AZ', 'CA', 'ID', 'OR', 'WA', 'WY'])[1 + dice(id, %(seed)s, 6)]
WHERE id IN (SELECT id FROM person ORDER BY hashint8extended(id, %(seed)s) LIMIT %(persons)s)
""",
    """
UPDATE side_input SET value = 'changed in round ' || %(seed)s
WHERE key IN (SELECT key FROM side_input ORDER BY hashint8extended(key, %(seed)s) LIMIT %(sides)s)
""",
)

_LAST_EVENT = """
SELECT (extract(epoch FROM max(date_time) - timestamp '2015-07-15 18:00') * 2)::int8
FROM (SELECT date_time FROM person UNION ALL SELECT date_time FROM auction UNION ALL SELECT date_time FROM bid) e
"""


def events(conn: Connection, first: int, last: int) -> None:
    """Events number `first` to `last`, both included."""
    for statement in (_PERSONS, _AUCTIONS, _BIDS):
        conn.execute(statement.encode(), {"first": first, "last": last})


def more_events(conn: Connection, share: float) -> None:
    """What a stream does: the next events, as many as a share of those that are there."""
    last = _value(conn, _LAST_EVENT)
    events(conn, last + 1, last + max(50, round(last * share)))


def corrections(conn: Connection, share: float, seed: int) -> None:
    """What a database does as well: rows are updated and deleted."""
    values = {"seed": seed}
    for name, table in (("bids", "bid"), ("auctions", "auction"), ("persons", "person"), ("sides", "side_input")):
        values[name] = max(1, round(_value(conn, f"SELECT count(*) FROM {table}") * share))
    for statement in _CHANGES:
        conn.execute(statement.encode(), values)


def _value(conn: Connection, query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
