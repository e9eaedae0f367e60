"""docs/architecture.md names the rewrites in the order in which they run."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from runnel.sql import rewrite

HELPERS = {"context", "totality", "tree"}
"""Modules of the folder that rewrite nothing: what the others ask."""


def test_the_order_is_that_of_the_code() -> None:
    code = [step.__module__.rpartition(".")[2] for step in (*rewrite.DECIDING, *rewrite.TO_CORE)]
    assert [word.strip() for word in _chain().split("->")] == code


def test_every_rewrite_is_in_the_table() -> None:
    table = "".join(line for line in _section().splitlines() if line.startswith("|"))
    modules = {module.name for module in pkgutil.iter_modules(rewrite.__path__)} - HELPERS
    assert {name for name in modules if f"`{name}`" not in table} == set()


def _section() -> str:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.split("\n## Rewrites\n")[1].split("\n## ")[0]


def _chain() -> str:
    """The indented lines of the section, which are one chain of arrows."""
    return " ".join(line for line in _section().splitlines() if line.startswith("    "))
