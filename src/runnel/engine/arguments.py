"""What a call of a SQL function must name: NULL, or an empty query, is told by the argument and not by its effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runnel.errors import UserError

_NEEDED = {
    "create": ("name", "query"),
    "create_or_replace": ("name", "query"),
    "alter": ("name",),
    "drop": ("name",),
    "refresh": ("name",),
    "resume": ("name",),
    "verify": ("name",),
    "explain": ("name",),
    "validate": ("query",),
    "attach_lake": ("name",),
    "detach_lake": ("name",),
    "set_lake_option": ("name", "option"),
}

_NAMED = ("create", "create_or_replace")

_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def check_arguments(kind: str, args: Mapping[str, Any]) -> None:
    """Refuse a call without what it is about."""
    for key in _NEEDED.get(kind, ()):
        given = args.get(key)
        if given is None:
            raise UserError(
                f"the argument {key} must not be NULL", hint=f"Give it by name: {key} => '...'.", sqlstate="22004"
            )
        if kind in _NAMED and key == "name" and not str(given).strip():
            raise UserError("the name is empty", hint="Use 'table' or 'schema.table'.", sqlstate="42602")
    query = args.get("query")
    if query is not None and is_empty(str(query)):
        raise UserError(
            "the query is empty", hint="Give a SELECT, for instance: SELECT count(*) AS n FROM orders", sqlstate="42601"
        )


def is_empty(query: str) -> bool:
    """Whether a text holds nothing but white space, comments and semicolons.

    >>> is_empty(" ; -- nothing"), is_empty("/* a */ SELECT"), is_empty("SELECT '--'")
    (True, False, False)
    """
    return not _COMMENTS.sub("", query).strip(" \t\r\n\f\v;")
