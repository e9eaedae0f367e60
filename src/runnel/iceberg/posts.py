"""The bodies of requests that write: JSON, looked at before anything is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runnel.iceberg.errors import bad_request
from runnel.iceberg.write import Wish

Json = Mapping[str, Any]


def body(data: bytes) -> Json:
    """A body as an object."""
    try:
        found = json.loads(data)
    except ValueError:
        raise bad_request("The body is not JSON.") from None
    if not isinstance(found, dict):
        raise bad_request("The body is not an object.")
    return found


def wish(given: Json, namespace: str, name: str) -> Wish:
    """What a commit wants of a table."""
    return Wish(namespace, name, _objects(given, "requirements"), _objects(given, "updates"))


def wishes(given: Json) -> list[Wish]:
    """What a transaction wants of several tables, each of them once."""
    made = [wish(change, *identifier(change, "identifier")) for change in _objects(given, "table-changes")]
    if len({(each.namespace, each.name) for each in made}) != len(made):
        raise bad_request("A table is named twice.")
    return made


def identifier(given: Json, key: str) -> tuple[str, str]:
    """A table by namespace and name."""
    found = given.get(key)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise bad_request(f"{key} does not name a table.")
    return namespace(found), found["name"]


def namespace(given: Json) -> str:
    """A namespace of one part: schemas have none below them."""
    parts = given.get("namespace")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], str) or not parts[0]:
        raise bad_request("A namespace has one part here, which is the name of a schema.")
    return parts[0]


def texts(given: Json, key: str) -> dict[str, str]:
    found = given.get(key) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{key} is not an object.")
    return {str(name): str(value) for name, value in found.items()}


def _objects(given: Json, key: str) -> list[Json]:
    found = given.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise bad_request(f"{key} is not a list of objects.")
    return found
