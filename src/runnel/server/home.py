"""The home directory of a stack: what lies where, and who is running it.

HOME/pg                the data directory
HOME/postgresql.conf   its settings, outside the data directory so that only the caller can write them
HOME/run               the socket (a short directory under /tmp when HOME's path is too long for one)
HOME/log               postgres.log
HOME/ext               the control file behind CREATE EXTENSION pg_trickle
HOME/lake              the files of the default lake, unless --data-path names another place
HOME/secret.key        the key of stored credentials, unless RUNNEL_ENCRYPTION_KEY is set
HOME/port              the TCP port chosen at the first start
HOME/engine.pid        the `runnel up` that owns this home, while it lives
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from runnel.errors import UserError

# A socket's path must fit in sun_path (108 bytes on Linux, 104 on macOS), file name and NUL included;
# ".s.PGSQL.65535" takes 15.
_LONGEST_SOCKET_DIR = 88


@dataclass(frozen=True)
class Home:
    """Paths below one home directory. Creates nothing."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "pg"

    @property
    def log(self) -> Path:
        return self.path / "log" / "postgres.log"

    @property
    def extensions(self) -> Path:
        return self.path / "ext"

    @property
    def settings(self) -> Path:
        return self.path / "postgresql.conf"

    @property
    def port_file(self) -> Path:
        return self.path / "port"

    @property
    def engine_pid_file(self) -> Path:
        return self.path / "engine.pid"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def socket_dir(self) -> Path:
        """HOME/run, or a directory named after HOME where that is too long for a socket."""
        preferred = self.path / "run"
        if len(os.fsencode(preferred)) <= _LONGEST_SOCKET_DIR:
            return preferred
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"runnel-{digest}"


def resolve_home(path: str | os.PathLike[str] | None = None) -> Home:
    """The home that was named, else $RUNNEL_HOME, else .runnel in the user's home directory."""
    chosen = path or os.environ.get("RUNNEL_HOME") or Path.home() / ".runnel"
    resolved = Path(chosen).expanduser().resolve()
    if ":" in str(resolved) or "\n" in str(resolved):
        raise UserError(
            f"The home directory {str(resolved)!r} cannot be used: it has a colon or a line break.",
            hint="PostgreSQL separates extension directories by colons; choose another --home.",
        )
    return Home(resolved)


def write_engine_pid(home: Home) -> None:
    """Say that this process runs the stack. The start time guards against a reused process id."""
    me = psutil.Process()
    home.engine_pid_file.write_text(json.dumps({"pid": me.pid, "created": me.create_time()}))


def clear_engine_pid(home: Home) -> None:
    """Take back what `write_engine_pid` said, if it is still ours to take."""
    engine = running_engine(home)
    if engine is None or engine.pid == os.getpid():
        home.engine_pid_file.unlink(missing_ok=True)


def running_engine(home: Home) -> psutil.Process | None:
    """The live process that HOME/engine.pid names, if any."""
    try:
        said = json.loads(home.engine_pid_file.read_text())
        process = psutil.Process(int(said["pid"]))
        same = abs(process.create_time() - float(said["created"])) < 1.0
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if same and process.status() != psutil.STATUS_ZOMBIE else None
