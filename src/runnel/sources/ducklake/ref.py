"""How a table of a lake is found again: what the catalog keeps of its stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LakeField:
    """A column of a lake table, under the name that its stand-in gives it."""

    name: str
    id: int
    """The Parquet field id: it stays when the column is renamed."""
    type: str
    """The lake's own name of the type."""


@dataclass(frozen=True, slots=True)
class LakeRef:
    """The table of a lake that a foreign table stands for."""

    lake: str
    table_id: int
    schema: str
    table: str
    fields: tuple[LakeField, ...] = ()

    @property
    def key(self) -> str:
        """Its name in frontiers.

        >>> LakeRef("lake", 7, "main", "events").key
        'ducklake:lake.main.events'
        """
        return f"ducklake:{self.lake}.{self.schema}.{self.table}"


def ref_of(row: Mapping[str, Any]) -> LakeRef:
    """The reference that a row of pgt_lake_tables gives."""
    fields = tuple(LakeField(c["name"], int(c["id"]), c["type"]) for c in row["columns"])
    return LakeRef(row["lake"], int(row["table_id"]), row["lake_schema"], row["lake_table"], fields)
