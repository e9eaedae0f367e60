"""The examples in docstrings are true: in every module of the package, and every one of them."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import runnel

PACKAGE = Path(runnel.__file__).parent
PROMPT = re.compile(r'^\s*(?:[rR]?"{3})?>>>', re.MULTILINE)


def prompts(path: Path) -> int:
    """How many examples a module seems to have."""
    return len(PROMPT.findall(path.read_text(encoding="utf-8")))


def with_examples() -> list[str]:
    """Every module in whose text a prompt stands. Found as files, so that none depends on what imports it."""
    return [
        ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if prompts(path)
    ]


@pytest.mark.parametrize("name", with_examples())
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    result = doctest.testmod(module)
    assert result.failed == 0
    # A prompt in a string that is nobody's docstring would look like an example and never run.
    assert result.attempted == prompts(Path(module.__file__))


def test_there_are_examples_to_run() -> None:
    assert {"runnel.dsn", "runnel.spark.session", "runnel.sinks.ducklake.views"} <= set(with_examples())
