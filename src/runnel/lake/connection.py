"""The one way to a lake's catalog on another server.

A lake in the engine's own database is reached by whatever connection asks for it. One elsewhere has a connection
string; what can go wrong with that is said here, without the password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runnel.catalog.lost import first_line
from runnel.catalog.sessions import connect
from runnel.errors import TransientError, UserError
from runnel.lake.format.model import Lake

CONNECT_SECONDS = 10

Connection = psycopg.Connection[Any]


def connect_catalog(lake: Lake, settings: Mapping[str, str] | None = None) -> Connection:
    """A session on the server that holds a lake's catalog, in autocommit."""
    assert lake.dsn is not None, "a lake of the engine's own database needs no connection of its own"
    try:
        conninfo_to_dict(lake.dsn)
    except psycopg.ProgrammingError:
        # libpq quotes what it could not read, which may be the password.
        raise UserError(f"the connection string of lake {lake.name} cannot be read", sqlstate="22023") from None
    try:
        return connect(lake.dsn, "runnel lake", settings, timeout=CONNECT_SECONDS)
    except psycopg.OperationalError as error:
        raise unreachable(lake, error) from None


def unreachable(lake: Lake, error: psycopg.Error) -> TransientError:
    """What to say when the server of a catalog cannot be reached, or is lost."""
    # libpq repeats host and user in its message, never the password.
    return TransientError(
        f"the catalog of lake {lake.name} cannot be reached: {first_line(error)}",
        hint="Check its connection string, and that its server is up. Stream tables go on when it is back.",
    )
