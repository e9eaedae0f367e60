"""A connection lost at a bad moment is nobody's verdict on a query."""

from __future__ import annotations

import psycopg
import pytest

from runnel.catalog.owner import AsOwner
from runnel.sql import describe
from runnel.sql.compile import compile_query

QUERY = "SELECT date_trunc('minute', at) AS minute, sum(x) AS total FROM public.t GROUP BY 1"


def test_losing_the_server_while_compiling_does_not_change_the_mode(
    dsn: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for an unknown expression, it would turn a differential stream table into a full one."""
    db.execute("CREATE TABLE t (x numeric, at timestamptz)")
    create_probe = describe._create_probe

    def lose_then_create(asking: AsOwner, query: str, *, point: bool = False) -> None:
        if "NULL::" in query:  # an expression is being typed
            db.execute("SELECT pg_terminate_backend(%s, 5000)", (asking.conn.info.backend_pid,))
        create_probe(asking, query, point=point)

    with psycopg.connect(dsn, autocommit=True) as conn, conn.transaction():
        assert compile_query(conn, QUERY, settings={}).plan is not None
    monkeypatch.setattr(describe, "_create_probe", lose_then_create)
    conn = psycopg.connect(dsn, autocommit=True)
    with pytest.raises(psycopg.OperationalError), conn.transaction():
        compile_query(conn, QUERY, settings={})
    conn.close()
