"""The tests that the documentation names as proof are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>\w+)`")


@pytest.mark.parametrize("page", ["engines"])
def test_named_tests_exist(page: str) -> None:
    named = {(each["file"], each["name"]) for each in NAMED.finditer((ROOT / f"docs/{page}.md").read_text())}
    assert len(named) >= 15
    missing = {f"{file}::{name}" for file, name in named if name not in named_in(ROOT / file)}
    assert not missing


def test_every_cell_of_the_comparison_has_a_test() -> None:
    """Each row of the tables of proof names at least one; only what was not tried says so."""
    text = (ROOT / "docs/engines.md").read_text()
    section = text[text.index("## Compared") :]
    section = section[: section.index("\n## ", 5)]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    proven = [line for line in rows if NAMED.search(line)]
    rest = [line for line in rows if not NAMED.search(line)]
    assert len(proven) >= 14
    assert all(re.match(r"\| (criterion|direction|engine)", line) or "not tried" in line for line in rest), rest


def named_in(path: Path) -> set[str]:
    return {each.name for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)}
