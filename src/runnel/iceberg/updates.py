"""The updates of a commit, read into what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runnel.iceberg.errors import bad_request

Json = Mapping[str, Any]

_HARMLESS = frozenset(
    {
        "set-statistics", "remove-statistics", "set-partition-statistics", "remove-partition-statistics",
        "remove-schemas", "remove-partition-specs",
    }
)  # fmt: skip
"""About metadata that is generated here anyway."""

OURS = frozenset({"gc.enabled", "write.data.path", "schema.name-mapping.default", "format-version"})
"""Properties that the server gives, or that follow from where the table is loaded."""


@dataclass(slots=True)
class Wanted:
    """What a commit comes to."""

    uuid: str | None = None
    schema: Json | None = None
    spec: Json | None = None
    specs: dict[int, Json] = field(default_factory=dict)
    """All that a manifest may name."""
    properties: dict[str, str] = field(default_factory=dict)
    removed_properties: list[str] = field(default_factory=list)
    moves: bool = False
    """Whether the rows are others than before."""
    manifest_list: str | None = None
    """None: there are none."""
    operations: list[str] = field(default_factory=list)
    snapshots: set[int] = field(default_factory=set)
    """The client's numbers of those that were added."""
    summary: Json = field(default_factory=dict)

    @property
    def only_appends(self) -> bool:
        """Whether it adds rows, and nothing else."""
        return self.moves and set(self.operations) == {"append"} and self.schema is None and self.spec is None


def read_updates(updates: Sequence[Json], metadata: Json, version: int) -> Wanted:
    """Go through the updates; what cannot be done is refused."""
    wanted = Wanted(specs={spec["spec-id"]: spec for spec in metadata["partition-specs"]})
    schemas: dict[int, Json] = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    snapshots: dict[int, Json] = {}
    last_schema: Json | None = None
    last_spec: Json | None = None
    head: int | None = metadata.get("current-snapshot-id")
    before = head
    try:
        for update in updates:
            match update.get("action"):
                case "assign-uuid":
                    wanted.uuid = str(update["uuid"])
                case "upgrade-format-version":
                    if int(update["format-version"]) > version:
                        raise bad_request(
                            f"Here tables are of version {version} of the format. The warehouse without @v2 has 3."
                        )
                case "add-schema":
                    last_schema = update["schema"]
                    schemas[last_schema.get("schema-id", -1)] = last_schema
                case "set-current-schema":
                    wanted.schema = last_schema if update["schema-id"] == -1 else schemas[update["schema-id"]]
                case "add-spec":
                    last_spec = update["spec"]
                    wanted.specs[last_spec.get("spec-id", -1)] = last_spec
                case "set-default-spec":
                    wanted.spec = last_spec if update["spec-id"] == -1 else wanted.specs[update["spec-id"]]
                case "add-sort-order":
                    if update["sort-order"].get("fields"):
                        raise bad_request("Sort orders are not kept: sort the rows where they are written.")
                case "set-default-sort-order":
                    pass
                case "set-location":
                    if str(update["location"]).rstrip("/") != metadata["location"]:
                        raise bad_request("A table's location cannot be changed.")
                case "set-properties":
                    _set(wanted, update["updates"], metadata)
                case "remove-properties":
                    wanted.removed_properties += [key for key in update["removals"] if key not in OURS]
                case "add-snapshot":
                    snapshot = update["snapshot"]
                    snapshots[snapshot["snapshot-id"]] = snapshot
                case "set-snapshot-ref":
                    if update.get("ref-name") != "main" or update.get("type") != "branch":
                        raise bad_request("There are no branches and tags here, besides main.")
                    head = int(update["snapshot-id"])
                case "remove-snapshot-ref":
                    if update.get("ref-name") != "main":
                        raise bad_request("There are no branches and tags here, besides main.")
                    head = None
                case action if action in _HARMLESS:
                    pass
                case "remove-snapshots":
                    raise bad_request("Snapshots expire by the lake's maintenance, for all of its tables at once.")
                case action:
                    raise bad_request(f"The update {action} is not supported.")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_request("The updates cannot be read.") from None
    _follow(wanted, snapshots, before, head)
    return wanted


def _set(wanted: Wanted, properties: Mapping[str, str], metadata: Json) -> None:
    for key, value in properties.items():
        if key in OURS or key.startswith("runnel."):
            if key in ("gc.enabled", "write.data.path") and metadata["properties"].get(key) != value:
                raise bad_request(f"The property {key} cannot be changed.")
            continue
        wanted.properties[key] = str(value)


def _follow(wanted: Wanted, snapshots: Mapping[int, Json], before: int | None, head: int | None) -> None:
    """What the branch main comes to."""
    if head == before and not snapshots:
        return
    if head is None:
        wanted.moves, wanted.operations = True, ["delete"]
        return
    if head not in snapshots:
        if head == before:
            raise bad_request("A snapshot that is not to be on branch main cannot be kept.")
        raise bad_request("Going back to an older snapshot is not supported: read it, and write its rows.")
    last = snapshots[head]
    if not last.get("manifest-list"):
        raise bad_request("A snapshot must name a manifest list.")
    wanted.moves = True
    wanted.manifest_list = str(last["manifest-list"])
    wanted.operations = [str(each.get("summary", {}).get("operation")) for each in snapshots.values()]
    wanted.summary = last.get("summary", {})
    wanted.snapshots = set(snapshots)
