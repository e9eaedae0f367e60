"""`runnel spark package`: what tasks import is in the archive, and nothing that they do not need."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

import runnel
from runnel.errors import SparkFailure, UserError
from runnel.spark.executors import explained
from runnel.spark.package import (
    TASK_MODULES,
    check_package,
    package_settings,
    python_version,
    read_manifest,
    sources_digest,
)
from tests.cli.conftest import Run
from tests.robustness.cluster import SPARK_HOME, bare_python

IN_TASKS = (
    *TASK_MODULES,
    # What their functions import when they run.
    "adbc_driver_postgresql.dbapi",
    "psycopg",
    "obstore",
    "runnel.transport",
    "runnel.lake.read.copytext",
    "runnel.lake.write.parquet",
    "runnel.lake.write.pgbinary",
)
ROOMS = {"errors", "lake", "model", "spark", "transport"}
"""The rooms of Runnel that tasks know; the parser, the catalog and the engine stay at home."""

PROGRAM = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
from runnel.lake.duck import connect
loaded = sorted(sys.modules)
connect().execute("SELECT 1").fetchall()   # with the extension that encrypted files need
from runnel.spark.package import sources_digest
print(json.dumps({"loaded": loaded, "sources": sources_digest()}))
"""


@pytest.mark.slow
def test_tasks_find_what_they_import(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "tasks.tar.gz"
    said = run("spark", "package", "--output", str(archive)).stdout
    assert "MiB" in said
    assert f"--spark-package {archive}" in said
    assert read_manifest(archive).runnel == runnel.__version__
    check_package(str(archive))
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "environment", filter="data")
    seen = _imported(tmp_path)
    assert seen["sources"] == sources_digest()
    rooms = {name.split(".")[1] for name in seen["loaded"] if name.startswith("runnel.")}
    assert rooms <= ROOMS, f"tasks import {rooms - ROOMS}"
    foreign = {name.split(".")[0] for name in seen["loaded"]}
    assert not foreign & {"pandas", "psutil", "sqlglot", "typer", "rich", "croniter", "cryptography"}
    ours = [name for name in seen["loaded"] if name.startswith("runnel")]
    assert len(ours) <= 50, f"tasks import {len(ours)} modules of Runnel"


def _imported(folder: Path) -> dict[str, list[str]]:
    """What an interpreter loads that has Spark's own Python and the archive, as an executor's has."""
    zips = [str(each) for each in (SPARK_HOME / "python" / "lib").glob("*.zip")]
    done = subprocess.run(
        # Without packages of its own, wherever they may be installed.
        [bare_python(), "-S", "-c", PROGRAM, json.dumps(IN_TASKS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": ":".join([*zips, "./environment"]), "HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_every_function_of_tasks_is_listed() -> None:
    """Whatever takes batches of rows runs in tasks, or could."""
    root = Path(runnel.__file__).parent
    handed = {
        "runnel." + ".".join(path.relative_to(root).with_suffix("").parts)
        for path in (root / "spark").rglob("*.py")
        if re.search(r"Iterator\[pa\.RecordBatch\]", path.read_text())
    }
    assert handed <= set(TASK_MODULES)


def _archive(path: Path, **other: str) -> str:
    words = {"runnel": "0.1", "sources": sources_digest(), "python": python_version(), "platform": "x", "packages": {}}
    data = json.dumps(words | other).encode()
    with tarfile.open(path, "w:gz") as opened:
        member = tarfile.TarInfo("runnel-package.json")
        member.size = len(data)
        opened.addfile(member, io.BytesIO(data))
    return str(path)


def test_an_archive_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    check_package(_archive(tmp_path / "good.tar.gz"))
    check_package("hdfs:///only/the/cluster/knows.tar.gz")
    text = tmp_path / "text.tar.gz"
    text.write_text("no archive")
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz") as opened:
        opened.addfile(tarfile.TarInfo("readme"))
    for place, message, hint in (
        (_archive(tmp_path / "old.tar.gz", python="2.7"), "is for Python 2.7, and this is Python 3", "Make it anew"),
        (_archive(tmp_path / "odd.tar.gz", sources="x"), "holds another Runnel (0.1) than this one", "Make it anew"),
        (_archive(tmp_path / "a.zip"), "must end in .tar.gz", ""),
        (str(text), "cannot be read", "runnel spark package"),
        (str(other), "was not made by", ""),
        (str(tmp_path / "none.tar.gz"), "There is no file", "runnel spark package --output"),
    ):
        with pytest.raises(UserError, match=re.escape(message)) as raised:
            check_package(place)
        assert hint in (raised.value.hint or "")


def test_a_missing_archive_is_told_before_anything_starts(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    master = ("--master", "spark://127.0.0.1:1")
    said = run("up", "--home", str(home), *master, "--spark-package", "none.tar.gz", code=1).stderr
    assert f"There is no file {tmp_path / 'none.tar.gz'}" in said
    assert "runnel spark package" in said
    assert not home.exists()
    (tmp_path / "runnel.toml").write_text('spark_package = "other.tar.gz"\n')
    said = run("up", "--home", str(home), *master, code=1).stderr
    assert f"There is no file {tmp_path / 'other.tar.gz'}" in said
    # The file's name must be what Spark unpacks, and the folder must exist.
    assert "must end in .tar.gz" in run("spark", "package", "--output", "x.zip", code=1).stderr
    assert "cannot be written" in run("spark", "package", "--output", "nowhere/x.tgz", code=1).stderr


def test_spark_is_told_where_the_archive_is(tmp_path: Path) -> None:
    odd = package_settings(str(tmp_path / "a, b#c.tar.gz"))
    assert odd["spark.archives"].endswith("/a%2C%20b%23c.tar.gz#environment")
    assert odd["spark.executorEnv.PYTHONPATH"] == "./environment"
    assert package_settings("s3a://bucket/x.tgz")["spark.archives"] == "s3a://bucket/x.tgz#environment"


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.8 than in driver",
            f"The workers have Python 3.8, and the engine has Python {python_version()}.",
        ),
        ("ModuleNotFoundError: No module named 'runnel'", "The workers lack the Python package runnel."),
        ("ModuleNotFoundError: No module named 'adbc_driver_manager'", "lack the Python package adbc_driver_manager."),
        (
            'java.io.IOException: Cannot run program "/x/python": error=2, No such file',
            "The workers have no /x/python.",
        ),
        ("ModuleNotFoundError: No module named 'theirs'", "Spark: it failed"),
    ],
)
def test_workers_that_cannot_work_are_explained(trace: str, told: str) -> None:
    assert told in explained(SparkFailure("Spark: it failed"), trace).message
