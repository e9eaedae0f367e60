"""What is not maintained by deltas is said in one place: code, errors and documentation agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runnel.sql import registry

ROOT = Path(__file__).parents[2]
SOURCES = {p: p.read_text() for p in (ROOT / "src" / "runnel").rglob("*.py")}
# Refused by the trigger functions, in SQL.
ELSEWHERE = {"UNCAPTURED"}


def test_the_documentation_shows_the_registry() -> None:
    assert registry.table() in (ROOT / "docs" / "sql.md").read_text(), (
        "docs/sql.md differs from `python -m runnel.sql.registry`"
    )


def test_every_refusal_names_an_entry() -> None:
    raised = 0
    for path, text in SOURCES.items():
        for match in re.finditer(r"raise (?:NotDifferentiable|OuterCondition)\(\s*([\w.]+)", text):
            raised += 1
            assert match.group(1).startswith("registry.") or match.group(1) == "entry", f"{path.name}: {match.group(0)}"
        for match in re.finditer(r"(?:NotDifferentiable|OuterCondition)\(\s*[f\"']", text):
            pytest.fail(f"{path.name}: {match.group(0)} without an entry of the registry")
    assert raised > 50


def test_every_entry_is_used() -> None:
    entries = {name for name, value in vars(registry).items() if isinstance(value, registry.Entry)}
    assert len(entries) == len(registry.ENTRIES)
    text = "\n".join(SOURCES.values())
    unused = {name for name in entries if f"registry.{name}" not in text}
    assert unused == ELSEWHERE


def test_entries_can_stand_in_a_table_and_in_a_sentence() -> None:
    for entry in registry.ENTRIES:
        assert "|" not in f"{entry.construct}{entry.why}{entry.way_out}"
        assert not entry.why.endswith(".")
        assert not entry.way_out or entry.way_out.endswith(".")
    assert len({e.construct for e in registry.ENTRIES}) == len(registry.ENTRIES)
