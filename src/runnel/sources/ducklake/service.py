"""Lakes as a service of the engine: the default lake of a stack, requests about lakes, and their maintenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.lake.restored import forget_other_database
from runnel.lake.upkeep.thread import Upkeep
from runnel.ports.service import Answer, Connection, Service
from runnel.sources.ducklake import attach
from runnel.spark.ducklake.upkeep import UpkeepTasks

if TYPE_CHECKING:
    from runnel.spark.session import Sessions


class Lakes(Service):
    """The lakes of one engine."""

    requests: Mapping[str, Answer] = {
        "attach_lake": attach.attach,
        "detach_lake": attach.detach,
        "set_lake_option": attach.set_option,
        "lake_info": lambda conn, args, _: attach.info(conn, args),
        "lake_tables": lambda conn, args, _: attach.tables(conn, args),
    }
    required = {
        "attach_lake": ("attach_ducklake", ("name", "catalog_schema")),
        "detach_lake": ("detach_ducklake", ("name",)),
        "set_lake_option": ("set_lake_option", ("name", "option")),
    }
    secret = frozenset({"attach_lake", "set_lake_option"})
    slow = frozenset({"maintain_lake"})

    def __init__(
        self,
        dsn: str,
        home: Path | None,
        data_path: str | None,
        on_event: Callable[[str], None],
        spark: Callable[[], Sessions | None] = lambda: None,
    ) -> None:
        """For the engine of `dsn`; `home` and `data_path` as the engine was given them, `spark` once it has it."""
        self._home = home
        self._data_path = data_path
        self._upkeep = Upkeep(dsn, on_event, lambda: None if (ready := spark()) is None else UpkeepTasks(ready))

    def prepare(self, conn: Connection) -> None:
        """Let clients seal for the engine's key, and see to the default lake."""
        attach.prepare(conn, self._home, self._data_path)

    def restored(self, conn: Connection) -> None:
        """Trust nothing that is about files or stand-ins of another database."""
        forget_other_database(conn)

    def take(self, conn: Connection, request_id: int, args: Mapping[str, Any], role: str) -> None:
        """Maintain a lake because somebody asked for it."""
        attach.require_engine_rights(conn, role, "maintain lakes")
        self._upkeep.answer(request_id, args.get("name"))

    def look(self, conn: Connection) -> None:
        """Let lakes whose turn it is be maintained."""
        self._upkeep.look(conn)

    def close(self) -> None:
        """Stop maintenance."""
        self._upkeep.close()
