"""Trino and Spark beside DuckDB and PyIceberg, all on one lake. `make test-engines` fetches what these tests need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.lake.outside import IcebergPlace, iceberg_lines
from tests.conftest import TEMPLATE, running_engine
from tests.engines.spark import Spark
from tests.engines.trino import Trino
from tests.iceberg.clients import serving
from tests.lake.duck import Duck

if "RUNNEL_ENGINES" not in os.environ:
    # They need hundreds of megabytes of other projects: only by `make test-engines`.
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True)
class Place:
    """One database with an engine, one lake, one server, and every client of it."""

    dsn: str
    db: psycopg.Connection[Any]
    client: runnel.Client
    duck: Duck
    http: HttpServer
    token: str
    trino: Trino
    spark: Spark


@pytest.fixture(scope="session")
def place(server: Any, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("engines")
    data_path = folder / "lake"
    data_path.mkdir()
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE engines TEMPLATE {TEMPLATE}".encode())
    dsn = make_conninfo(server.dsn, dbname="engines")
    with (
        running_engine(dsn, spark),
        psycopg.connect(dsn, autocommit=True) as db,
        Duck(dsn, f"{data_path}/") as duck,
        serving(dsn, folder / "http") as http,
    ):
        duck.run("SET python_enable_replacements = false").run("CREATE TABLE first (i INTEGER)")
        db.execute("SELECT pgtrickle.attach_ducklake('lake', catalog_schema => 'ducklake')")
        token = HttpPlace(folder / "http").token()
        catalogs = {name: _pasted(http, f"{data_path}/", token, name) for name in ("trino", "spark")}
        trino = Trino(folder, catalogs["trino"])
        try:
            started = Spark(folder, catalogs["spark"])
            try:
                yield Place(dsn, db, runnel.connect(dsn), duck, http, token, trino, started)
            finally:
                started.close()
        finally:
            trino.close()


def _pasted(http: HttpServer, data_path: str, token: str, client: str) -> dict[str, dict[str, str]]:
    """The settings that `runnel lake info --client` prints, for versions 3 and 2 of the format."""
    found = {}
    for name, warehouse in (("ice", "lake"), ("ice2", "lake@v2")):
        given = IcebergPlace(f"{http.url}/iceberg", warehouse, "token file", {}, data_path)
        lines = [line for line in iceberg_lines(client, given) if not line.startswith("#")]
        pairs = [line.replace("<token>", token).split("=", 1) for line in lines]
        prefix = f"spark.sql.catalog.{warehouse}."
        found[name] = {key.removeprefix(prefix): value for key, value in pairs if key != prefix.rstrip(".")}
    return found
