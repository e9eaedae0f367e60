"""The way out of errors that PostgreSQL reports without one."""

from __future__ import annotations

import re

from runnel.errors import RunnelError
from runnel.model.names import quote

_ROLE = re.compile(r'(?:permission denied to set role|must be able to SET ROLE) "(?P<role>.+)"')


def missing_grant(message: str, engine_role: str) -> str | None:
    """The GRANT without which an engine that is no superuser cannot act for another role.

    >>> missing_grant('permission denied to set role "alice"', "runnel")
    'As an administrator run: GRANT "alice" TO "runnel" WITH INHERIT TRUE, SET TRUE;'
    """
    found = _ROLE.search(message)
    if found is None:
        return None
    granted = f"GRANT {quote(found['role'])} TO {quote(engine_role)} WITH INHERIT TRUE, SET TRUE;"
    return f"As an administrator run: {granted}"


def advised(error: RunnelError, engine_role: str) -> RunnelError:
    """An error with a hint, when there is one to give."""
    if error.hint is None:
        error.hint = missing_grant(error.message, engine_role)
    return error
