"""What everybody may read of a failure.

The catalog's tables are readable by every role, but a message may quote a row: `invalid input syntax for type
integer: "..."`. So the tables keep the name of the condition, and the whole text goes where only the owner's role
looks (`pgt_error_texts`). Messages that cannot quote a row stay as they are.
"""

from __future__ import annotations

import re

import psycopg

from runnel.catalog.owner import SCHEMA
from runnel.errors import RunnelError, SparkFailure, UserError

# Classes of SQLSTATE about objects, rights, resources and connections: their texts name no values.
_ABOUT_NO_ROW = frozenset(
    {"08", "0A", "25", "28", "2B", "3B", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "F0"}
)
_WHERE = "who may act as its owner reads the message in pgtrickle.pgt_status() and get_refresh_history()"


def public_message(cause: Exception) -> str | None:
    """The name of the condition, or None when the message itself quotes no row.

    >>> public_message(psycopg.errors.InvalidTextRepresentation('invalid input: "secret"')).partition(";")[0]
    'invalid text representation (22P02)'
    >>> public_message(psycopg.errors.InsufficientPrivilege("permission denied for table t")) is None
    True
    """
    if isinstance(cause, psycopg.Error):
        state, said_by_code = cause.sqlstate, _is_said_by_code(cause.diag.context or "")
    elif isinstance(cause, RunnelError) and not isinstance(cause, SparkFailure):
        state, said_by_code = cause.sqlstate, False
        if state is None:
            return None
    else:
        # Spark's and Python's own errors may quote whatever they stumbled over.
        return f"internal error ({type(cause).__name__}); {_WHERE}"
    if state is not None and state[:2] in _ABOUT_NO_ROW and not said_by_code:
        return None
    return f"{condition(state)}; {_WHERE}"


def _is_said_by_code(context: str) -> bool:
    """Whether a function raised it, which may say what it likes; ours, which only run statements, do not count.

    >>> _is_said_by_code("PL/pgSQL function pgtrickle_run.run_16400(text,text) line 5 at EXECUTE")
    False
    """
    return any("function" in line and f"{SCHEMA}." not in line for line in context.splitlines())


def condition(state: str | None) -> str:
    """A SQLSTATE in words.

    >>> condition("22012"), condition("P0001"), condition("22ZZZ")
    ('division by zero (22012)', 'raise exception (P0001)', 'error 22ZZZ')
    """
    if state is None:
        return "an error without a code"
    try:
        name = psycopg.errors.lookup(state).__name__
    except KeyError:
        return f"error {state}"
    return f"{re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', name).lower()} ({state})"


def masked(cause: Exception) -> Exception:
    """A failure as somebody may see it who may not act as the table's owner."""
    shown = public_message(cause)
    if shown is None:
        return cause
    state = cause.sqlstate if isinstance(cause, (psycopg.Error, RunnelError)) else None
    return UserError(shown, sqlstate=state)
