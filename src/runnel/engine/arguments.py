"""What a call must say: arguments that are missing or empty are named before anything is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runnel.engine.capturing import ARGUMENT as CDC_MODE
from runnel.engine.capturing import MODES, wished_mode
from runnel.errors import UserError

_DEFINING = ("name", "query")
FORGOTTEN = "ducklake_expired"
"""The argument that says what to do when a source no longer knows what changed since the frontier."""
Required = Mapping[str, tuple[str, tuple[str, ...]]]
REQUIRED: Required = {
    "create": ("create_stream_table", _DEFINING),
    "create_or_replace": ("create_or_replace_stream_table", _DEFINING),
    "create_if_not_exists": ("create_stream_table_if_not_exists", _DEFINING),
    "alter": ("alter_stream_table", ("name",)),
    "drop": ("drop_stream_table", ("name",)),
    "refresh": ("refresh_stream_table", ("name",)),
    "cancel": ("cancel", ("name",)),
    "resume": ("resume_stream_table", ("name",)),
    "verify": ("verify_stream_table", ("name",)),
    "set_tests": ("set_tests", ("name", "tests")),
    "explain": ("explain_stream_table", ("name",)),
    "validate": ("validate_query", ("query",)),
}
"""By kind of request: the function as users call it, and the arguments it cannot do without."""

_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

# Accepted so that scripts written for pg_trickle run; each says what Runnel does instead.
_FIXED = {"diamond_consistency": ("atomic",)}


def require_arguments(kind: str, args: Mapping[str, Any], known: Required = REQUIRED) -> None:
    """Refuse a call that leaves out what it cannot do without."""
    function, required = known.get(kind, (kind, ()))
    for name in required:
        if args.get(name) is None:
            raise UserError(f'argument "{name}" of pgtrickle.{function} must not be NULL', sqlstate="22004")


def refuse_empty(kind: str, args: Mapping[str, Any]) -> None:
    """Refuse names and queries that say nothing."""
    function, _ = REQUIRED.get(kind, (kind, ()))
    for name in _DEFINING:
        given = args.get(name)
        if isinstance(given, str) and is_empty(given):
            raise UserError(
                f'argument "{name}" of pgtrickle.{function} is empty',
                hint="Give one SELECT." if name == "query" else "Give a name.",
                sqlstate="22023",
            )


def is_empty(text: str) -> bool:
    """Whether a text holds nothing but white space, comments and semicolons.

    >>> is_empty(" ; -- nothing"), is_empty("/* a */ SELECT"), is_empty("SELECT '--'")
    (True, False, False)
    """
    return not _COMMENTS.sub("", text).strip(" \t\r\n\f\v;")


def check_options(args: Mapping[str, Any]) -> None:
    """Refuse options with values that mean nothing here."""
    forgotten = args.get(FORGOTTEN)
    if forgotten is not None and str(forgotten).lower() not in ("fallback", "error"):
        raise UserError(f"invalid {FORGOTTEN} {forgotten!r}", hint="Use 'fallback' or 'error'.", sqlstate="22023")
    mode = wished_mode(args)
    if mode is not None and mode not in MODES:
        raise UserError(
            f"invalid {CDC_MODE} {args[CDC_MODE]!r}", hint=f"Use one of {', '.join(MODES)}.", sqlstate="22023"
        )
    for key, allowed in _FIXED.items():
        value = args.get(key)
        if value is not None and str(value).lower() not in allowed:
            raise UserError(
                f"{key} {value!r} is not supported",
                hint=f"Leave it out, or use {' or '.join(allowed)}.",
                sqlstate="0A000",
            )
