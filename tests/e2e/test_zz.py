import pytest
from tests.e2e.helpers import *
def test_zz(db, client, stream, check):
    script(db, """CREATE TABLE a (k int); CREATE TABLE b (k int, j int); CREATE TABLE c (j int);
    INSERT INTO b VALUES (1,10); INSERT INTO c VALUES (10),(20)""")
    stream("r", "SELECT a.k, c.j FROM a JOIN b ON a.k=b.k JOIN c ON c.j=b.j")
    with db.transaction(): script(db, "INSERT INTO a VALUES (1); UPDATE b SET j=20")
    check("r")
