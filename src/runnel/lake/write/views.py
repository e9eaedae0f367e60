"""Views of a lake and the tags of its objects, within a draft snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from runnel.lake.format.statements import Row
from runnel.lake.write.commit import Draft
from runnel.lake.write.tables import current, end_tags, ensure_schema, quoted, require_free

CATALOG = "{DUCKLAKE_CATALOG}"
"""In a view's text: the name under which the reader attached the lake."""


def create_view(
    draft: Draft, schema: str, name: str, sql: str, tags: Mapping[str, str] | None = None, *, replace: bool = False
) -> int:
    """Create a view from a SELECT; name tables as `{DUCKLAKE_CATALOG}.schema.table`. Returns its id.

    With `replace`, a view of that name makes room for the new one in the same snapshot.
    """
    schema_id = ensure_schema(draft, schema)
    old = _view(draft, schema_id, name)
    if old is not None and replace:
        _end(draft, old[0])
    else:
        require_free(draft, schema_id, schema, name)
    view_id = draft.new_catalog_id()
    # column_aliases must not be NULL: one such row makes the whole lake unreadable.
    draft.run(
        "INSERT INTO {lake}.ducklake_view VALUES (%s, %s, %s, NULL, %s, %s, 'duckdb', %s, '')",
        (view_id, uuid.uuid4(), draft.id, schema_id, name, sql),
    )
    _insert_tags(draft, view_id, tags or {})
    draft.schema_changed()
    draft.announce(f"created_view:{quoted(schema)}.{quoted(name)}")
    return view_id


def drop_view(draft: Draft, schema: str, name: str) -> bool:
    """Drop a view and its tags; False if there is none."""
    old = _view(draft, ensure_schema(draft, schema), name)
    if old is None:
        return False
    _end(draft, old[0])
    return True


def set_tags(draft: Draft, object_id: int, tags: Mapping[str, str], *, kind: str = "view") -> None:
    """Set tags of a table or view; the key `comment` is what DuckDB shows as its comment."""
    live = "SELECT key, begin_snapshot, end_snapshot FROM {lake}.ducklake_tag WHERE object_id = %s AND key = ANY(%s)"
    known = current(draft, live, (object_id, list(tags)))
    draft.change(
        len(known),
        "UPDATE {lake}.ducklake_tag SET end_snapshot = %s WHERE object_id = %s AND key = ANY(%s) "
        "AND end_snapshot IS NULL",
        (draft.id, object_id, list(tags)),
    )
    _insert_tags(draft, object_id, tags)
    draft.schema_changed()
    draft.announce(f"altered_{kind}:{object_id}")


def _view(draft: Draft, schema_id: int, name: str) -> Row | None:
    rows = current(
        draft,
        "SELECT view_id, begin_snapshot, end_snapshot FROM {lake}.ducklake_view "
        "WHERE schema_id = %s AND view_name = %s",
        (schema_id, name),
    )
    return rows[0] if rows else None


def _end(draft: Draft, view_id: int) -> None:
    draft.change(
        1,
        "UPDATE {lake}.ducklake_view SET end_snapshot = %s WHERE view_id = %s AND end_snapshot IS NULL",
        (draft.id, view_id),
    )
    end_tags(draft, view_id)
    draft.schema_changed()
    draft.announce(f"dropped_view:{view_id}")


def _insert_tags(draft: Draft, object_id: int, tags: Mapping[str, str]) -> None:
    draft.run_many(
        "INSERT INTO {lake}.ducklake_tag VALUES (%s, %s, NULL, %s, %s)",
        [(object_id, draft.id, key, value) for key, value in tags.items()],
    )
