"""`runnel up`, `down` and `init`: the stack as a whole."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, LiteralString

import typer

from runnel.cli import logs
from runnel.cli.output import done, note, warn
from runnel.cli.settings import effective
from runnel.cli.target import (
    DsnOption,
    HomeOption,
    absolute,
    embedded,
    given_dsn,
    hide_password,
    reaching,
    resolve_dsn,
)
from runnel.dsn import masked, readable, secrets, with_password, without_password
from runnel.errors import RunnelError, UserError
from runnel.spark.master import check_java, check_master, is_cluster

if TYPE_CHECKING:
    import psutil

    from runnel.engine import Engine
    from runnel.http.server import HttpServer
    from runnel.server.embedded import EmbeddedServer

PASSWORD_VARIABLE = "RUNNEL_LOOPBACK_PASSWORD"  # noqa: S105  (the name of one)


class Level(StrEnum):
    """What the log tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """What a line of the log looks like."""

    TEXT = "text"
    JSON = "json"


class Joins(StrEnum):
    """Who joins rows that all are in PostgreSQL."""

    POSTGRES = "postgres"
    SPARK = "spark"


MasterOption = Annotated[
    str | None,
    typer.Option(help="Spark master: local[*] (the default), local[4], spark://host:7077 ...", metavar="MASTER"),
]
LevelOption = Annotated[Level | None, typer.Option(help="How much the log tells (info).", show_default=False)]
FormatOption = Annotated[
    Format | None, typer.Option(help="Lines for people (text) or for programs (json).", show_default=False)
]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the log here as well as to standard error. Above 16 MB it is set aside; five older ones are kept.",
        metavar="FILE",
        dir_okay=False,
    ),
]

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

TasksOption = Annotated[
    str | None,
    typer.Option(
        help="Work on more rows than this is done by Spark's tasks, from the source to the sink; 100000 unless given.",
        metavar="ROWS",
    ),
]

JoinsOption = Annotated[
    Joins | None,
    typer.Option(
        help="Who joins many rows that all are in PostgreSQL: postgres joins them where they are (the default), "
        "spark has them sent to its tasks. Rows of lakes are joined by Spark.",
        show_default=False,
    ),
]

PackageOption = Annotated[
    str | None,
    typer.Option(
        help="What executors of a cluster need, sent to them when Spark starts: the archive that "
        "`runnel spark package` makes.",
        metavar="FILE",
    ),
]

HttpOption = Annotated[
    str | None,
    typer.Option(
        help="Where to serve HTTP: 127.0.0.1 unless given, with the port that was used last.", metavar="HOST:PORT"
    ),
]
NoHttpOption = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
CertOption = Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate (PEM).", metavar="FILE")]
KeyOption = Annotated[Path | None, typer.Option(help="The key of --http-cert (PEM).", metavar="FILE")]

LoopbackOption = Annotated[
    str | None,
    typer.Option(
        help="How the server reaches itself, when its socket will not do: 'host=... port=... user=...'. "
        "It is tried before it is stored.",
        metavar="CONNINFO",
    ),
]

_SECONDS_TO_STOP = 60
OFF = "off"

# The row says who came last; the function, whether that one lives.
_ENGINE: LiteralString = "SELECT host, os_pid FROM pgtrickle.pgt_engine WHERE pgtrickle._engine_alive()"


def up(
    home: HomeOption = None,
    dsn: DsnOption = None,
    master: MasterOption = None,
    data_path: DataPathOption = None,
    verify_every: VerifyOption = None,
    tasks_above: TasksOption = None,
    joins: JoinsOption = None,
    spark_package: PackageOption = None,
    http: HttpOption = None,
    no_http: NoHttpOption = False,
    http_cert: CertOption = None,
    http_key: KeyOption = None,
    log_level: LevelOption = None,
    log_format: FormatOption = None,
    log_file: LogFileOption = None,
) -> None:
    """Start the stack and keep stream tables fresh until Ctrl-C.

    Without options this is an embedded PostgreSQL, its data in ~/.runnel.
    With --dsn the engine works on a server of your own.
    What the options say may also stand in runnel.toml: see `runnel config`.
    """
    began = time.monotonic()
    named = given_dsn(home, dsn)
    values = effective(
        home=home,
        dsn=dsn,
        master=master,
        data_path=data_path,
        verify_every=verify_every,
        tasks_above=tasks_above,
        joins=joins.value if joins else None,
        spark_package=spark_package,
        http=OFF if no_http else http,
        http_cert=http_cert,
        http_key=http_key,
        log_level=log_level.value if log_level else None,
        log_format=log_format.value if log_format else None,
        log_file=log_file,
    )
    logs.configure(
        str(values["log_level"].text),
        str(values["log_format"].text),
        values["log_file"].text,
        secrets(named) if named else (),
    )
    run = _Run(
        str(values["master"].text),
        began,
        absolute(values["data_path"].text),
        _seconds(values["verify_every"].text),
        _rows(values["tasks_above"].text),
        values["joins"].text == "spark",
        _archive(values["spark_package"].text),
        _http(values["http"].text, values["http_cert"].text, values["http_key"].text),
    )
    try:
        # Before the server is started: a slip of the pen needs no server.
        if run.spark_package is not None and is_cluster(run.master):
            from runnel.spark.package import check_package

            check_package(run.spark_package)
        check_master(run.master)
        check_java()
        if named is None:
            _run_embedded(home, run)
        else:
            shown = shlex.quote(without_password(named))
            _run_engine(_completed(named), run, where=f" --dsn {shown}" if dsn else "", home=None)
    except RunnelError as error:
        logs.record_failure(error)
        raise


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


def init(
    home: HomeOption = None,
    dsn: DsnOption = None,
    loopback: LoopbackOption = None,
    loopback_password: Annotated[
        bool,
        typer.Option("--loopback-password", help=f"Ask for the password of --loopback (or set {PASSWORD_VARIABLE})."),
    ] = False,
    extension_files: Annotated[
        Path | None,
        typer.Option(
            help="Only write the two files that CREATE EXTENSION pg_trickle needs to DIR/extension. DIR is what "
            "`pg_config --sharedir` says on the server, or a directory in its extension_control_path.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Install or upgrade Runnel's schemas in a database, without starting an engine.

    It also tries the loopback, the connection of the server to itself
    by which SQL functions reach the engine, and says what to do if it fails.
    """
    if extension_files is not None:
        _write_extension(extension_files)
        return
    import psycopg

    from runnel.catalog import loopback as way
    from runnel.catalog.migrate import migrate

    target = resolve_dsn(home, dsn)
    chosen = _loopback(loopback, loopback_password)
    with reaching(target):
        migrate(target)
    with reaching(target), psycopg.connect(target, autocommit=True) as conn:
        if chosen is not None:
            way.store(conn, target, chosen)
            done("The loopback works and is stored.")
        problem = way.find_problem(conn, target)
    done("Runnel's schemas are installed and up to date.")
    if problem is not None:
        warn(problem)


@dataclass(frozen=True, slots=True)
class _Http:
    """How HTTP was asked for; not looked at before it is served, so that other commands start fast."""

    address: str
    certificate: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class _Run:
    """What `up` was asked for, wherever the server is."""

    master: str
    began: float
    data_path: str | None
    verify_every: float | None
    tasks_above: int
    joins_in_spark: bool
    spark_package: str | None
    http: _Http | None
    """Where to serve HTTP; None for not at all."""

    @property
    def seconds(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"


def _run_embedded(home: Path | None, run: _Run) -> None:
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
        _run_engine(address, run, where=f" --home {home}" if home else "", home=server.home.path)
        stop = True
    finally:
        clear_engine_pid(server.home)
        if stop:
            server.stop()


def _run_engine(address: str, run: _Run, *, where: str, home: Path | None) -> None:
    """Start, say so, and block until a signal."""
    from runnel.engine import Engine

    engine = Engine(
        address,
        master=run.master,
        on_event=logs.log.info,
        home=home,
        data_path=run.data_path,
        verify_every=run.verify_every,
        tasks_above=run.tasks_above,
        joins_in_spark=run.joins_in_spark,
        spark_package=run.spark_package,
        # The server of a home trusts its machine anyway.
        everyone_creates=home is not None,
    )
    stopping: list[int] = []
    served: list[HttpServer] = []
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
                served.append(_serve(address, run.http, home))
            _say_ready(engine, address, run, where, has_lake=home is not None or run.data_path is not None)
            engine.run()
    finally:
        for each in served:
            each.close()
        engine.close()


def _serve(address: str, http: _Http, home: Path | None) -> HttpServer:
    """Serve HTTP beside the engine, in a thread of its own."""
    from runnel.http.place import HttpPlace, Listen
    from runnel.http.server import HttpServer, Tls

    tls = None
    if http.certificate is not None and http.key is not None:
        tls = Tls(Path(http.certificate).expanduser(), Path(http.key).expanduser())
    server = HttpServer(
        address,
        HttpPlace.of_database(address) if home is None else HttpPlace.of_home(home),
        Listen.parse(http.address),
        tls=tls,
        # The server of a home trusts its machine anyway.
        loopback_reads=home is not None,
    )
    server.start()
    logs.log.info("HTTP on %s", server.url)
    return server


def _http(address: str | None, certificate: str | None, key: str | None) -> _Http | None:
    if address is None or address == OFF:
        return None
    if (certificate is None) != (key is None):
        raise UserError("--http-cert and --http-key belong together.", hint="Give both, as PEM files.")
    from runnel.http.place import Listen

    Listen.parse(address)
    return _Http(address, certificate, key)


def _rows(text: str | None) -> int:
    """A number of rows."""
    plain = (text or "").replace("_", "").replace(",", "")
    if not plain.isdecimal():
        raise UserError(f"--tasks-above {text} is not a number of rows.", hint="Use one such as 100000.")
    return int(plain)


def _archive(text: str | None) -> str | None:
    """A file of this machine, or an address that the cluster opens itself."""
    return text if text is None or "://" in text else str(Path(text).expanduser().resolve())


def _seconds(period: str | None) -> float | None:
    """A period such as 30s or 1h30m."""
    from runnel.schedule.spec import parse_schedule

    if period is None:
        return None
    schedule = parse_schedule(period)
    if schedule.kind != "duration":
        raise UserError(f"--verify-every {period} is not a period.", hint="Use one such as 10m or 1h30m.")
    return schedule.seconds


def _say_ready(engine: Engine, address: str, run: _Run, where: str, *, has_lake: bool) -> None:
    state = (
        "Ready" if engine.loopback_problem is None else "Ready for schedules, but not for SQL functions (see above),"
    )
    done(f"{state} in {run.seconds}.\n\n  {masked(address)}\n\nNext, in another terminal:")
    done(f"  runnel psql{where}")
    if has_lake:
        done(f"  runnel lake info{where}      # how to open the lake in DuckDB; --client: in PyIceberg, Spark, Trino")


def _completed(address: str) -> str:
    """The DSN with the password that libpq found, for tasks on machines that have no PGPASSWORD and no ~/.pgpass."""
    import psycopg

    with reaching(address), psycopg.connect(address, connect_timeout=10) as conn:
        return with_password(address, conn.info.password)


def _loopback(given: str | None, ask: bool) -> str | None:
    """The loopback with its password, which is better not an argument."""
    if given is None:
        if ask:
            raise UserError("--loopback-password needs --loopback.", hint="--loopback 'host=... port=... user=...'")
        return None
    hide_password("--loopback", given)
    readable(given)
    password = typer.prompt("Password", hide_input=True) if ask and sys.stdin.isatty() else None
    if ask and password is None:
        password = os.environ.get(PASSWORD_VARIABLE) or sys.stdin.readline().strip()
    return with_password(given, password or os.environ.get(PASSWORD_VARIABLE))


def _write_extension(directory: Path) -> None:
    from runnel import __version__
    from runnel.server.settings import write_extension

    try:
        written = write_extension(directory, __version__)
    except OSError as error:
        raise UserError(
            f"The files cannot be written to {directory}: {error.strerror}.",
            hint="Run it as a user who may, on the machine of the server: "
            "sudo runnel init --extension-files $(pg_config --sharedir)",
        ) from None
    for path in written:
        done(str(path))
    done("Now every database with Runnel's schemas can run: CREATE EXTENSION pg_trickle;")


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
