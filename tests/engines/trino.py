"""A Trino of our own: started for the tests, asked over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import requests

VERSION = "483"


class Trino:
    """One server with the lake as catalog `ice` (version 3) and `ice2` (version 2)."""

    def __init__(self, folder: Path, catalogs: dict[str, dict[str, str]]) -> None:
        self.home = Path(os.environ["RUNNEL_ENGINES"]) / "trino"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        etc = folder / "etc"
        (etc / "catalog").mkdir(parents=True)
        _write(
            etc / "config.properties",
            {
                "node.environment": "test",
                "node.id": "one",
                "coordinator": "true",
                "node-scheduler.include-coordinator": "true",
                "http-server.http.port": str(port),
                "discovery.uri": self.url,
                "plugin.dir": str(self.home / "plugin"),
                "catalog.management": "dynamic",
                "catalog.store": "file",  # in etc/catalog, from where it was started
                "query.max-memory": "1GB",
                "query.max-memory-per-node": "1GB",
            },
        )
        for name, properties in catalogs.items():
            _write(etc / "catalog" / f"{name}.properties", properties)
        java = Path(os.environ["JAVA25_HOME"]) / "bin" / "java"
        self.log = (folder / "trino.log").open("wb")
        self.process = subprocess.Popen(
            [
                str(java), "-Xmx2G", "--add-modules=jdk.incubator.vector", "-Djdk.attach.allowAttachSelf=true",
                "--sun-misc-unsafe-memory-access=allow", f"-Dconfig={etc / 'config.properties'}",
                "-cp", f"{self.home / 'lib'}/*", str(self.home / "Main.java"),
            ],
            stdout=self.log, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        self._wait(folder)

    def _wait(self, folder: Path) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if not requests.get(f"{self.url}/v1/info", timeout=5).json()["starting"]:
                    self.rows("SELECT 1")
                    return
            except (requests.RequestException, RuntimeError):
                pass
            time.sleep(1)
        self.close()
        raise RuntimeError("Trino did not start:\n" + (folder / "trino.log").read_text()[-3000:])

    def rows(self, sql: str, **place: str) -> list[tuple[Any, ...]]:
        """Run a statement; raises RuntimeError with what Trino says. `place`: catalog and schema of plain names."""
        headers = {"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC"}
        headers |= {f"X-Trino-{key.title()}": value for key, value in place.items()}
        answer = requests.post(f"{self.url}/v1/statement", sql.encode(), headers=headers, timeout=120).json()
        found: list[tuple[Any, ...]] = []
        while True:
            if "error" in answer:
                raise RuntimeError(f"{answer['error']['errorName']}: {answer['error']['message']}\n{sql}")
            found += [tuple(row) for row in answer.get("data", [])]
            if "nextUri" not in answer:
                return found
            answer = requests.get(answer["nextUri"], headers=headers, timeout=120).json()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def _write(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
