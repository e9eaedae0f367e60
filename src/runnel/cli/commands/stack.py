"""`runnel up`, `down` and `init`: the stack as a whole."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, LiteralString

import typer

from runnel.cli.output import done, note
from runnel.cli.target import DsnOption, HomeOption, absolute, embedded, given_dsn, resolve_dsn
from runnel.errors import RunnelError, UserError

if TYPE_CHECKING:
    import psutil

    from runnel.engine import Engine
    from runnel.server.embedded import EmbeddedServer

MasterOption = Annotated[str, typer.Option(help="Spark master: local[*], local[4], spark://host:7077 ...")]

DataPathOption = Annotated[
    str | None,
    typer.Option(
        help="Where the files of the default lake are kept: a folder, s3://..., gs://... or az://... "
        "(HOME/lake for the embedded server; none with --dsn). Chosen at the first start.",
        metavar="PLACE",
    ),
]

VerifyOption = Annotated[
    str | None,
    typer.Option(
        help="How often a stream table chosen by chance is compared with its query, say 1h; never unless given.",
        metavar="PERIOD",
    ),
]

LoopbackOption = Annotated[
    str | None,
    typer.Option(
        help="How the server reaches itself, when its socket will not do: 'host=... user=... password=...'.",
        metavar="CONNINFO",
    ),
]

_SECONDS_TO_STOP = 60

# The row says who came last; the function, whether that one lives.
_ENGINE: LiteralString = "SELECT host, os_pid FROM pgtrickle.pgt_engine WHERE pgtrickle._engine_alive()"


def up(
    home: HomeOption = None,
    dsn: DsnOption = None,
    master: MasterOption = "local[*]",
    data_path: DataPathOption = None,
    verify_every: VerifyOption = None,
) -> None:
    """Start the stack and keep stream tables fresh until Ctrl-C."""
    began = time.monotonic()
    period = _seconds(verify_every)
    named = given_dsn(home, dsn)
    place = absolute(data_path)
    if named is not None:
        _run_engine(
            named, master, began, where=f' --dsn "{named}"' if dsn else "", home=None, data_path=place, period=period
        )
        return
    server = embedded(home)
    _refuse_second_engine(server)
    before = server.is_running
    note(f"PostgreSQL 18 in {server.home.path} ...")
    address = server.start()
    note(f"PostgreSQL {'was already running' if before else 'started'} ({time.monotonic() - began:.1f} s)")
    where = f" --home {home}" if home else ""
    _run_in_home(
        server, address, master, began, stop_on_failure=not before, where=where, data_path=place, period=period
    )


def down(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Stop a stack that was left running: its engine, then the embedded server."""
    named = given_dsn(home, dsn)
    if named is not None:
        _stop_engine_of(named)
        return
    from runnel.server.home import clear_engine_pid, running_engine

    server = embedded(home)
    engine = running_engine(server.home)
    if engine is not None:
        _terminate(engine)
        done(f"Engine stopped (pid {engine.pid}), and its PostgreSQL with it.")
    clear_engine_pid(server.home)
    # An engine that ends well stops its server too; one that was killed leaves it behind.
    if server.stop():
        done("PostgreSQL stopped.")
    elif engine is None:
        done(f"No stack is running in {server.home.path}.")


def init(home: HomeOption = None, dsn: DsnOption = None, loopback: LoopbackOption = None) -> None:
    """Install or upgrade Runnel's schemas in a database, without starting an engine."""
    from runnel.catalog.migrate import migrate

    migrate(resolve_dsn(home, dsn), loopback=loopback)
    done("Runnel's schemas are installed and up to date.")


def _run_in_home(
    server: EmbeddedServer,
    address: str,
    master: str,
    began: float,
    *,
    stop_on_failure: bool,
    where: str,
    data_path: str | None,
    period: float | None,
) -> None:
    """Run the engine and stop its server at the end; not a server that somebody else's engine uses."""
    from runnel.server.home import clear_engine_pid, write_engine_pid

    write_engine_pid(server.home)
    stop = stop_on_failure
    try:
        _run_engine(address, master, began, where=where, home=server.home.path, data_path=data_path, period=period)
        stop = True
    finally:
        clear_engine_pid(server.home)
        if stop:
            server.stop()


def _run_engine(
    address: str,
    master: str,
    began: float,
    *,
    where: str,
    home: Path | None,
    data_path: str | None,
    period: float | None,
) -> None:
    """Start, say so, and block until a signal."""
    from runnel.engine import Engine

    engine = Engine(address, master=master, on_event=note, home=home, data_path=data_path, verify_every=period)
    stopping: list[int] = []
    _stop_on_signals(engine, stopping)
    try:
        try:
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
            done(f"Ready in {time.monotonic() - began:.1f} s.\n\n  {address}\n\nNext, in another terminal:")
            done(f"  runnel psql{where}")
            if home is not None or data_path is not None:
                done(f"  runnel lake info{where}      # how to open the lake in DuckDB")
            engine.run()
    finally:
        engine.close()


def _seconds(period: str | None) -> float | None:
    """A period such as 30s or 1h30m."""
    from runnel.schedule.spec import parse_schedule

    if period is None:
        return None
    schedule = parse_schedule(period)
    if schedule.kind != "duration":
        raise UserError(f"--verify-every {period} is not a period.", hint="Use one such as 10m or 1h30m.")
    return schedule.seconds


def _stop_on_signals(engine: Engine, received: list[int]) -> None:
    """Let SIGINT and SIGTERM end `engine.run()`; `received` tells which came."""
    import pyarrow as pa

    # Else Arrow hears the signal too and breaks off a read, and the refresh would count as failed.
    pa.enable_signal_handlers(False)

    def stop(number: int, _frame: object) -> None:
        if not received:
            note("Stopping ...")
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


def _stop_engine_of(address: str) -> None:
    """Stop the `runnel up` that works on somebody's own server, when it runs on this machine."""
    import socket

    import psutil

    from runnel.client import connect

    with connect(address) as client:
        rows = client.query(_ENGINE)
    if not rows:
        done("No engine works on this database.")
        return
    host, pid = rows[0]["host"], rows[0]["os_pid"]
    try:
        process = psutil.Process(pid) if host == socket.gethostname() else None
        command = process.cmdline() if process else []
        ours = "up" in command and any("runnel" in Path(each).name for each in command)
    except psutil.Error:
        process, ours = None, False
    if process is None or not ours:
        raise UserError(
            f"The engine runs as process {pid} on {host}, not as a `runnel up` of this machine.",
            hint="Stop it where it was started.",
        )
    _terminate(process)
    done(f"Engine stopped (pid {pid}).")


def _terminate(process: psutil.Process) -> None:
    """Ask, wait, then insist: whatever the engine had not committed is simply done again next time."""
    import psutil

    try:
        process.terminate()
        process.wait(_SECONDS_TO_STOP)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        note(f"The engine did not stop within {_SECONDS_TO_STOP} s: killing it.")
        process.kill()
    except psutil.AccessDenied:
        raise RunnelError(
            f"Process {process.pid} belongs to another user.", hint="Run `runnel down` as that user."
        ) from None
