"""Many changes: they pass in batches, whatever the mode, and what is kept of them meanwhile is on disk."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

import runnel
from runnel.lake.format.model import Lake
from runnel.lake.upkeep.maintain import maintain
from tests.lake.places import Place
from tests.lake.published import Published
from tests.lake.s3 import S3
from tests.lake.sinks import ROWS, sales, same, steps
from tests.lake.test_maintain import EAGER
from tests.ports.sinks import FILES, LAKES, Case, Rig, rig

__all__ = ["sales"]

Db = psycopg.Connection[Any]

MEGABYTES = 200
"""What a process may grow by while it publishes, however many rows there are."""


@pytest.fixture(autouse=True)
def sealing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of a lake are stored sealed."""
    monkeypatch.setenv("RUNNEL_ENCRYPTION_KEY", base64.b64encode(bytes(range(32))).decode())


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few rows, files of a few batches, nothing in memory: the ways of large changes, for small ones."""
    for name, limit in {
        "runnel.transport._BATCH": 200,
        "runnel.sinks.numbers._IN_MEMORY": 8,
        "runnel.sinks.numbers._TEXT": 10,
        "runnel.sinks.ducklake.rowmap._BATCH": 3,
        "runnel.sinks.ducklake.places._ASKED": 2,
        "runnel.sinks.ducklake.stored._KEPT_ROWS": 20,
        "runnel.sinks.ducklake.changes._REMEMBERED": 5,
        "runnel.sinks.ducklake.write.TARGET_SIZE": 400,
        "runnel.lake.write.parquet.ROW_GROUP": 7,
        "runnel.lake.write.parquet._ENCRYPTED_SIZE": 200,
        "runnel.lake.write.deletions.ROW_GROUP": 7,
        "runnel.lake.write.body.ROW_GROUP": 7,
        "runnel.lake.write.body._IN_MEMORY": 100,
    }.items():
        monkeypatch.setattr(name, limit)


@pytest.fixture(params=[*LAKES, FILES], ids=lambda case: case.name.replace(" ", "-"))
def made(request: pytest.FixtureRequest, dsn: str, tmp_path: Path, tiny: None) -> Iterator[Rig]:
    """A stream table that is published; no Spark is needed for changes that are not committed."""
    assert isinstance(request.param, Case)
    with rig(request.param, dsn, tmp_path, cast(Any, SimpleNamespace(threshold=10**9))) as started:
        started.define()
        yield started


@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes_in_tiny_batches(made: Rig, dsn: str, seed: int) -> None:
    choice = random.Random(seed)
    for step in range(8):
        inserted = [(choice.randrange(40), choice.choice(["a", "b", "", None])) for _ in range(choice.choice([0, 90]))]
        kept = list(made.rows.elements())
        deleted = choice.sample(kept, int(len(kept) * choice.choice([0, 0.1, 0.6, 1])))
        if not inserted and not deleted:
            continue
        # An inserted row is not deleted in the same refresh: deltas are consolidated.
        inserted = list((Counter(inserted) - Counter(deleted)).elements())
        action = "INITIAL" if not step else choice.choice(["DIFFERENTIAL", "DIFFERENTIAL", "REINITIALIZE"])
        made.refresh(inserted, deleted, action=action)
        assert made.seen() == made.rows
        assert made.uploads() == 0
        if made.case.in_lake and step % 3 == 1:
            _maintain(dsn, made)
            assert made.seen() == made.rows


def _maintain(dsn: str, made: Rig) -> None:
    """Put the rows into other files, which carry their row ids."""
    lake = Lake("lake", "ducklake", f"{made.folder}/lake/")
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as observer:
        assert maintain(conn, observer, lake, EAGER).skipped == {}


def test_a_failed_transaction_takes_all_of_its_files_with_it(made: Rig) -> None:
    first = [(i, f"n{i}") for i in range(60)]
    made.refresh(first, action="INITIAL")
    before = made.files()
    many = [(i, "more") for i in range(200)]
    with pytest.raises(ZeroDivisionError), made.transaction() as publication:
        made.publish(publication, many, first[:50])
        assert len(made.files()) > len(before)
        raise ZeroDivisionError
    assert made.files() == before
    assert made.uploads() == 0
    made.refresh(many, first[:50])
    assert made.seen() == made.rows


@pytest.mark.parametrize("where", ["folder", "s3", "s3 encrypted"])
@pytest.mark.parametrize("mode", ["merge", "append", "replace"])
@pytest.mark.slow
def test_every_snapshot_and_change_is_right_in_tiny_batches(
    mode: str,
    where: str,
    dsn: str,
    s3: S3,
    tmp_path: Path,
    tiny: None,
    sales: Db,
    client: runnel.Client,
) -> None:
    if where == "folder":
        place = Place(dsn, f"{tmp_path}/lake/")
    else:
        # Every file goes in parts, of which the last may be small.
        place = Place(
            dsn, s3.bucket(), s3=s3, encrypted="encrypted" in where, options=(("multipart_threshold", "300"),)
        )
    place.attach(sales)
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    published = Published("rows", mode, sales)
    with place.duck() as duck:
        published.observe(duck)
        for _ in steps(sales):
            client.refresh("rows")
            published.observe(duck)
        assert published.check_history(duck) > 3
    found = sales.execute("SELECT count(*) FROM ducklake.ducklake_data_file").fetchone()
    assert found is not None
    assert found[0] > len(published.history)
    place.check(sales)


@pytest.mark.parametrize("mode", ["merge", "replace"])
@pytest.mark.slow
def test_a_table_that_others_have_partitioned_and_sorted(
    mode: str, dsn: str, tmp_path: Path, tiny: None, sales: Db, client: runnel.Client
) -> None:
    place = Place(dsn, f"{tmp_path}/lake/")
    place.attach(sales)
    client.create_stream_table("rows", ROWS, schedule="1h", sink="ducklake", ducklake_sink_mode=mode)
    with place.duck() as duck:
        duck.run("ALTER TABLE rows__rows SET PARTITIONED BY (kind)").run("ALTER TABLE rows__rows SET SORTED BY (id)")
        for _ in itertools.islice(steps(sales), 4):
            client.refresh("rows")
            same(sales, duck, "rows")
            assert duck.rows("SELECT count(*) FROM rows WHERE kind = 'k1'") == [
                sales.execute("SELECT count(*) FROM rows WHERE kind = 'k1'").fetchone()
            ]
    place.check(sales)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*LAKES, FILES], ids=lambda case: case.name.replace(" ", "-"))
def test_memory_does_not_grow_with_the_rows(case: Case, dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lake.memory", dsn, str(tmp_path), case.name, "1500000"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {step: growth for step, growth in found.items() if growth > MEGABYTES} == {}, found
