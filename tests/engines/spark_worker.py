"""Runs in an environment of its own, with Spark and Iceberg's runtime: statements in, rows out, as lines of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    from pyspark.sql import SparkSession

    settings: dict[str, str] = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").appName("runnel-engines")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say({"ready": spark.version})
    for line in sys.stdin:
        try:
            rows = [[plain(value) for value in row] for row in spark.sql(json.loads(line)).collect()]
            say({"rows": rows})
        except Exception as error:
            say({"error": str(error)[:2000]})


def plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def say(answer: object) -> None:
    sys.stdout.write("@" + json.dumps(answer) + "\n")
    sys.stdout.flush()


main()
