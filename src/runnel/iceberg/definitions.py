"""What clients define in Iceberg's words, in DuckLake's: columns with types and defaults, partitions, comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runnel.iceberg.errors import bad_request
from runnel.iceberg.partitions import transform_of
from runnel.iceberg.types import plain_type, promotes
from runnel.lake.format.model import LakeColumn
from runnel.lake.write.alter import Key

_TYPES = {
    "boolean": "boolean", "int": "int32", "long": "int64", "float": "float32", "double": "float64", "date": "date",
    "time": "time", "timestamp": "timestamp", "timestamptz": "timestamptz", "timestamp_ns": "timestamp_ns",
    "string": "varchar", "uuid": "uuid", "binary": "blob",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_BUCKET = re.compile(r"bucket\[(\d+)\]")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    """The columns that a client wants."""

    columns: tuple[LakeColumn, ...]
    defaults: Mapping[int, str]
    """Of new rows, by column."""
    comments: Mapping[int, str]


def define(schema: Json, known: Sequence[LakeColumn], served: Json, version: int) -> Definition:
    """The columns of a schema; those that are `known` by their ids keep what Iceberg does not tell apart.

    `served` is the schema as it is shown: what the client leaves as it is there does not change.
    """
    shown = {field["id"]: field for field in _fields(served)}
    by_id = {column.id: column for column in _all(known)}
    try:
        made = tuple(_column(field, by_id, shown, version) for field in fields(schema))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_request("The schema cannot be read.") from None
    every = list(_all(made))
    if len({column.id for column in every}) != len(every):
        raise bad_request("Two columns have the same id.")
    told = list(_fields(schema))
    for field in told:
        if field["id"] in shown and field.get("write-default") != shown[field["id"]].get("write-default"):
            raise bad_request(f"Column {field['name']}: another default for new rows is not supported.")
    defaults = {
        field["id"]: default_text(field["write-default"], field)
        for field in told
        if field.get("write-default") is not None and field["id"] not in by_id
    }
    return Definition(made, defaults, {field["id"]: field["doc"] for field in told if field.get("doc")})


def renumbered(schema: Json) -> dict[str, Any]:
    """A schema with ids as DuckLake gives them: depth first, from 1. Clients send any."""
    last = 0

    def next_id() -> int:
        nonlocal last
        last += 1
        return last

    def type_of(type_: Any) -> Any:
        if not isinstance(type_, Mapping):
            return type_
        match type_.get("type"):
            case "struct":
                return {**type_, "fields": [field_of(field) for field in type_["fields"]]}
            case "list":
                return {**type_, "element-id": next_id(), "element": type_of(type_["element"])}
            case "map":
                key_id, key = next_id(), type_of(type_["key"])
                return {**type_, "key-id": key_id, "key": key, "value-id": next_id(), "value": type_of(type_["value"])}
        return type_

    def field_of(field: Json) -> dict[str, Any]:
        return {**field, "id": next_id(), "type": type_of(field["type"])}

    try:
        names = {field["id"]: field["name"] for field in schema["fields"]}
        made = [field_of(field) for field in schema["fields"]]
    except (KeyError, TypeError):
        raise bad_request("The schema cannot be read.") from None
    by_name = {field["name"]: field["id"] for field in made}
    identifiers = [by_name[names[id]] for id in schema.get("identifier-field-ids", []) if id in names]
    return {"type": "struct", "schema-id": 0, "identifier-field-ids": identifiers, "fields": made}


def moved_spec(spec: Json | None, before: Json, after: Json) -> dict[str, Any] | None:
    """A partition spec whose columns got other ids with their schema."""
    if spec is None:
        return None
    old, new = dict(_paths(before)), {path: id for id, path in _paths(after)}
    try:
        return {
            "spec-id": 0,
            "fields": [{**field, "source-id": new[old[field["source-id"]]]} for field in spec.get("fields", [])],
        }
    except KeyError:
        raise bad_request("The partition spec names a column that the schema does not have.") from None


def _paths(schema: Json) -> Iterator[tuple[int, str]]:
    """Ids and full names of the fields that are not in lists or maps."""
    for field in schema["fields"]:
        yield field["id"], field["name"]
        if isinstance(field["type"], Mapping) and field["type"].get("type") == "struct":
            for id, path in _paths(field["type"]):
                yield id, f"{field['name']}.{path}"


def partition_keys(spec: Json, columns: Sequence[LakeColumn]) -> tuple[Key, ...]:
    """A partition spec as DuckLake's keys. What the two formats do not share is refused."""
    by_id = {column.id: column for column in columns}
    keys = []
    for field in spec.get("fields", []):
        transform = str(field.get("transform"))
        if transform == "void":
            continue
        bucket = _BUCKET.fullmatch(transform)
        own = f"bucket({bucket[1]})" if bucket else transform
        column = by_id.get(field.get("source-id"))
        if column is None or transform_of(column, own) is None:
            raise bad_request(
                f"A partition by {transform} of {column.name if column else 'this column'} is not one that both formats"
                " share. These are identity of integers, strings and booleans, year, bucket of integers and strings."
            )
        keys.append((column.id, own))
    return tuple(keys)


def check_change(old: Sequence[LakeColumn], new: Sequence[LakeColumn], ever: set[int]) -> None:
    """Refuse what rows that are there do not allow. `ever` are the ids of all columns that the table has had."""
    before = {column.id: column for column in _all(old)}
    parents = dict(_parents(old, None))
    for id, parent in _parents(new, None):
        if id in parents and parents[id] != parent:
            raise bad_request("A column cannot move into or out of another.")
    for column in _all(new):
        known = before.get(column.id)
        if known is None:
            if column.id in ever:
                raise bad_request(f"Column {column.name}: its id was another column's.")
            if not column.nulls_allowed and column.initial_default is None:
                raise bad_request(f"Column {column.name} is new and required, but older rows have no value for it.")
        elif known.type != column.type and (column.children or known.children or not promotes(known.type, column.type)):
            raise bad_request(f"Column {column.name}: {known.type} cannot become {column.type}.")
        elif known.nulls_allowed and not column.nulls_allowed:
            raise bad_request(f"Column {column.name} cannot become required: older rows may have no value.")


def fields(schema: Json) -> list[Json]:
    found = schema["fields"]
    if not isinstance(found, list):
        raise TypeError
    return found


def default_text(value: Any, field: Json) -> str:
    """A default in the catalog's text."""
    match field["type"], value:
        case "boolean", bool():
            return "true" if value else "false"
        case "int" | "long" | "float" | "double", int() | float() if not isinstance(value, bool):
            return str(value)
        case "string" | "date" | "time" | "uuid", str():
            return value
        case "timestamp" | "timestamptz", str():
            return value.replace("T", " ").replace("+00:00", "+00")
        case str() as type_, str() if type_.startswith("decimal"):
            return value
    raise bad_request(f"Column {field.get('name')}: a default of type {field['type']} is not supported.")


def _column(
    field: Json, known: Mapping[int, LakeColumn], shown: Mapping[int, Json], version: int, *, inside: bool = False
) -> LakeColumn:
    id, name, required = int(field["id"]), str(field["name"]), bool(field.get("required", False))
    old = known.get(id)
    type_, children = _type(field["type"], old, known, shown, version, inside=inside)
    if old is None:
        initial = field.get("initial-default")
        # What is inside of others is never required there; see `schema.py`.
        text = None if initial is None else default_text(initial, field)
        return LakeColumn(id, name, type_, inside or not required, text, children)
    same = inside or required == bool(shown.get(id, {}).get("required", False))
    return LakeColumn(id, name, type_, old.nulls_allowed if same else not required, old.initial_default, children)


def _type(
    given: Any,
    old: LakeColumn | None,
    known: Mapping[int, LakeColumn],
    shown: Mapping[int, Json],
    version: int,
    *,
    inside: bool,
) -> tuple[str, tuple[LakeColumn, ...]]:
    def part(kind: str) -> LakeColumn:
        made = {"id": given[f"{kind}-id"], "name": kind, "type": given[kind]}
        return _column(made, known, shown, version, inside=True)

    if isinstance(given, Mapping):
        match given["type"]:
            case "struct":
                return "struct", tuple(_column(each, known, shown, version, inside=True) for each in fields(given))
            case "list":
                return "list", (part("element"),)
            case "map":
                return "map", (part("key"), part("value"))
    name = str(given)
    if old is not None and not old.children and plain_type(old.type, version) == _spaced(name):
        return old.type, ()
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return f"decimal({decimal[1]},{decimal[2]})", ()
    if name not in _TYPES or (name == "uuid" and inside):
        where = " inside of another column" if name in _TYPES else ""
        raise bad_request(f"Type {name}{where} has no equivalent in DuckLake.")
    return _TYPES[name], ()


def _spaced(name: str) -> str:
    decimal = _DECIMAL.fullmatch(name)
    return f"decimal({decimal[1]}, {decimal[2]})" if decimal else name


def _all(columns: Sequence[LakeColumn]) -> Iterator[LakeColumn]:
    for column in columns:
        yield column
        yield from _all(column.children)


def _parents(columns: Sequence[LakeColumn], parent: int | None) -> Iterator[tuple[int, int | None]]:
    for column in columns:
        yield column.id, parent
        yield from _parents(column.children, column.id)


def _fields(schema: Json) -> Iterator[Json]:
    """All fields that have names, nested ones too."""

    def below(type_: Any) -> Iterator[Json]:
        if isinstance(type_, Mapping):
            yield from (each for field in type_.get("fields", []) for each in (field, *below(field["type"])))
            for kind in ("element", "key", "value"):
                yield from below(type_.get(kind))

    yield from below({**schema, "type": "struct"})
