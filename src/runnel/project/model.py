"""One file, one stream table: a SELECT below a header in TOML.

    /* runnel
    schedule = "5s"
    description = "Revenue per region"
    [[tests]]
    unique = ["region"]
    */
    SELECT region, sum(amount) AS total FROM orders GROUP BY region

Without a header the defaults hold. `CREATE MATERIALIZED VIEW name AS SELECT ...` is read, too. The name of a file is
the name of its stream table, and the folder that it is in, below the project's, its schema; `name` in the header says
otherwise.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runnel.checks.tests import REACTIONS, Test, parse_name, read_tests
from runnel.errors import UserError
from runnel.model.names import Name

OPTIONS = ("sink", "ducklake_sink_mode", "ducklake_lake", "ducklake_compression", "ducklake_expired",
           "delta_export_path", "delta_export_compression", "cdc_mode")  # fmt: skip
"""What a header passes on as it is."""
TEXTS = ("name", "schedule", "mode", "owner", "description", "renamed_from", "on_violation", *OPTIONS)
LISTS = ("tags", "tests")
DEFAULT_SCHEMA = "public"

_HEADER = re.compile(r"\A\s*/\*\s*runnel\b(.*?)\*/", re.DOTALL)
_VIEW = re.compile(
    r"\A\s*CREATE\s+(?:OR\s+REFRESH\s+)?MATERIALIZED\s+VIEW\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    r'((?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))?)\s+AS\s+',
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Model:
    """What a file says."""

    path: Path
    name: Name
    query: str
    schedule: str = "calculated"
    mode: str = "AUTO"
    owner: str | None = None
    description: str | None = None
    renamed_from: Name | None = None
    tags: tuple[str, ...] = ()
    tests: tuple[Test, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def read_model(root: Path, path: Path, variables: Mapping[str, str]) -> Model:
    """A file of a project."""
    text = path.read_text(encoding="utf-8")
    header, query = split(text, path)
    name = None
    view = _VIEW.match(query)
    if view:
        name, query = parse_name(view[1]), query[view.end() :]
    _check(header, path)
    folder = path.parent.relative_to(root).as_posix().replace("/", "_")
    own = Name(DEFAULT_SCHEMA if folder == "." else folder, path.stem)
    if "name" in header:
        name = parse_name(header["name"])
    said = own if name is None else Name(name.schema or own.schema, name.name)
    before = parse_name(header["renamed_from"]) if "renamed_from" in header else None
    return Model(
        path=path,
        name=said,
        query=_filled(query, variables, path).strip().rstrip(";").strip(),
        schedule=header.get("schedule", "calculated"),
        mode=header.get("mode", "AUTO").upper(),
        owner=header.get("owner"),
        description=header.get("description"),
        renamed_from=None if before is None else Name(before.schema or said.schema, before.name),
        tags=tuple(header.get("tags", ())),
        tests=_tests(header, said.schema, variables, path),
        options={key: header[key] for key in OPTIONS if key in header},
    )


def split(text: str, path: Path) -> tuple[dict[str, Any], str]:
    """Header and query."""
    found = _HEADER.match(text)
    if not found:
        return {}, text
    try:
        return tomllib.loads(found[1]), text[found.end() :]
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: the header cannot be read: {error}", hint='It is TOML: schedule = "5s"') from None


def _tests(header: Mapping[str, Any], schema: str, variables: Mapping[str, str], path: Path) -> tuple[Test, ...]:
    try:
        tests = read_tests(header.get("tests", []), schema, header.get("on_violation", "warn"))
    except UserError as error:
        raise UserError(f"{path}: {error}", hint=error.hint) from None
    return tuple(replace(test, select=_filled(test.select, variables, path)) for test in tests)


def _check(header: Mapping[str, Any], path: Path) -> None:
    for key, value in header.items():
        if key not in TEXTS and key not in LISTS:
            raise UserError(
                f"{path}: there is no {key} in a header.", hint=f"Known are: {', '.join((*TEXTS, *LISTS))}."
            )
        if (key in TEXTS) != isinstance(value, str) or (key in LISTS) != isinstance(value, list):
            raise UserError(f"{path}: {key} must be a {'text' if key in TEXTS else 'list'}.")


def _filled(query: str, variables: Mapping[str, str], path: Path) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in variables:
            raise UserError(
                f"{path}: there is no variable {found[1]}.",
                hint="Give it in runnel.toml: [environments.NAME.variables]",
            )
        return variables[found[1]]

    return _VARIABLE.sub(value, query)


def written(model: Model) -> str:
    """The file of a stream table."""
    lines = [f"schedule = {_toml(model.schedule)}", f"mode = {_toml(model.mode)}"]
    lines += [f"{key} = {_toml(value)}" for key, value in model.options.items()]
    said = {"owner": model.owner, "description": model.description}
    lines += [f"{key} = {_toml(value)}" for key, value in said.items() if value is not None]
    for test in model.tests:
        lines += ["", "[[tests]]", *(f"{key} = {_toml(value)}" for key, value in test.as_json().items())]
        if test.on_violation != "warn":
            lines.append(f"on_violation = {_toml(test.on_violation)}")
    return "/* runnel\n" + "\n".join(lines) + "\n*/\n" + model.query.strip() + "\n"


def _toml(value: Any) -> str:
    """A text, a list or an object on one line, without what would end the comment around it."""
    match value:
        case list():
            return "[" + ", ".join(_toml(each) for each in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
        case _:
            # TOML reads all that JSON escapes.
            text = json.dumps(str(value), ensure_ascii=False)
            return text.replace("\x7f", "\\u007f").replace("*/", "*\\u002f")


def schema() -> dict[str, Any]:
    """The JSON schema of a header, for editors."""
    texts: dict[str, Any] = {key: {"type": "string"} for key in TEXTS}
    texts["mode"] = {"enum": ["AUTO", "DIFFERENTIAL", "FULL"]}
    texts["sink"] = {"enum": ["ducklake", "none"]}
    texts["cdc_mode"] = {"enum": ["trigger", "wal", "auto", "default"]}
    texts["on_violation"] = {"enum": list(REACTIONS)}
    columns = {"type": "array", "items": {"type": "string"}}
    test = {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "unique": columns,
            "not_null": columns,
            "accepted_values": {"type": "object", "additionalProperties": {"type": "array"}},
            "relationships": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in ("column", "to", "field")},
                "required": ["column", "to", "field"],
            },
            "empty": {"type": "string"},
            "on_violation": texts["on_violation"],
        },
    }
    lists = {"tags": columns, "tests": {"type": "array", "items": test}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Header of a stream table's file",
        "type": "object",
        "additionalProperties": False,
        "properties": {**texts, **lists},
    }
