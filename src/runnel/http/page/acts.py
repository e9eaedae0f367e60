"""What the buttons do: calls of the public functions, under the caller's role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.errors import UserError
from runnel.http.page.caller import Connection, Row, rows

STATEMENTS = {
    "refresh": "SELECT pgtrickle.refresh_stream_table(%(name)s)",
    "verify": "SELECT pgtrickle.verify_stream_table(%(name)s) AS answer",
    "suspend": "SELECT pgtrickle.alter_stream_table(%(name)s, status => 'SUSPENDED')",
    "resume": "SELECT pgtrickle.resume_stream_table(%(name)s)",
    "cancel": "SELECT pgtrickle.cancel(%(name)s) AS answer",
}
VALIDATE = "SELECT check_name, result, severity FROM pgtrickle.validate_query(%(query)s)"
EXPLAIN = "SELECT line FROM pgtrickle.explain_stream_table(%(name)s) AS line"
CREATE = """
SELECT pgtrickle.create_stream_table(%(name)s, %(query)s, %(schedule)s, %(mode)s)
"""


def act(conn: Connection, wish: Mapping[str, Any]) -> Row:
    """Do what a button says; what it found, in words."""
    action = _text(wish, "action")
    statement = STATEMENTS.get(action)
    if statement is None:
        raise UserError(f"there is no action {action}")
    (row,) = rows(conn, statement, {"name": _text(wish, "name")})
    answer: Any = row.get("answer")
    if action == "verify":
        differ = len(answer["missing"]) + len(answer["unexpected"])
        words = "Verified: it is what its query says." if answer["ok"] else f"It differs from its query: {differ} rows."
        return {"ok": answer["ok"], "words": words}
    if action == "cancel":
        return {"ok": True, "words": "It is being stopped." if answer else "There was nothing to stop."}
    done = {"refresh": "Refreshed.", "suspend": "Suspended. Its changes are captured meanwhile.", "resume": "Resumed."}
    return {"ok": True, "words": done[action]}


def validate(conn: Connection, wish: Mapping[str, Any]) -> Row:
    """Whether and how a query would be maintained."""
    return {"checks": rows(conn, VALIDATE, {"query": _text(wish, "query")})}


def create(conn: Connection, wish: Mapping[str, Any]) -> Row:
    """Make a stream table, and fill it."""
    values = {key: _text(wish, key) for key in ("name", "query", "schedule", "mode")}
    if not {".", '"'} & set(values["name"]):
        values["name"] = f"public.{values['name']}"
    conn.execute(CREATE, values)
    return {"ok": True, "words": f"{values['name']} was created and filled."}


def explain(conn: Connection, name: str) -> Row:
    """The plan, line by line; only an engine knows it."""
    if not rows(conn, "SELECT WHERE pgtrickle._engine_alive()"):
        return {"lines": [], "why": "No engine runs, which would tell."}
    return {"lines": [row["line"] for row in rows(conn, EXPLAIN, {"name": name})]}


def _text(wish: Mapping[str, Any], key: str) -> str:
    value = wish.get(key)
    if not isinstance(value, str) or not value.strip() or len(value) > 1_000_000:
        raise UserError(f"{key} is missing")
    return value
