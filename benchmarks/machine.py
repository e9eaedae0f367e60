"""The facts without which figures mean nothing."""

from __future__ import annotations

import datetime as dt
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.report import Grid
from benchmarks.stack import Bench


def machine_facts(bench: Bench) -> Grid:
    """Hardware, versions and settings."""
    row = bench.conn.execute(
        "SELECT current_setting('server_version'), current_setting('shared_buffers'), current_setting('work_mem'), "
        "current_setting('fsync'), current_setting('synchronous_commit')"
    ).fetchone()
    assert row is not None
    server, buffers, work_mem, fsync, commit = row
    memory = psutil.virtual_memory().total / 2**30
    return Grid(
        ("machine", ""),
        [
            ["date", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"],
            ["processor", f"{psutil.cpu_count()} cores, {_processor()}"],
            ["memory", f"{memory:.0f} GiB"],
            ["system", f"{platform.system()} {platform.release().partition('-')[0]}"],
            ["PostgreSQL", f"{server}, shared_buffers {buffers}, work_mem {work_mem}"],
            ["durability", f"fsync {fsync}, synchronous_commit {commit}"],
            ["Spark", f"{version('pyspark')}, local[*], {_java()}"],
            ["Python", f"{platform.python_version()}, psycopg {version('psycopg')}, pyarrow {version('pyarrow')}"],
            ["Runnel", version("runnel")],
        ],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return "Java of an unknown version"
    first = next((line for line in said.splitlines() if "version" in line), "")
    return f"Java {first.split(chr(34))[1]}" if '"' in first else first
