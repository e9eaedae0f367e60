"""Run a tutorial from its own text, block by block, and compare what it prints with what the text shows.

    ```sql      goes to psql; with a first line `-- DuckDB shell` to DuckDB, with `-- Grafana` its macros are expanded
    ```bash     goes to bash, whose exports hold for all later blocks; `runnel up` is handed to the caller
    ```python   runs in this process, with `spark` in reach
    ```text     directly below a block: what that block prints

With REWRITE_TUTORIALS=1 in the environment the shown output is replaced by the real one instead of compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from runnel.server.account import binaries
from tests.lake.duck import EXTENSIONS, extension

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_GRAFANA = {
    r"\$__timeGroupAlias\((\w+), '1d'\)": r"date_trunc('day', \1) AS time",
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN now() - interval '30 days' AND now()",
}


@dataclass(frozen=True)
class Block:
    """A fenced block, and the output that the text shows for it."""

    language: str
    text: str
    line: int
    shown: str | None = None
    shown_at: tuple[int, int] | None = None


@dataclass
class Runner:
    """Everything that the blocks of one tutorial share."""

    spark: SparkSession
    stack: Callable[[list[str]], object]
    """Called with the arguments of `runnel up`; returns when the engine is ready."""
    replace: Mapping[str, str]
    """What the text says, and what it is here: ports and folders."""
    duck: duckdb.DuckDBPyConnection = field(init=False)
    outputs: list[tuple[Block, str]] = field(default_factory=list)

    def run(self, page: Path, folder: Path) -> None:
        """All blocks in order; the first that fails or prints something else ends it."""
        self.duck = duckdb_with_repository(folder)
        text = page.read_text(encoding="utf-8")
        try:
            for block in blocks(text):
                printed = self._run(block, page)
                if block.shown is not None:
                    self.outputs.append((block, printed))
        finally:
            self.duck.close()
            if os.environ.get("REWRITE_TUTORIALS"):
                page.write_text(rewritten(text, self.outputs), encoding="utf-8")

    def _run(self, block: Block, page: Path) -> str:
        text = block.text
        for said, meant in self.replace.items():
            text = text.replace(said, meant)
        try:
            printed = normal(self._kinds()[block.language](text))
        except Exception as error:
            raise AssertionError(f"{page.name}, line {block.line}: {error}\n\n{block.text}") from error
        if block.shown is not None and not os.environ.get("REWRITE_TUTORIALS"):
            assert printed.endswith(normal(block.shown)), f"{page.name}, line {block.line} printed\n{printed}"
        return printed

    def _kinds(self) -> dict[str, Callable[[str], str]]:
        return {"sql": self._sql, "bash": self._bash, "python": self._python}

    def _sql(self, text: str) -> str:
        if text.startswith("-- DuckDB shell"):
            return self._duckdb(text)
        if text.startswith("-- Grafana"):
            for macro, meaning in _GRAFANA.items():
                text = re.sub(macro, meaning, text)
        command = [str(binaries() / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "footer=off", "-f", "-"]
        return _output(subprocess.run(command, input=text, capture_output=True, text=True, check=False))

    def _duckdb(self, text: str) -> str:
        printed = ""
        for statement in duckdb.extract_statements(text):
            found = self.duck.sql(statement.query)
            # What the shell would print; a statement without rows prints nothing.
            printed += "" if found is None else str(found)
        return printed

    def _bash(self, text: str) -> str:
        words = shlex.split(text, comments=True)
        if words[:2] == ["runnel", "up"]:
            self.stack(words[2:])
            return ""
        marker = "--- environment"
        done = subprocess.run(
            ["bash", "-euc", f"{text}\necho '{marker}'; env -0"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        printed, _, environment = _output(done).partition(f"{marker}\n")
        for name, _, value in (each.partition("=") for each in environment.split("\0")):
            if name.startswith(("AWS_", "RUNNEL_")):
                os.environ[name] = value
        return printed

    def _python(self, text: str) -> str:
        names: dict[str, Any] = {"spark": self.spark}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "tutorial", "exec"), names)  # noqa: S102  (the text of our own page)
        return printed.getvalue()


def blocks(text: str) -> list[Block]:
    """The blocks to run, in order."""
    found: list[Block] = []
    ended = 0
    for match in _FENCE.finditer(text):
        language, body = match.groups()
        if language != "text":
            found.append(Block(language, body, text.count("\n", 0, match.start()) + 1))
        elif found and not text[ended : match.start()].strip():
            last = found[-1]
            found[-1] = Block(last.language, last.text, last.line, body, match.span(2))
        ended = match.end()
    return found


def normal(printed: str) -> str:
    """Without what no reader sees."""
    return "\n".join(line.rstrip() for line in printed.splitlines() if line.strip())


def rewritten(text: str, outputs: list[tuple[Block, str]]) -> str:
    """The page with the real outputs in place of those it shows."""
    for block, printed in reversed(outputs):
        assert block.shown_at is not None
        start, end = block.shown_at
        text = text[:start] + printed + "\n" + text[end:]
    return text


def duckdb_with_repository(folder: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB for which INSTALL works without a network: its repository is the installed packages."""
    (platform,) = duckdb.sql("PRAGMA platform").fetchone() or ("",)
    repository = folder / "repository"
    shelf = repository / f"v{duckdb.__version__}" / platform
    shelf.mkdir(parents=True)
    for name in EXTENSIONS:
        (shelf / f"{name}.duckdb_extension").symlink_to(extension(name))
    conn = duckdb.connect(
        config={
            "allow_unsigned_extensions": "true",
            "extension_directory": str(folder / "installed"),
            "custom_extension_repository": str(repository),
            "autoinstall_extension_repository": str(repository),
        }
    )
    conn.execute("SET TimeZone = 'UTC'")
    return conn


def _output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout
