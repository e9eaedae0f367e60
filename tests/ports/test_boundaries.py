"""What is particular to one kind of source or sink stays with that kind: measured over the source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import runnel

ROOT = Path(runnel.__file__).parent
OF_LAKES = ("lake/", "sources/", "sinks/", "spark/ducklake/", "iceberg/", "relay/")
FRONTS = ("cli/", "http/", "demo/", "bench/", "project/", "client.py", "answers.py", "lineage.py")
OF_KINDS = ("sources/", "sinks/", "lake/", "ports/")
MODULES_THAT_MAY_SAY_LAKE = 10
ASKING = {"sources/registry.py": 1, "engine/registry.py": 1}
"""Where relations are dealt out to their kinds, and where views, which are no source, are told from sources."""


def modules(outside: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The modules outside of some rooms, each with its text."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(tuple(outside)):
            yield name, path.read_text()


def comparisons_of_kind(text: str) -> list[str]:
    """Where a program asks which kind of source something is: `x.source == ..`, `match x.source`, `kinds[x.source]`."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(_is_kind, [left, *others])):
                found.append(node)
            case ast.Match(subject=subject) if _is_kind(subject):
                found.append(node)
            case ast.Subscript(slice=key) if _is_kind(key):
                found.append(node)
    return [ast.unparse(node).splitlines()[0] for node in found]


def _is_kind(node: ast.AST) -> bool:
    """`origin.source`, or `source_type`, as the catalog calls it."""
    match node:
        case ast.Attribute(value=ast.Attribute(attr="origin") | ast.Name(id="origin"), attr="source"):
            return True
        case ast.Attribute(attr="source_type") | ast.Name(id="source_type"):
            return True
    return False


def checks_of_class(text: str, name: str) -> list[str]:
    """Where a program asks whether something is of a class: `isinstance`, or the pattern of a match."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]) if name in ast.unparse(kinds):
                found.append(node)
            case ast.MatchClass(cls=kind) if name in ast.unparse(kind):
                found.append(node)
    return [ast.unparse(node) for node in found]


def test_few_modules_know_of_lakes() -> None:
    knowing = [name for name, text in modules(outside=OF_LAKES + FRONTS) if "lake" in text.lower()]
    assert len(knowing) <= MODULES_THAT_MAY_SAY_LAKE, knowing


def test_nobody_else_asks_for_the_kind_of_a_source() -> None:
    asking = {name: len(found) for name, text in modules() if (found := comparisons_of_kind(text))}
    assert asking == ASKING


def test_nobody_looks_into_the_reference_of_a_lake_table() -> None:
    looking = {name: found for name, text in modules(OF_KINDS) if (found := checks_of_class(text, "LakeRef"))}
    assert looking == {}


@pytest.mark.parametrize(
    "text",
    [
        "relation.origin.source == 'TABLE'",
        "'TABLE' != origin.source",
        "u.relation.origin.source in names",
        "match r.origin.source:\n    case 'TABLE':\n        pass",
        "ways[r.origin.source](r)",
        "row.source_type == 'VIEW'",
    ],
)
def test_a_question_for_the_kind_is_noticed(text: str) -> None:
    assert len(comparisons_of_kind(text)) == 1


def test_other_questions_are_not() -> None:
    assert (
        comparisons_of_kind("leaf.source == other; stage.head.source.index == 3; put(source_type=r.origin.source)")
        == []
    )


def test_a_question_for_the_class_is_noticed() -> None:
    assert checks_of_class("isinstance(ref, LakeRef)", "LakeRef") == ["isinstance(ref, LakeRef)"]
    assert len(checks_of_class("isinstance(ref, (str, ref.LakeRef))", "LakeRef")) == 1
    assert len(checks_of_class("match ref:\n    case LakeRef(lake=name):\n        pass", "LakeRef")) == 1
    assert checks_of_class("found: LakeRef = LakeRef('lake', 1, 'main', 't')", "LakeRef") == []
