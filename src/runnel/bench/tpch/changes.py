"""What happens to the tables between two refreshes.

| mix | changes |
|---|---|
| `refresh` | TPC-H's own refresh functions: RF1 inserts orders with their lineitems, RF2 deletes as many |
| `every_table` | `refresh`, and updates of the same share of customer, part, supplier, partsupp, orders and lineitem |
| `nations` | one row or two of nation and region each: comments, exchanged names, a nation in another region |

Nations are a mix of their own because one renamed nation concerns 4 % of all customers and what they bought: that is no
small change, whatever the size of the table.
"""

from __future__ import annotations

from runnel.bench.workload import Connection

_RF1 = """
CREATE TEMPORARY TABLE fresh ON COMMIT DROP AS
SELECT top.key + row_number() OVER (ORDER BY hashint8extended(t.o_orderkey, %(seed)s)) AS key, t.o_orderkey AS template,
       (dice(t.o_orderkey, %(seed)s + 1, 121) - 60)::integer AS days
FROM (SELECT o_orderkey FROM orders ORDER BY hashint8extended(o_orderkey, %(seed)s) LIMIT %(orders)s) t,
     (SELECT max(o_orderkey) AS key FROM orders) top;

INSERT INTO orders
SELECT f.key, 1 + dice(f.key, %(seed)s + 2, (SELECT max(c_custkey) FROM customer)), o_orderstatus, o_totalprice,
       o_orderdate + f.days, o_orderpriority, o_clerk, o_shippriority, o_comment
FROM fresh f JOIN orders o ON o.o_orderkey = f.template;

INSERT INTO lineitem
SELECT f.key, p.p_partkey, s.ps_suppkey, l_linenumber, l_quantity, round(l_quantity * p.p_retailprice, 2), l_discount,
       l_tax, l_returnflag, l_linestatus, l_shipdate + f.days, l_commitdate + f.days, l_receiptdate + f.days,
       l_shipinstruct, l_shipmode, l_comment
FROM fresh f
JOIN lineitem l ON l.l_orderkey = f.template
JOIN part p ON p.p_partkey = 1 + dice(f.key * 8 + l_linenumber, %(seed)s + 3, (SELECT max(p_partkey) FROM part))
CROSS JOIN LATERAL (
    SELECT ps_suppkey FROM partsupp WHERE ps_partkey = p.p_partkey
    ORDER BY ps_suppkey OFFSET l_linenumber %% 4 LIMIT 1) s;
"""
"""New orders look like existing ones, shifted by up to two months, of other customers, for other parts."""

_RF2 = """
CREATE TEMPORARY TABLE gone ON COMMIT DROP AS
SELECT o_orderkey AS key FROM orders ORDER BY hashint8extended(o_orderkey, %(seed)s + 4) LIMIT %(orders)s;
DELETE FROM lineitem WHERE l_orderkey IN (SELECT key FROM gone);
DELETE FROM orders WHERE o_orderkey IN (SELECT key FROM gone);
"""

_UPDATES = """
UPDATE customer SET
    c_acctbal = c_acctbal + dice(c_custkey, %(seed)s, 4001) - 2000,
    c_mktsegment = (ARRAY['BUILDING', 'MACHINERY', 'AUTOMOBILE', 'HOUSEHOLD', 'FURNITURE'])[
        1 + dice(c_custkey, %(seed)s + 1, 5)]
WHERE c_custkey IN (SELECT c_custkey FROM customer ORDER BY hashint8extended(c_custkey, %(seed)s) LIMIT %(customers)s);

UPDATE part SET
    p_retailprice = p_retailprice + 1,
    p_size = 1 + dice(p_partkey, %(seed)s + 1, 50),
    p_brand = 'Brand#' || 1 + dice(p_partkey, %(seed)s + 2, 5) || 1 + dice(p_partkey, %(seed)s + 3, 5)
WHERE p_partkey IN (SELECT p_partkey FROM part ORDER BY hashint8extended(p_partkey, %(seed)s) LIMIT %(parts)s);

UPDATE supplier SET
    s_acctbal = s_acctbal + 100,
    s_nationkey = dice(s_suppkey, %(seed)s + 1, 25),
    s_comment = CASE dice(s_suppkey, %(seed)s + 2, 4) WHEN 0 THEN 'Customer sends Complaints' ELSE s_comment END
WHERE s_suppkey IN (SELECT s_suppkey FROM supplier ORDER BY hashint8extended(s_suppkey, %(seed)s) LIMIT %(suppliers)s);

UPDATE partsupp SET
    ps_supplycost = greatest(1, ps_supplycost + dice(ps_partkey, %(seed)s + 1, 201) - 100),
    ps_availqty = 1 + dice(ps_partkey, %(seed)s + 2, 9999)
WHERE (ps_partkey, ps_suppkey) IN (
    SELECT ps_partkey, ps_suppkey FROM partsupp
    ORDER BY hashint8extended(ps_partkey * 1000003 + ps_suppkey, %(seed)s) LIMIT %(partsupps)s);

UPDATE orders SET
    o_orderstatus = (ARRAY['F', 'O', 'P'])[1 + dice(o_orderkey, %(seed)s + 1, 3)],
    o_orderpriority = (ARRAY['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW'])[
        1 + dice(o_orderkey, %(seed)s + 2, 5)],
    o_orderdate = o_orderdate + (dice(o_orderkey, %(seed)s + 3, 61) - 30)::integer,
    o_comment = CASE dice(o_orderkey, %(seed)s + 4, 4) WHEN 0 THEN 'special handling requests' ELSE o_comment END
WHERE o_orderkey IN (
    SELECT o_orderkey FROM orders ORDER BY hashint8extended(o_orderkey, %(seed)s + 5) LIMIT %(orders)s);

-- Whole orders, and large ones: what Q18 looks for is rare otherwise.
UPDATE lineitem SET
    l_quantity = 25 + dice(l_orderkey * 8 + l_linenumber, %(seed)s + 1, 26),
    l_discount = dice(l_orderkey * 8 + l_linenumber, %(seed)s + 2, 11) / 100.0,
    l_shipdate = l_shipdate + (dice(l_orderkey, %(seed)s + 3, 61) - 30)::integer,
    l_receiptdate = l_receiptdate + (dice(l_orderkey, %(seed)s + 4, 61) - 30)::integer
WHERE l_orderkey IN (
    SELECT o_orderkey FROM orders ORDER BY hashint8extended(o_orderkey, %(seed)s + 6) LIMIT %(orders)s);
"""

_NATIONS = """
UPDATE nation SET n_comment = 'changed in round ' || %(seed)s WHERE n_nationkey = %(seed)s %% 25;
UPDATE nation n SET n_name = o.n_name FROM nation o
WHERE (n.n_nationkey, o.n_nationkey) IN (SELECT * FROM pair UNION ALL SELECT b, a FROM pair);
UPDATE nation SET n_regionkey = (n_regionkey + 1) %% 5 WHERE n_nationkey = dice(%(seed)s, 3, 25);
UPDATE region SET r_comment = 'changed in round ' || %(seed)s WHERE r_regionkey = %(seed)s %% 5;
UPDATE region n SET r_name = o.r_name FROM region o
WHERE (n.r_regionkey, o.r_regionkey) IN ((1, 2 + %(seed)s %% 2), (2 + %(seed)s %% 2, 1));
"""
_PAIR = """
CREATE TEMPORARY TABLE pair ON COMMIT DROP AS
SELECT n.n_nationkey AS a, o.n_nationkey AS b
FROM nation n JOIN nation o ON o.n_nationkey = (n.n_nationkey + 1 + dice(%(seed)s, 2, 24)) %% 25
WHERE n.n_name = (ARRAY['GERMANY', 'FRANCE', 'BRAZIL', 'CANADA', 'SAUDI ARABIA'])[1 + %(seed)s %% 5];
"""
"""One of the nations that the queries ask for, and another one."""


def refresh(conn: Connection, share: float, seed: int) -> None:
    """RF1 and RF2 over a share of the orders."""
    _run(conn, _RF1 + _RF2, _sizes(conn, share, seed))


def every_table(conn: Connection, share: float, seed: int) -> None:
    """RF1, RF2, and updates of every table but the two smallest."""
    _run(conn, _RF1 + _RF2 + _UPDATES, _sizes(conn, share, seed))


def nations(conn: Connection, seed: int) -> None:
    """Changes of nation and region."""
    _run(conn, _PAIR + _NATIONS, {"seed": seed})


def _sizes(conn: Connection, share: float, seed: int) -> dict[str, int]:
    """How many rows of each table the share is: at least one."""
    names = ("customer", "part", "supplier", "partsupp", "orders")
    sizes: dict[str, int] = {"seed": seed}
    for name in names:
        row = conn.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
        assert row is not None
        sizes[name if name.endswith("s") else f"{name}s"] = max(1, round(row[0] * share))
    return sizes


def _run(conn: Connection, script: str, values: dict[str, int]) -> None:
    for statement in script.split(";"):
        if statement.strip():
            conn.execute(statement.encode(), values)
