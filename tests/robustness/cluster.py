"""A real Spark standalone cluster on this machine: a master and workers, each a process with a folder of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.robustness.processes import Process

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class Cluster:
    """A master and its workers."""

    address: str
    workers: tuple[Process, ...]
    folders: tuple[Path, ...]

    def executors(self) -> set[psutil.Process]:
        """The JVMs that the workers have started for an application."""
        started = {p for worker in self.workers for p in worker.family() if p.pid != worker.pid}
        return {p for p in started if "CoarseGrainedExecutorBackend" in _command(p)}


@contextlib.contextmanager
def standalone(
    folder: Path, processes: list[Process], *, workers: int = 2, cores: int = 1, memory: str = "1g", bare: bool = False
) -> Iterator[Cluster]:
    """A cluster; none of its processes outlives it. The workers of a `bare` one do not see this project."""
    port = _free_port()
    address = f"spark://127.0.0.1:{port}"
    master = _daemon("master.Master", "--port", str(port), environment=_environment(bare))
    processes.append(master)
    master.wait_for("Starting Spark master")
    started, folders = [], []
    for number in range(workers):
        folders.append(folder / f"worker{number}")
        sizes = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folders[-1]))
        started.append(_daemon("worker.Worker", *sizes, address, environment=_environment(bare)))
        processes.append(started[-1])
    for worker in started:
        worker.wait_for("Successfully registered with master")
    yield Cluster(address, tuple(started), tuple(folders))
    for process in (*started, master):
        process.stop()
        assert not process.leftovers(), "left behind by the cluster"


def bare_python() -> str:
    """The interpreter that this environment was made from: the same version, and none of its packages."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def _daemon(name: str, *arguments: str, environment: Mapping[str, str]) -> Process:
    """In the foreground."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    # A worker's own folder is its place: nothing is imported from where the tests were started.
    return Process([*command, "--webui-port", "0", *arguments], env=environment, inherit=False)


def _environment(bare: bool) -> dict[str, str]:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON") if bare else ()
    ours = {key: value for key, value in os.environ.items() if key not in hidden}
    if bare:
        # The commands of the virtual environment are on its path, Python among them.
        ours["PATH"] = os.pathsep.join(p for p in ours["PATH"].split(os.pathsep) if not p.startswith(sys.prefix))
    return {**ours, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
