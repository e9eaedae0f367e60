"""`runnel up`, `down` and `init`: the stack as a whole."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, LiteralString

import typer

from runnel.cli import detached, logs, serving, up_options
from runnel.cli.commands import looking, service
from runnel.cli.output import done, note, warn
from runnel.cli.running import Run, completed, run_embedded, run_engine
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
from runnel.cli.up_options import (
    CdcModeOption,
    CertOption,
    DataPathOption,
    DetachOption,
    FormatOption,
    HttpOption,
    JoinsOption,
    KeyOption,
    LevelOption,
    LogFileOption,
    LoopbackOption,
    MasterOption,
    NoHttpOption,
    PackageOption,
    StandbyOption,
    TasksOption,
    VerifyOption,
    WorkersOption,
)
from runnel.dsn import readable, secrets, with_password, without_password
from runnel.errors import RunnelError, UserError
from runnel.spark.master import check_java, check_master, is_cluster

if TYPE_CHECKING:
    import psutil


PASSWORD_VARIABLE = "RUNNEL_LOOPBACK_PASSWORD"  # noqa: S105  (the name of one)


_SECONDS_TO_STOP = 60

# The row says who came last; the function, whether that one lives.
_ENGINE: LiteralString = "SELECT host, os_pid FROM pgtrickle.pgt_engine WHERE pgtrickle._engine_alive()"


def up(
    home: HomeOption = None,
    dsn: DsnOption = None,
    master: MasterOption = None,
    data_path: DataPathOption = None,
    verify_every: VerifyOption = None,
    tasks_above: TasksOption = None,
    workers: WorkersOption = None,
    joins: JoinsOption = None,
    spark_package: PackageOption = None,
    cdc_mode: CdcModeOption = None,
    http: HttpOption = None,
    no_http: NoHttpOption = False,
    http_cert: CertOption = None,
    http_key: KeyOption = None,
    standby: StandbyOption = False,
    detach: DetachOption = False,
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
    if standby and named is None:
        raise UserError(
            "--standby needs --dsn: the server of a home directory has one engine.",
            hint="Two engines share a server of your own.",
        )
    values = effective(
        home=home,
        dsn=dsn,
        master=master,
        data_path=data_path,
        verify_every=verify_every,
        tasks_above=tasks_above,
        workers=workers,
        joins=joins.value if joins else None,
        spark_package=spark_package,
        cdc_mode=cdc_mode.value if cdc_mode else None,
        http=serving.OFF if no_http else http,
        http_cert=http_cert,
        http_key=http_key,
        log_level=log_level.value if log_level else None,
        log_format=log_format.value if log_format else None,
        log_file=log_file,
    )
    file = service.log_file(home, dsn, values["log_file"].text)
    if detach:
        _detach(file, f" --home {home}" if home else "")
        return

    def log_to(place: str | None) -> None:
        logs.configure(
            str(values["log_level"].text),
            str(values["log_format"].text),
            place,
            secrets(named) if named else (),
            terminal=not detached.is_detached(),
        )

    log_to(values["log_file"].text)
    run = Run(
        str(values["master"].text),
        began,
        absolute(values["data_path"].text),
        up_options.seconds(values["verify_every"].text),
        up_options.rows(values["tasks_above"].text),
        up_options.workers(values["workers"].text),
        values["joins"].text == "spark",
        up_options.archive(values["spark_package"].text),
        str(values["cdc_mode"].text),
        serving.wish(values["http"].text, values["http_cert"].text, values["http_key"].text),
        standby,
    )
    try:
        # Before the server is started: a slip of the pen needs no server.
        if run.spark_package is not None and is_cluster(run.master):
            from runnel.spark.package import check_package

            check_package(run.spark_package)
        check_master(run.master)
        check_java()
        if named is None:
            log_to(str(file))
            run_embedded(home, run)
        else:
            shown = shlex.quote(without_password(named))
            run_engine(completed(named), run, where=f" --dsn {shown}" if dsn else "", home=None)
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
            help="Only write the files that CREATE EXTENSION pg_trickle and pg_tide need to DIR/extension. DIR is what "
            "`pg_config --sharedir` says on the server, or a directory in its extension_control_path.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only look at the server: print what works with this role, and what an administrator has to run "
            "for the rest. The exit code is 1 if something is missing that Runnel cannot do without.",
        ),
    ] = False,
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql",
            help="Only print what would be run, as a script for psql: for the server of --dsn what it lacks, "
            "otherwise all of it for the newest PostgreSQL.",
        ),
    ] = False,
) -> None:
    """Install or upgrade Runnel's schemas in a database, without starting an engine.

    It also tries the loopback, the connection of the server to itself
    by which SQL functions reach the engine, and says what to do if it fails.
    """
    if extension_files is not None:
        _write_extension(extension_files)
        return
    if check or print_sql:
        looking.check(resolve_dsn(home, dsn)) if check else looking.print_script(given_dsn(home, dsn))
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


def _detach(log_file: Path | None, where: str) -> None:
    if log_file is None:
        raise UserError("--detach with a server of your own needs a place for the log.", hint="Add --log-file FILE.")
    typer.echo(detached.start(sys.argv[1:], log_file.resolve()), nl=False)
    done(f"\nIt runs in the background: `runnel logs{where} -f` shows what it says, `runnel down{where}` stops it.")


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
