"""A table's columns as an Iceberg schema, and the names by which files without field ids are read.

What a reader of Iceberg could not read, or would read differently, is left out and named: types without an equivalent,
columns whose older files hold a type that Iceberg does not widen from, and in version 2 columns with a default that
older files do not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from runnel.iceberg.types import default_json, plain_type, promotes
from runnel.lake.format.model import LakeColumn, MappedName
from runnel.lake.format.types import NESTED

Columns = tuple[LakeColumn, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """The columns that a version of the format shows of a table at one snapshot."""

    fields: tuple[Mapping[str, Any], ...]
    left_out: Mapping[str, str]
    """By name, and why."""

    def as_json(self, schema_id: int) -> dict[str, Any]:
        return {"type": "struct", "schema-id": schema_id, "identifier-field-ids": [], "fields": list(self.fields)}


def show(columns: Columns, older: Sequence[Columns], version: int, untold: Set[int] = frozenset()) -> Shown:
    """What to show of these columns, given the columns that the table had when the files that are read were written.

    `untold` are columns that files without field ids do not tell by a name.
    """
    left_out: dict[str, str] = {}
    flat = [_flat(each) for each in older]
    fields = []
    for column in columns:
        if untold & _flat([column]).keys():
            left_out[column.name] = "files that were added as they were do not tell it by a name of its own"
            continue
        made = _field(column, flat, version, left_out, column.name)
        if made is not None:
            fields.append(made)
    return Shown(tuple(fields), left_out)


def _flat(columns: Iterable[LakeColumn]) -> dict[int, LakeColumn]:
    found: dict[int, LakeColumn] = {}
    for column in columns:
        found[column.id] = column
        found |= _flat(column.children)
    return found


def _field(
    column: LakeColumn, older: Sequence[Mapping[int, LakeColumn]], version: int, left_out: dict[str, str], path: str
) -> dict[str, Any] | None:
    try:
        type_ = _type(column, older, version, left_out, path)
    except _NoEquivalent as reason:
        left_out[path] = str(reason)
        return None
    stored = [files.get(column.id) for files in older]
    # Of fields inside of others DuckLake says that they have no NULLs when they are added, which is not so.
    required = path == column.name and not column.nulls_allowed
    required = required and all(each is not None and not each.nulls_allowed for each in stored)
    made: dict[str, Any] = {"id": column.id, "name": column.name, "required": required, "type": type_}
    if column.initial_default is not None:
        if version < 3 and any(each is None for each in stored):
            left_out[path] = "older files do not have it, and Iceberg 2 has no defaults; Iceberg 3 has"
            return None
        if version >= 3:
            try:
                default = default_json(column)
            except ValueError:
                left_out[path] = f"its default has no form in Iceberg ({column.type})"
                return None if any(each is None for each in stored) else made
            made |= {"initial-default": default, "write-default": default}
    return made


class _NoEquivalent(Exception):
    """Why a column is left out."""


def _type(
    column: LakeColumn, older: Sequence[Mapping[int, LakeColumn]], version: int, left_out: dict[str, str], path: str
) -> Any:
    match column.type:
        case "struct":
            fields = [_field(child, older, version, left_out, f"{path}.{child.name}") for child in column.children]
            kept = [each for each in fields if each is not None]
            if not kept:
                raise _NoEquivalent("no field of it has an equivalent")
            return {"type": "struct", "fields": kept}
        case "list":
            (element,) = column.children
            return {
                "type": "list",
                "element-id": element.id,
                "element": _type(element, older, version, left_out, f"{path}.element"),
                "element-required": False,
            }
        case "map":
            key, value = column.children
            return {
                "type": "map",
                "key-id": key.id,
                "key": _type(key, older, version, left_out, f"{path}.key"),
                "value-id": value.id,
                "value": _type(value, older, version, left_out, f"{path}.value"),
                "value-required": False,
            }
    plain = plain_type(column.type, version)
    if plain == "uuid" and path != column.name:
        raise _NoEquivalent("inside of other columns a uuid cannot be written for rows that are in no file yet")
    if plain is None:
        raise _NoEquivalent(f"type {column.type} has no equivalent in Iceberg {version}")
    for files in older:
        former = files.get(column.id)
        if former is not None and former.type not in NESTED and not promotes(former.type, column.type):
            raise _NoEquivalent(f"older files have it as {former.type}, which Iceberg does not read as {column.type}")
    return plain


def last_id(columns: Iterable[LakeColumn]) -> int:
    """The greatest field id."""
    return max((max(column.id, last_id(column.children)) for column in columns), default=0)


def name_mapping(columns: Columns, mappings: Iterable[Sequence[MappedName]]) -> tuple[list[dict[str, Any]], set[int]]:
    """Names of columns in files that have no field ids; and the columns that no name tells.

    Such columns have a name that another column has in other files, or are in the names of folders.
    """
    names: dict[int, list[str]] = {}
    untold: set[int] = set()
    owner: dict[tuple[int | None, str], int] = {}

    def add(parent: int | None, name: str, id: int) -> None:
        former = owner.setdefault((parent, name), id)
        if former != id:
            untold.update((former, id))
        elif name not in names.setdefault(id, []):
            names[id].append(name)

    def follow(parent: int | None, mapped: Sequence[MappedName]) -> None:
        for each in mapped:
            if each.is_partition:
                untold.add(each.column_id)
            else:
                add(parent, each.source, each.column_id)
                follow(each.column_id, each.children)

    for mapping in mappings:
        follow(None, mapping)

    def build(parent: int | None, listed: Iterable[LakeColumn]) -> Iterator[dict[str, Any]]:
        for column in listed:
            taken = owner.get((parent, column.name))
            if taken is None:
                add(parent, column.name, column.id)
            made: dict[str, Any] = {"field-id": column.id, "names": names.get(column.id, [])}
            below = list(build(column.id, column.children))
            yield {**made, "fields": below} if below else made

    return list(build(None, columns)), untold
