"""What a client says must still hold when it commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runnel.iceberg.errors import ProtocolError, bad_request

Json = Mapping[str, Any]

_SAME = {
    "assert-table-uuid": ("uuid", "table-uuid"),
    "assert-last-assigned-field-id": ("last-assigned-field-id", "last-column-id"),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id"),
    "assert-last-assigned-partition-id": ("last-assigned-partition-id", "last-partition-id"),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id"),
}


def changed(what: str) -> ProtocolError:
    """Somebody else was faster: the client loads the table again, and tries again."""
    return ProtocolError(409, "CommitFailedException", f"Requirement failed: {what}")


def creates(requirements: Sequence[Json]) -> bool:
    return any(each.get("type") == "assert-create" for each in requirements)


def check(requirements: Sequence[Json], metadata: Json, is_like: Callable[[int], bool]) -> None:
    """Compare with a table's metadata. `is_like` says whether nothing was done to it since a snapshot.

    Every snapshot of the lake is one of each of its tables, so the newest is often one that was about another table.
    """
    for each in requirements:
        kind = each.get("type")
        if kind in _SAME:
            wanted, known = _SAME[kind]
            if str(each.get(wanted)).lower() != str(metadata[known]).lower():
                raise changed(f"{known} is {metadata[known]}, not {each.get(wanted)}")
        elif kind == "assert-ref-snapshot-id":
            if each.get("ref") != "main":
                if each.get("snapshot-id") is not None:
                    raise changed(f"there is no branch or tag {each.get('ref')}")
            elif each.get("snapshot-id") is None:
                raise changed("branch main was created concurrently")
            elif not is_like(int(each["snapshot-id"])):
                raise changed(f"branch main is no longer at snapshot {each['snapshot-id']}")
        elif kind != "assert-create":
            raise bad_request(f"The requirement {kind} is not known.")
