"""What sinks have in common while an engine runs: connections, Spark, and the search for files left behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.catalog.lost import is_lost
from runnel.errors import RunnelError
from runnel.lake.attached import load_lakes
from runnel.lake.store.storage import StoreError
from runnel.sinks.known import Known
from runnel.sinks.leftovers import Leftovers
from runnel.sinks.session import Connections
from runnel.sinks.uploads import Uploads

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


@dataclass
class Shared:
    """One per worker of an engine."""

    dsn: str
    sessions: Sessions
    leftovers: Leftovers
    """One for all workers of the engine, which closes it."""
    outboxes: Known[Any]
    """One for all workers, too: what one attaches, all must write to."""
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(self.dsn)

    def uploads(self, conn: Connection) -> Uploads:
        """The files of the transaction on that connection, none so far."""
        return Uploads(self.connections.observer, lambda: _transaction_id(conn))

    def undo(self, uploads: Uploads, error: BaseException) -> None:
        """After a failure: what was uploaded goes, if it is sure that nothing of it was committed."""
        if not uploads.any:
            return
        try:
            # A store that has just failed would only make us wait.
            if not isinstance(error, StoreError):
                uploads.undo(self.connections, load_lakes(self.connections.observer()))
        except (RunnelError, psycopg.Error) as trouble:
            log.info("files of the failed refresh are removed later: %s", trouble)
        self.leftovers.wake()

    def close(self) -> None:
        """Let go of all connections."""
        self.connections.close()


@contextmanager
def postponed(conn: Connection) -> Iterator[None]:
    """What cannot be done now is left to the next turn, and keeps nothing else from being done."""
    try:
        yield
    except (RunnelError, psycopg.Error) as error:
        if is_lost(conn):
            raise
        log.info("sinks are tidied later: %s", error)


def _transaction_id(conn: Connection) -> str:
    row = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    return str(row[0])
