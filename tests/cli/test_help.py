"""`runnel --help` answers at once: nothing is imported that only the commands need."""

from __future__ import annotations

import subprocess
import sys

HELP = """
import sys
from runnel.cli.main import app
sys.argv = ["runnel", "--help"]
try:
    app()
except SystemExit as end:
    print(end.code, *sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
HEAVY = {
    "adbc_driver_postgresql",
    "croniter",
    "cryptography",
    "duckdb",
    "fastavro",
    "markdown_it",
    "numpy",
    "obstore",
    "pandas",
    "psutil",
    "psycopg",
    "py4j",
    "pyarrow",
    "pyroaring",
    "pyspark",
    "rich",
    "sqlglot",
    "starlette",
    "uvicorn",
}


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    code, *imported = done.stderr.split()
    assert code == "0"
    assert "typer" in imported
    assert not HEAVY & set(imported)
    for said in ("Usage: runnel", "The stack:", "Stream tables:", "Looking inside:", "--version"):
        assert said in done.stdout
