"""Start and stop the embedded PostgreSQL of a home directory.

The server listens on 127.0.0.1 and on a socket. Authentication is `trust` on both: whoever can log in to this
machine can log in to this server. That is right for a laptop or a container, and wrong for a machine shared
with people you do not trust: there, use a PostgreSQL of your own with `--dsn`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil

from runnel import __version__
from runnel.errors import RunnelError, UserError
from runnel.server.account import (
    Account,
    Report,
    account_of,
    installed_version,
    open_way,
    own_directory,
    run_program,
    server_account,
)
from runnel.server.home import Home, resolve_home
from runnel.server.settings import server_settings, write_extension

SUPERUSER = "postgres"
DATABASE = "postgres"

StopMode = Literal["fast", "immediate"]

_START_SECONDS = 120.0
_START_ATTEMPTS = 3
_LARGEST_LOG = 32 * 1024 * 1024


class EmbeddedServer:
    """The server of one home directory. Its state is on disk: many objects may speak of one server."""

    def __init__(self, home: Home | str | os.PathLike[str] | None = None, *, on_event: Report | None = None) -> None:
        self.home = home if isinstance(home, Home) else resolve_home(home)
        self._report: Callable[[str], None] = on_event or (lambda _: None)

    @property
    def is_running(self) -> bool:
        return _postmaster(self.home.data) is not None

    @property
    def port(self) -> int:
        """The port this home uses, running or not."""
        try:
            return int(self.home.port_file.read_text())
        except (OSError, ValueError):
            raise UserError(
                f"There is no server in {self.home.path} yet.",
                hint="Start one with: runnel up",
            ) from None

    @property
    def dsn(self) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> str:
        """Start the server unless it runs already, creating it at the first time; the DSN to reach it."""
        self.home.path.mkdir(parents=True, exist_ok=True)
        with _only_one(self.home.lock_file):
            if self.is_running:
                return self.dsn
            known = (self.home.data / "PG_VERSION").exists()
            account = account_of(self.home.data) if known else server_account(self._report)
            self._prepare(account)
            self._launch(account)
        return self.dsn

    def stop(self, mode: StopMode = "fast") -> bool:
        """Stop the server; false when it was not running. `immediate` is a crash on purpose."""
        if not self.is_running:
            return False
        account = account_of(self.home.data)
        try:
            run_program("pg_ctl", ["stop", "-D", str(self.home.data), "-m", mode, "-w", "-t", "60"], account, 90)
        except RunnelError:
            # It may have ended by itself between the question and the order.
            if self.is_running:
                raise
        return True

    def remove(self) -> None:
        """Delete the home directory with everything in it. The server must be stopped."""
        socket_dir = self.home.socket_dir
        if socket_dir.parent != self.home.path:
            shutil.rmtree(socket_dir, ignore_errors=True)
        shutil.rmtree(self.home.path, ignore_errors=True)

    def _prepare(self, account: Account) -> None:
        home = self.home
        open_way(home.path, account, self._report)
        own_directory(home.log.parent, account, 0o755)
        own_directory(home.socket_dir, account, 0o755)
        write_extension(home.extensions, __version__)
        # The server's account reads them, whatever the caller's umask is.
        for directory in (home.extensions, home.extensions / "extension"):
            directory.chmod(0o755)
        if home.log.exists() and home.log.stat().st_size > _LARGEST_LOG:
            home.log.replace(home.log.with_suffix(".log.1"))
        if not (home.data / "PG_VERSION").exists():
            _create_cluster(home.data, account)

    def _launch(self, account: Account) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = _usable_port(self.home.port_file)
            self.home.settings.write_text(server_settings(self.home, port, installed_version()))
            self.home.settings.chmod(0o644)
            self.home.port_file.write_text(f"{port}\n")
            arguments = [
                "start", "-D", str(self.home.data), "-l", str(self.home.log),
                "-w", "-t", f"{_START_SECONDS:.0f}",
                # pg_ctl hands this to a shell.
                "-o", f"-c config_file={shlex.quote(str(self.home.settings))}",
            ]  # fmt: skip
            try:
                run_program("pg_ctl", arguments, account, _START_SECONDS + 30)
            except RunnelError as error:
                # Somebody may have taken the port since we looked: then another one will do.
                if attempt < _START_ATTEMPTS and not _is_free(port):
                    continue
                raise RunnelError(
                    "The embedded PostgreSQL did not start.",
                    hint=f"Its log is {self.home.log}",
                    detail=_tail(self.home.log) or error.detail,
                ) from error
            return


def _create_cluster(data: Path, account: Account) -> None:
    """initdb beside the final place, then rename: a data directory is whole or not there."""
    if data.exists():
        raise UserError(
            f"{data} exists but is not a PostgreSQL data directory.",
            hint="Move it away, or choose another --home.",
        )
    fresh = data.with_name(data.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    own_directory(fresh, account, 0o700)
    run_program(
        "initdb",
        [
            "-D", str(fresh), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8",
            *installed_version().initdb_locale,
        ],
        account,
        timeout=300,
    )  # fmt: skip
    fresh.rename(data)


def _postmaster(data: Path) -> psutil.Process | None:
    """The live postmaster of a data directory: its pid file alone may be a leftover of a crash."""
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
        ours = process.status() != psutil.STATUS_ZOMBIE and str(data) in process.cmdline()
    except (OSError, ValueError, psutil.Error):
        return None
    return process if ours else None


def _usable_port(remembered: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        port = int(remembered.read_text())
        if _is_free(port):
            return port
    # Below the ports that systems hand out to outgoing connections, which could hold ours at a restart.
    for port in random.sample(range(25_000, 32_000), 50):
        if _is_free(port):
            return port
    raise RunnelError("No free TCP port was found on 127.0.0.1.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of the last run that linger in TIME_WAIT do not keep PostgreSQL from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Starting is for one process at a time."""
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _tail(log: Path, lines: int = 5) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
