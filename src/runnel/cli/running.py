"""Run an engine in this process until a signal comes, with the server of a home if there is one."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.cli import logs, serving
from runnel.cli.output import done, warn
from runnel.cli.target import embedded, reaching
from runnel.dsn import masked, with_password
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.engine import Engine
    from runnel.http.server import HttpServer
    from runnel.server.embedded import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Run:
    """What `up` was asked for, wherever the server is."""

    master: str
    began: float
    data_path: str | None
    verify_every: float | None
    tasks_above: int
    workers: int | None
    joins_in_spark: bool
    spark_package: str | None
    cdc_mode: str
    """How sources are captured, unless their stream tables say."""
    http: serving.Wish | None
    """Where to serve HTTP; None for not at all."""
    standby: bool

    @property
    def seconds(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"


def run_embedded(home: Path | None, run: Run) -> None:
    """Start the server of a home, run the engine, and stop the server; not one that somebody else's engine uses."""
    from runnel.server.home import clear_engine_pid, write_engine_pid

    server = embedded(home, logs.log.info)
    _refuse_second_engine(server)
    before = server.is_running
    logs.log.info("PostgreSQL 18 in %s ...", server.home.path)
    address = server.start()
    logs.log.info("PostgreSQL %s (%s)", "was already running" if before else "started", run.seconds)
    write_engine_pid(server.home)
    stop = not before
    try:
        run_engine(address, run, where=f" --home {home}" if home else "", home=server.home.path)
        stop = True
    finally:
        clear_engine_pid(server.home)
        if stop:
            server.stop()


def run_engine(address: str, run: Run, *, where: str, home: Path | None) -> None:
    """Start, say so, and block until a signal."""
    from runnel import tracing
    from runnel.engine import Engine
    from runnel.relay.relay import Relay

    end_tracing = tracing.start()
    engine = Engine(
        address,
        master=run.master,
        on_event=logs.log.info,
        home=home,
        data_path=run.data_path,
        verify_every=run.verify_every,
        tasks_above=run.tasks_above,
        workers=run.workers,
        joins_in_spark=run.joins_in_spark,
        spark_package=run.spark_package,
        cdc_mode=run.cdc_mode,
        standby=run.standby,
        # The server of a home trusts its machine anyway.
        everyone_creates=home is not None,
    )
    stopping: list[int] = []
    served: list[HttpServer] = []
    relay = Relay(address)
    _stop_on_signals(engine, stopping)
    try:
        try:
            with reaching(address):
                engine.start()
        except KeyboardInterrupt:
            return
        except Exception:
            # Whatever a half-built engine raises after Ctrl-C is no news to the one who pressed it.
            if stopping:
                return
            raise
        # Spark has put its own handler in place of ours meanwhile, one that raises KeyboardInterrupt.
        _stop_on_signals(engine, stopping)
        if not stopping:
            if engine.loopback_problem is not None:
                warn(engine.loopback_problem)
            if run.http is not None:
                served.append(serving.serve(address, run.http, home, engine.looks))
            relay.start()
            page = served[0].url if served else None
            _say_ready(engine, address, run, where, page, has_lake=home is not None or run.data_path is not None)
            engine.run()
    finally:
        relay.close()
        for each in served:
            each.close()
        engine.close()
        end_tracing()


def _say_ready(engine: Engine, address: str, run: Run, where: str, page: str | None, *, has_lake: bool) -> None:
    state = (
        "Ready" if engine.loopback_problem is None else "Ready for schedules, but not for SQL functions (see above),"
    )
    watch = f"  {page}      # watch it in a browser\n" if page else ""
    done(f"{state} in {run.seconds}.\n\n  {masked(address)}\n{watch}\nNext, in another terminal:")
    done(f"  runnel psql{where}")
    if has_lake:
        done(f"  runnel lake info{where}      # how to open the lake in DuckDB; --client: in PyIceberg, Spark, Trino")


def completed(address: str) -> str:
    """The DSN with the password that libpq found, for tasks on machines that have no PGPASSWORD and no ~/.pgpass."""
    import psycopg

    with reaching(address), psycopg.connect(address, connect_timeout=10) as conn:
        return with_password(address, conn.info.password)


def _stop_on_signals(engine: Engine, received: list[int]) -> None:
    """Let SIGINT and SIGTERM end `engine.run()`; `received` tells which came."""
    import pyarrow as pa

    # Else Arrow hears the signal too and breaks off a read, and the refresh would count as failed.
    pa.enable_signal_handlers(False)

    def stop(number: int, _frame: object) -> None:
        if not received:
            logs.log.info("Stopping ...")
        received.append(number)
        engine.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _refuse_second_engine(server: EmbeddedServer) -> None:
    from runnel.server.home import running_engine

    other = running_engine(server.home)
    if other is not None:
        raise UserError(
            f"The stack in {server.home.path} is already up (pid {other.pid}).",
            hint="Use it with `runnel psql`, or stop it with `runnel down`.",
        )
