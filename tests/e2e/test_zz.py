import pytest
from tests.e2e.helpers import *
def test_zz(db, client, stream, check):
    script(db, """CREATE TABLE h (name text); CREATE TABLE s (id int, shop text); CREATE TABLE t (id int);
    INSERT INTO h VALUES ('a'),('b'); INSERT INTO s VALUES (1,'a'),(2,'a'); INSERT INTO t VALUES (2),(3)""")
    stream("r", "SELECT h.name, s.id, t.id AS twin FROM h LEFT JOIN s ON s.shop = h.name LEFT JOIN t ON t.id = s.id + 1")
    print("\n".join(client.explain("r")))
    for c in ["INSERT INTO s VALUES (1, 'b')", "INSERT INTO t VALUES (3)", "DELETE FROM t WHERE id=2", "UPDATE s SET shop='b'", "DELETE FROM s", "INSERT INTO s VALUES (5,'a'); INSERT INTO t VALUES (6)", "INSERT INTO t VALUES (9); INSERT INTO s VALUES (8,'b'); INSERT INTO h VALUES ('a')"]:
        with db.transaction(): script(db, c)
        print(c); check("r")
