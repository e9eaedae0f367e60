"""The head of a table as clients know it: where a commit starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runnel.iceberg.facts import Facts
from runnel.iceberg.masks import Key
from runnel.iceberg.partitions import Spec
from runnel.lake.format.model import Lake, LakeTable


@dataclass(frozen=True, slots=True)
class Standing:
    """Files, manifests and lists of deleted positions at the head, by the addresses that clients have of them."""

    lake: Lake
    table: LakeTable
    version: int
    location: str
    snapshot: int
    facts: Facts | None
    """None for a table that is about to be created."""
    metadata: Mapping[str, Any]
    specs: Mapping[int, Spec]
    """By DuckLake's partition id."""
    partition: int | None
    """The one of new files."""
    files: Mapping[str, int]
    manifests: Mapping[str, tuple[int, ...]]
    """The files that a manifest of ours lists."""
    delete_manifests: Mapping[str, tuple[Key, ...]]
    deletes: Mapping[tuple[str, int | None], Key]
    """By address and place in the file."""

    @property
    def next_row_id(self) -> int:
        return self.facts.next_row_id if self.facts is not None else 0

    @property
    def schema(self) -> Mapping[str, Any]:
        """As it is shown."""
        current = self.metadata["current-schema-id"]
        return next((each for each in self.metadata["schemas"] if each["schema-id"] == current), {"fields": []})
