"""A lake of our own making for tests of writing: its connections, and one-line commits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.lake.commit import Draft, snapshot
from runnel.lake.create import create_lake
from runnel.lake.model import Lake


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's two connections to a lake's catalog."""

    lake: Lake
    conn: psycopg.Connection[Any]
    observer: psycopg.Connection[Any]

    @contextlib.contextmanager
    def commit(self, message: str | None = None) -> Iterator[Draft]:
        """One snapshot in one transaction."""
        with self.conn.transaction(), snapshot(self.conn, self.observer, self.lake, message=message) as draft:
            yield draft


@contextlib.contextmanager
def writer(dsn: str, lake: Lake) -> Iterator[Writer]:
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as observer:
        yield Writer(lake, conn, observer)


@contextlib.contextmanager
def new_lake(dsn: str, data_path: str, **options: Any) -> Iterator[Writer]:
    """Create a lake in schema `ducklake` and open it for writing."""
    with psycopg.connect(dsn) as conn:
        lake = create_lake(conn, "ducklake", data_path, **options)
    with writer(dsn, lake) as opened:
        yield opened
