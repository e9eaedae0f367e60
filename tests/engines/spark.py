"""Spark with Iceberg's runtime, in a process and an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

VERSION = "4.1.4"
ICEBERG = "1.12.0"


class Spark:
    """A session with the lake as catalog `ice` (version 3) and `ice2` (version 2)."""

    def __init__(self, folder: Path, catalogs: dict[str, dict[str, str]]) -> None:
        home = Path(os.environ["RUNNEL_ENGINES"]) / "spark"
        settings = {
            "spark.jars": str(home / "jars" / f"iceberg-spark-runtime-4.1_2.13-{ICEBERG}.jar"),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        for name, properties in catalogs.items():
            settings[f"spark.sql.catalog.{name}"] = "org.apache.iceberg.spark.SparkCatalog"
            settings |= {f"spark.sql.catalog.{name}.{key}": value for key, value in properties.items()}
        worker = Path(__file__).with_name("spark_worker.py")
        self.log = (folder / "spark.log").open("wb")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SPARK"))}
        self.process = subprocess.Popen(
            [str(home / "venv" / "bin" / "python"), str(worker), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder,
            env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
        try:
            self.version = self._answer()["ready"]
        except RuntimeError:
            raise RuntimeError("Spark did not start:\n" + (folder / "spark.log").read_text()[-3000:]) from None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; raises RuntimeError with what Spark says."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(sql) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{sql}")
        return [tuple(row) for row in answer["rows"]]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                found: dict[str, Any] = json.loads(line[1:])
                return found
        raise RuntimeError("Spark has ended")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
