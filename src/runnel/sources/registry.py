"""The kinds of sources, and the services that come with them.

A new kind is a folder beside the others and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.ports.service import Service
from runnel.ports.source import Connection, Kind, Reading, Source, Used
from runnel.sources.ducklake.kind import LakeTables
from runnel.sources.ducklake.service import Lakes
from runnel.sources.postgres.kind import CapturedTables
from runnel.sources.postgres.wal.service import WalCapture
from runnel.sources.streamtable.kind import StreamTables

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

Kinds = Sequence[Kind]
Services = Sequence[Service]


def all_kinds(services: Services = ()) -> Kinds:
    """One of each, for one worker of an engine. The first that finds a relation has it; what none finds is a table."""
    decoding = next((service.progress for service in services if isinstance(service, WalCapture)), None)
    return (StreamTables(), LakeTables(), CapturedTables(decoding))


def all_services(
    dsn: str,
    home: Path | None,
    data_path: str | None,
    on_event: Callable[[str], None],
    spark: Callable[[], Sessions | None] = lambda: None,
    wake: Callable[[], None] = lambda: None,
) -> Services:
    """What an engine offers besides; `home` and `data_path` as the engine was given them, `spark` once it has it.

    `wake` lets the engine look what has changed; from any thread.
    """
    return (Lakes(dsn, home, data_path, on_event, spark), WalCapture(dsn, on_event, wake))


def capture_sources(kinds: Kinds, conn: Connection, used: Sequence[Used], role: str) -> None:
    """From now on keep the changes of the relations of a stream table of that role."""
    for kind, mine in _dealt_out(kinds, used):
        kind.capture(conn, mine, role)


def open_sources(kinds: Kinds, reading: Reading, used: Sequence[Used]) -> dict[int, Source]:
    """The relations of a stream table, opened for one refresh, by oid."""
    found: dict[int, Source] = {}
    for kind, mine in _dealt_out(kinds, used):
        found |= kind.open(reading, mine)
    return found


def _dealt_out(kinds: Kinds, used: Sequence[Used]) -> Iterator[tuple[Kind, Sequence[Used]]]:
    """Each kind that has any of the relations, with those."""
    for kind in kinds:
        mine = [u for u in used if u.relation.origin.source == kind.name]
        if mine:
            yield kind, mine
