"""The metadata of a table: what `loadTable` answers, from its history."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from runnel.iceberg.facts import Moment
from runnel.iceberg.history import History, Point, Told
from runnel.iceberg.partitions import NONE
from runnel.iceberg.schema import last_id
from runnel.lake.store.beside import uri

LEFT_OUT = "runnel.left-out-columns"
_MOVED = frozenset({"merge_adjacent", "rewrite_delete", "compacted_table", "inline_flush", "flushed_inlined"})


def metadata(
    history: History, default_partition: int | None, told: Mapping[str, str], comments: Mapping[int, str]
) -> tuple[dict[str, Any], str]:
    """Everything but the snapshots, and these as one JSON text: there may be very many.

    `told` are properties that clients gave the table, `comments` are those of its columns.
    """
    facts, table = history.facts, history.table
    assert facts is not None
    head, last = facts.moments[-1], history.points[-1]
    specs = {0: NONE, **{spec.id: spec for spec in history.specs.values()}}
    spec = history.specs.get(default_partition, NONE) if default_partition is not None else NONE
    times = _times(facts.moments)
    whole: dict[str, Any] = {
        "format-version": history.version,
        "table-uuid": table.uuid,
        "location": history.shelf.location,
        "last-sequence-number": head.id,
        "last-updated-ms": times[-1],
        "last-column-id": last_id(facts.columns.ever(table.columns)),
        "current-schema-id": last.schema,
        "schemas": [documented(shown.as_json(number), comments) for number, shown in enumerate(history.schemas)],
        "default-spec-id": spec.id,
        "partition-specs": [each.as_json() for each in specs.values()],
        "last-partition-id": max((f.id for each in specs.values() for f in each.fields), default=999),
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**told, **_properties(history, last)},
        "current-snapshot-id": head.id,
        "refs": {"main": {"snapshot-id": head.id, "type": "branch"}},
        "snapshot-log": [
            {"snapshot-id": moment.id, "timestamp-ms": time}
            for moment, time, later in zip(facts.moments, times, [*times[1:], None], strict=True)
            if time != later
        ],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    if history.version >= 3:
        whole["next-row-id"] = facts.next_row_id
    return whole, _snapshots(history, times)


def _properties(history: History, last: Point) -> dict[str, str]:
    found = {
        "schema.name-mapping.default": json.dumps(history.mapping),
        # The files are the lake's, and DuckLake removes them.
        "gc.enabled": "false",
        # New files go where DuckDB's are.
        "write.data.path": uri(history.table.path.rstrip("/")),
        "runnel.lake": history.lake.name,
        "runnel.table": f"{history.table.schema}.{history.table.name}",
    }
    left_out = history.schemas[last.schema].left_out
    return found | ({LEFT_OUT: json.dumps(dict(left_out))} if left_out else {})


def documented(schema: dict[str, Any], comments: Mapping[int, str]) -> dict[str, Any]:
    """A schema with the comments of its columns."""
    if not comments:
        return schema

    def of(type_: Any) -> Any:
        if not isinstance(type_, Mapping):
            return type_
        made = dict(type_)
        if "fields" in made:
            made["fields"] = [
                {**each, "type": of(each["type"]), **({"doc": comments[each["id"]]} if each["id"] in comments else {})}
                for each in made["fields"]
            ]
        for part in ("element", "key", "value"):
            if part in made:
                made[part] = of(made[part])
        return made

    found: dict[str, Any] = of(schema)
    return found


def _times(moments: Any) -> list[int]:
    """When each snapshot became the newest.

    DuckLake notes when a transaction began, so a later one may have an earlier time; asked for a moment, DuckDB takes
    the last snapshot of no later time.
    """
    times: list[int] = []
    least = None
    for moment in reversed(moments):
        least = moment.millis if least is None else min(least, moment.millis)
        times.append(least)
    return times[::-1]


def _snapshots(history: History, times: list[int]) -> str:
    facts = history.facts
    assert facts is not None
    starts = [point.snapshot for point in history.points]
    told: dict[int, Told] = {}
    parent: Moment | None = None
    for moment, time in zip(facts.moments, times, strict=True):
        point = history.points[max(0, bisect_right(starts, moment.id) - 1)]
        known = history.told.get(moment.id)
        if known is None or not known.still_holds(time, parent, point):
            text = json.dumps(_snapshot(history, moment, time, parent, point))
            known = Told(time, parent.id if parent else None, point, text)
        told[moment.id] = known
        parent = moment
    history.told = told
    return ",".join([each.text for each in told.values()])


def _snapshot(history: History, moment: Moment, time: int, parent: Moment | None, point: Point) -> dict[str, Any]:
    new = parent is None or parent.id < point.snapshot
    totals = point.totals
    said = (moment.said or {}).get(str(history.table.id), {})
    made: dict[str, Any] = {
        "snapshot-id": moment.id,
        "sequence-number": moment.id,
        "timestamp-ms": time,
        "manifest-list": point.list_uri,
        "schema-id": point.schema,
        "summary": {
            # What the client said; the numbers are the lake's own.
            **{key: value for key, value in said.items() if isinstance(value, str)},
            "operation": said.get("operation")
            or _operation(moment.verbs(history.table.id), totals.removed_files if new else 0),
            "added-data-files": str(totals.added_files if new else 0),
            "added-records": str(totals.added_rows if new else 0),
            "deleted-data-files": str(totals.removed_files if new else 0),
            "total-data-files": str(totals.files),
            "total-records": str(totals.rows),
            "total-files-size": str(totals.bytes),
            "total-delete-files": str(totals.delete_files),
            "total-position-deletes": str(totals.deleted),
        },
    }
    if parent is not None:
        made["parent-snapshot-id"] = parent.id
    if history.version >= 3:
        made["first-row-id"] = totals.first_row_id if new else totals.first_row_id + totals.added_rows
        made["added-rows"] = totals.added_rows if new else 0
    return made


def _operation(verbs: set[str], removed: int) -> str:
    if verbs & _MOVED:
        return "replace"
    deleted = removed or verbs & {"deleted_from_table", "inlined_delete"}
    added = verbs & {"inserted_into_table", "inlined_insert"}
    return "overwrite" if added and deleted else "delete" if deleted else "append"
