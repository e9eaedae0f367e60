"""A sink's part in a transaction, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from runnel.ports.sink import Publication, Sink


@contextmanager
def taking_part(sink: Sink, conn: psycopg.Connection[Any]) -> Iterator[Publication]:
    """Put this around the transaction: the sink hears how that ended, one way or the other."""
    publication = sink.publication(conn)
    try:
        yield publication
    except BaseException as error:
        publication.undo(error)
        raise
    publication.committed()
