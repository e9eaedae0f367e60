"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import runnel

ROOMS = ("model", "plan", "delta", "schedule", "sql", "lake", "sources", "engine", "cli")


def modules() -> list[str]:
    found = ["runnel.dsn"]
    for room in ROOMS:
        package = importlib.import_module(f"runnel.{room}")
        found += [f"runnel.{room}", *(m.name for m in pkgutil.walk_packages(package.__path__, f"runnel.{room}."))]
    return found


@pytest.mark.parametrize("name", modules())
def test_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples_to_run() -> None:
    finder = doctest.DocTestFinder()
    examples = [t for name in modules() for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(examples) >= 10
    assert runnel.__doc__
