"""One step of a pipeline to an inbox: what has arrived, written once, then acknowledged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from runnel.catalog.owner import as_owner
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.relay import catalog
from runnel.relay.config import Pipeline
from runnel.relay.port import Arrival, Source
from runnel.relay.sources import wrapped

Connection = psycopg.Connection[Any]


@dataclass
class Reception:
    """A pipeline to an inbox, on a connection of its own."""

    conn: Connection
    pipeline: Pipeline
    source: Source

    def step(self, seconds: float) -> int:
        """Wait for messages and take them in; how many came, new or again."""
        arrived = self.source.receive(self.pipeline.batch_size, seconds)
        if not arrived:
            return 0
        table = catalog.inbox_table(self.conn, self.pipeline.place)
        if table is None:
            raise UserError(
                f"the table of inbox {self.pipeline.place} is gone, or is not its owner's", sqlstate="42P01"
            )
        try:
            self._insert(table, arrived)
        except (psycopg.DataError, psycopg.errors.StatementTooComplex, UnicodeEncodeError):
            # One that cannot be stored must not keep all that come after it waiting.
            self._insert(table, [self._storable(each) for each in arrived])
        self.source.acknowledge()
        return len(arrived)

    def _insert(self, table: tuple[str, str, str], arrived: Sequence[Arrival]) -> None:
        owner, schema, name = table
        with self.conn.transaction():
            # The table may have triggers of its owner's: they run with the owner's rights.
            as_owner(self.conn, owner).run(
                f"INSERT INTO {Name(schema, name).sql()} (event_id, source, payload, headers) "
                "SELECT r.event_id, %(source)s, r.payload::jsonb, r.headers::jsonb "
                "FROM unnest(%(ids)s::text[], %(payloads)s::text[], %(headers)s::text[]) WITH ORDINALITY "
                "AS r (event_id, payload, headers, place) ORDER BY r.place ON CONFLICT (event_id) DO NOTHING",
                {
                    "source": self.pipeline.name,
                    "ids": [a.event_id for a in arrived],
                    "payloads": [a.payload for a in arrived],
                    "headers": [json.dumps(dict(a.headers)) for a in arrived],
                },
            )
            catalog.received(self.conn, self.pipeline.name, len(arrived))

    def _storable(self, arrival: Arrival) -> Arrival:
        """As it is, or as a text where PostgreSQL's JSON cannot hold it: half a character, a number without end."""
        headers = json.dumps(dict(arrival.headers))
        return replace(
            arrival,
            event_id=arrival.event_id.encode(errors="replace").decode().replace("\0", ""),
            payload=arrival.payload if self._is_jsonb(arrival.payload) else wrapped(arrival.payload),
            headers=arrival.headers if self._is_jsonb(headers) else {"text": headers},
        )

    def _is_jsonb(self, text: str) -> bool:
        try:
            with self.conn.transaction():
                self.conn.execute("SELECT %s::jsonb", (text,))
        except (psycopg.DataError, psycopg.errors.StatementTooComplex):
            return False
        return True
