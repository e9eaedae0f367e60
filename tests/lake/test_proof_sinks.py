"""DuckDB shows what PostgreSQL shows, after each of many random refreshes and for all of them afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import runnel
from tests.lake.places import Place
from tests.lake.published import Published
from tests.lake.s3 import S3
from tests.lake.shop import QUERIES, Shop
from tests.lake.sizes import FULL, REFRESHES, chance
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("sealing_key")

MODES = ("merge", "append", "replace")
ALL = [(query, mode) for query in QUERIES for mode in MODES]
FEW = [("wide", "merge"), ("plenty", "merge"), ("totals", "append"), ("plenty", "replace")]
COMPACTIONS = (
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
)


@pytest.fixture(params=sampled(["folder", "folder encrypted", "s3", "s3 encrypted"], every=4))
def place(request: pytest.FixtureRequest, dsn: str) -> Iterator[Place]:
    encrypted = request.param.endswith("encrypted")
    if request.param.startswith("s3"):
        s3: S3 = request.getfixturevalue("s3")
        yield Place(dsn, request.getfixturevalue("bucket"), s3, encrypted)
    else:
        yield Place(dsn, request.getfixturevalue("data_path"), None, encrypted)


def test_random_refreshes(client: runnel.Client, db: psycopg.Connection, place: Place) -> None:
    choice = chance(f"sinks {place.data_path[:3]} {place.encrypted}")
    shop = Shop(db, choice)
    shop.open()
    place.attach(db)
    tables = _publish(client, db)
    with place.duck() as duck:
        for table in tables:
            table.observe(duck)
        for number in range(REFRESHES):
            what = [shop.change() for _ in range(choice.randint(1, 3))]
            print(f"refresh {number + 1}: {', '.join(what)}")
            for table in tables:
                client.refresh(table.name)
                table.observe(duck)
            assert all(s.status == "ACTIVE" for s in client.status())
        _looks_back(place, db, tables)
    place.check(db)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "s3 encrypted"] if FULL else ["folder"], indirect=True)
def test_random_refreshes_with_compactions(client: runnel.Client, db: psycopg.Connection, place: Place) -> None:
    """A client that compacts the tables moves every row to another file and position; none is lost or doubled.

    Not with inlined changes: DuckDB 1.5.5 itself shows wrong rows at old snapshots once it has rewritten a file with
    inlined deletes and then flushed them.
    """
    choice = chance(f"compactions {place.data_path[:3]} {place.encrypted}")
    shop = Shop(db, choice)
    shop.open()
    place.attach(db)
    tables = _publish(client, db, inline=False)
    with place.duck() as duck:
        for table in tables:
            table.observe(duck)
        for number in range(REFRESHES):
            what = shop.change()
            for table in tables:
                client.refresh(table.name)
                table.observe(duck)
            compaction = choice.choice(COMPACTIONS)
            print(f"refresh {number + 1}: {what}; {compaction}")
            duck.run(compaction)
        for table in tables:
            table.check_history(duck)
    place.check(db)


def _publish(client: runnel.Client, db: psycopg.Connection, *, inline: bool = True) -> list[Published]:
    """Stream tables in every mode; in full size each query in each mode."""
    tables = []
    for query, mode in ALL if FULL else FEW:
        name = f"{query}_{mode}"
        inlined = inline and query == "plenty"
        client.create_stream_table(
            name, QUERIES[query], "@yearly", "DIFFERENTIAL",
            sink="ducklake", ducklake_sink_mode=mode, inline_small_changes=inlined,
        )  # fmt: skip
        tables.append(Published(name, mode, db))
    return tables


def _looks_back(place: Place, db: psycopg.Connection, tables: list[Published]) -> None:
    """A client that has seen nothing of it finds every version, and who made it."""
    with place.duck() as duck:
        snapshots = duck.snapshots()
        for table in tables:
            versions = table.check_history(duck, snapshots[:: 5 if FULL else 3])
            assert table.check_provenance(place.schema) == len(table.history)
            print(f"{table.name}: {versions} versions, {len(table.history)} published")
    recorded = db.execute("SELECT ducklake_snapshot_id FROM pgtrickle.pgt_ducklake_provenance ORDER BY 1").fetchall()
    signed = db.execute(
        f"SELECT snapshot_id FROM {place.schema}.ducklake_snapshot_changes "
        "WHERE author LIKE 'pg_trickle/%/stream_table/%' ORDER BY 1".encode()
    ).fetchall()
    assert recorded == signed
