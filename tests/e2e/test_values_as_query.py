"""VALUES as a whole query: rows that never change."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

import runnel


def test_values_as_the_query(client: runnel.Client, db: psycopg.Connection, check: Callable[..., None]) -> None:
    client.create_stream_table("constants", "VALUES (1, 'a'), (2, NULL)", refresh_mode="DIFFERENTIAL")
    assert sorted(db.execute("SELECT column1, column2 FROM constants").fetchall()) == [(1, "a"), (2, None)]
    check("constants")
