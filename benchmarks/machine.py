"""The facts without which figures mean nothing."""

from __future__ import annotations

import subprocess

from benchmarks.report import Grid
from benchmarks.stack import Bench
from runnel.bench.stack import machine


def machine_facts(bench: Bench) -> Grid:
    """Hardware, versions and settings."""
    facts = dict(machine(bench.conn))
    facts["Spark"] += f", local[*], {_java()}"
    return Grid(("machine", ""), [[name, value] for name, value in facts.items()])


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return "Java of an unknown version"
    first = next((line for line in said.splitlines() if "version" in line), "")
    return f"Java {first.split(chr(34))[1]}" if '"' in first else first
