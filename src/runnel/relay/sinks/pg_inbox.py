"""An inbox in another PostgreSQL: a message that comes twice is taken once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from runnel.catalog.lost import first_line
from runnel.relay.config import Options
from runnel.relay.message import Message, Refused, Unavailable

INSERT = """
INSERT INTO {} (event_id, source, payload, headers) VALUES (%s, %s, %s::jsonb, %s::jsonb)
ON CONFLICT (event_id) DO NOTHING
"""


class PgInboxSink:
    """Inserts batches, each in a transaction."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("postgres_url", "inbox", "schema"))
        self._dsn = options.text("postgres_url")
        table = sql.Identifier(options.text("schema", "tide"), f"{options.text('inbox')}_inbox")
        self._insert = sql.SQL(INSERT).format(table)
        self._source = options.pipeline.name
        self._conn: psycopg.Connection[Any] | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """One transaction."""
        try:
            if self._conn is None or self._conn.closed:
                self._conn = psycopg.connect(
                    self._dsn, autocommit=True, connect_timeout=10, application_name="runnel relay"
                )
            with self._conn.transaction(), self._conn.cursor() as cursor:
                cursor.executemany(
                    self._insert,
                    [(m.dedup_key, self._source, m.payload, json.dumps(dict(m.headers))) for m in messages],
                )
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            # The table's owner has put a condition on it, and a row does not meet it.
            raise Refused(f"the inbox refused: {first_line(error)}") from None
        except psycopg.Error as error:
            self.close()
            # Its text names host and user, never the password.
            raise Unavailable(f"the inbox cannot be written: {first_line(error)}") from None

    def close(self) -> None:
        """End the session."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None
