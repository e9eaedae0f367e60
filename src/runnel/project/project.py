"""A folder of stream tables: `runnel.toml` with its environments, the files, and in which order they are built."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp, tokenize
from sqlglot.errors import SqlglotError

from runnel.checks.tests import Test
from runnel.errors import UserError
from runnel.model.names import Name, quote
from runnel.project.model import Model, read_model

FILE = "runnel.toml"


@dataclass(frozen=True, slots=True)
class Environment:
    """A database that a project is brought to."""

    name: str = "default"
    dsn: str | None = field(default=None, repr=False)
    schema_prefix: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Project:
    """All stream tables of a folder, what is read before what reads it."""

    root: Path
    environment: Environment
    models: tuple[Model, ...]

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas that its stream tables are in."""
        return tuple(sorted({model.name.schema for model in self.models}))


def read_project(root: Path, environment: str | None = None) -> Project:
    """Read a folder; with the names that its stream tables have in an environment."""
    if not root.is_dir():
        raise UserError(f"There is no folder {root}.", hint="Make one with: runnel init-project DIR")
    chosen = read_environment(root, environment)
    models = [read_model(root, path, chosen.variables) for path in sorted(root.rglob("*.sql"))]
    by_name: dict[Name, Model] = {}
    for model in models:
        if model.name in by_name:
            raise UserError(f"{model.path} and {by_name[model.name].path} both say what {model.name} is.")
        by_name[model.name] = model
    placed = [_placed(model, set(by_name), chosen.schema_prefix) for model in models]
    return Project(root, chosen, _ordered(placed))


def tagged(project: Project, tags: Sequence[str]) -> Project:
    """The files with one of these tags, and those that they read."""
    wanted: set[Name] = set()
    for model in reversed(project.models):
        if model.name in wanted or set(tags) & set(model.tags):
            wanted |= {model.name} | reads(model, {each.name for each in project.models})
    if not wanted:
        known = sorted({tag for model in project.models for tag in model.tags})
        raise UserError(f"No file has the tag {', '.join(tags)}.", hint=f"Tags are: {', '.join(known) or 'none'}.")
    return replace(project, models=tuple(model for model in project.models if model.name in wanted))


def read_environment(root: Path, name: str | None) -> Environment:
    """One of the environments of runnel.toml; the default one needs not be there."""
    path = root / FILE
    said: dict[str, Any] = {}
    if path.is_file():
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8")).get("environments", {})
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    if name is not None and name not in said:
        raise UserError(f"{path} has no environment {name}.", hint=f"It has: {', '.join(said) or 'none'}.")
    values = said.get(name or "default", {})
    unknown = set(values) - {"dsn", "schema_prefix", "variables"}
    if unknown:
        raise UserError(f"{path}: there is no {', '.join(sorted(unknown))} in an environment.")
    variables = {key: str(value) for key, value in values.get("variables", {}).items()}
    return Environment(name or "default", values.get("dsn"), values.get("schema_prefix", ""), variables)


def reads(model: Model, names: set[Name]) -> set[Name]:
    """The stream tables among these that a query reads. A name without a schema is one of the model's own."""
    return _read(model, model.query, names) - {model.name}


def _read(model: Model, query: str, names: set[Name]) -> set[Name]:
    try:
        tree = sqlglot.parse_one(query, dialect="postgres")
    except SqlglotError as error:
        raise UserError(f"{model.path}: {str(error).splitlines()[0]}") from None
    hidden = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = [table for table in tree.find_all(exp.Table) if table.db or table.name not in hidden]
    return {Name(table.db or model.name.schema, table.name) for table in tables} & names


def _moved(model: Model, query: str, names: set[Name], prefix: str) -> str:
    """A query with the schemas that stream tables have in an environment; the rest of its text is as it was.

    Names without a schema are looked for in the model's own schema first, wherever that is.
    """
    tokens = tokenize(query, dialect="postgres")
    read = _read(model, query, names)
    for index in range(len(tokens) - 3, -1, -1):
        first, dot, second = tokens[index : index + 3]
        after_dot = index > 0 and tokens[index - 1].text == "."
        if dot.text == "." and not after_dot and Name(_text(query, first), _text(query, second)) in read:
            schema = quote(prefix + _text(query, first))
            query = f"{query[: first.start]}{schema}{query[first.end + 1 :]}"
    return query


def _moved_test(model: Model, test: Test, names: set[Name], prefix: str) -> Test:
    """A test that looks at the stream tables of its environment."""
    if test.to is not None and test.to in names:
        return replace(test, to=Name(prefix + test.to.schema, test.to.name))
    return replace(test, select=_moved(model, test.select, names, prefix)) if test.select else test


def _text(query: str, token: Any) -> str:
    """An identifier as PostgreSQL reads it."""
    return str(token.text if query[token.start] == '"' else token.text.lower())


def _placed(model: Model, names: set[Name], prefix: str) -> Model:
    """A model where an environment has it, and its query with the names that the others have there."""
    if not prefix:
        return model
    before = model.renamed_from
    return replace(
        model,
        name=Name(prefix + model.name.schema, model.name.name),
        renamed_from=None if before is None else Name(prefix + before.schema, before.name),
        query=_moved(model, model.query, names - {model.name}, prefix),
        tests=tuple(_moved_test(model, test, names, prefix) for test in model.tests),
    )


def _ordered(models: Sequence[Model]) -> tuple[Model, ...]:
    by_name = {model.name: model for model in models}
    try:
        order = TopologicalSorter({name: reads(model, set(by_name)) for name, model in by_name.items()}).static_order()
        return tuple(by_name[name] for name in order)
    except CycleError as error:
        circle = " -> ".join(str(name) for name in error.args[1])
        raise UserError(f"Stream tables read each other in a circle: {circle}") from None
