"""What tasks import, in one archive: workers of a cluster then need nothing but Python.

Spark unpacks it beside each executor (`spark.archives`), where compiled packages can be imported from; a zip on
Python's path could not hold them. It is made of what is installed beside Runnel, so it fits the Python and the kind of
machine that made it. A manifest says which. Tasks import this module, too: it needs the standard library only.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePath

from runnel.errors import UserError

TASK_MODULES = (
    "runnel.spark.errands",
    "runnel.spark.executors",
    "runnel.spark.files",
    "runnel.spark.floats",
    "runnel.spark.meter",
    "runnel.spark.relay",
    "runnel.spark.slices",
    "runnel.spark.ducklake.files",
    "runnel.spark.ducklake.save_task",
    "runnel.spark.ducklake.task",
    "runnel.spark.ducklake.through_postgres",
    "runnel.spark.ducklake.upkeep",
    "runnel.spark.ducklake.write",
)
"""The modules whose functions run in tasks. Spark finds them by name, so they can be imported there."""

DISTRIBUTIONS = (
    "pyarrow",
    "numpy",
    # Slices of tables.
    "adbc-driver-manager",
    "adbc-driver-postgresql",
    "typing-extensions",
    # Rows of lakes whose expressions PostgreSQL evaluates.
    "psycopg",
    "psycopg-binary",
    # Files of lakes: in object stores, encrypted ones, and those that DuckDB joins.
    "obstore",
    "duckdb",
    "duckdb-extension-httpfs",
)
"""What those import that is neither Python's nor Spark's own."""

FOLDER = "environment"
"""Where executors find the archive unpacked, below their working directory."""

ENDINGS = (".tar.gz", ".tgz")
"""By these Spark knows what to unpack."""

_MANIFEST = "runnel-package.json"
# What only compilers, type checkers and the packages' own tests read.
_SKIPPED_FOLDERS = {"__pycache__", "tests", "include", "includes"}
_SKIPPED_ENDINGS = (".pyi", ".pyx", ".pxd", ".pxi", ".pyc", ".a", ".h")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Whom an archive fits."""

    runnel: str
    sources: str
    python: str
    platform: str
    packages: Mapping[str, str]


def python_version() -> str:
    """Compiled packages fit one minor version."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@cache
def sources_digest() -> str:
    """Of Runnel's own code: tasks unpickle what the driver has pickled, so both must have the same."""
    whole = hashlib.sha256()
    for path, name in sorted(_own_files(), key=lambda each: str(each[1])):
        if name.suffix == ".py":
            whole.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def default_name(version: str) -> str:
    """A file name that says whom it fits; `version` is Runnel's."""
    return f"runnel-{version}-py{python_version()}-{sysconfig.get_platform()}.tar.gz"


def write_package(target: Path, version: str) -> Manifest:
    """Make the archive. Whoever reads `target` meanwhile sees the former one, or none."""
    if not target.name.endswith(ENDINGS):
        raise UserError(f"{target} must end in .tar.gz: by that Spark knows that it has to unpack it.")
    packages = {name: _distribution(name).version for name in DISTRIBUTIONS}
    made = Manifest(version, sources_digest(), python_version(), sysconfig.get_platform(), packages)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=5) as archive:
            # First, so that it is read without unpacking the rest.
            _add_bytes(archive, _MANIFEST, json.dumps(asdict(made), indent=2).encode())
            for path, name in _files():
                archive.add(path, str(name), recursive=False, filter=_anonymous)
        partial.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        partial.unlink(missing_ok=True)
    return made


def read_manifest(archive: Path) -> Manifest:
    """What an archive says of itself."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            first = opened.next()
            found = opened.extractfile(first) if first is not None and first.name == _MANIFEST else None
            if found is None:
                raise UserError(f"{archive} was not made by `runnel spark package`.")
            return Manifest(**json.load(found))
    except (OSError, tarfile.TarError, EOFError, ValueError, TypeError) as error:
        raise UserError(
            f"{archive} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint="Make it with: runnel spark package",
        ) from None


def check_package(place: str) -> None:
    """Refuse an archive that tasks of this engine could not use; one that only the cluster opens is checked there."""
    if "://" in place:
        return
    archive = Path(place)
    if not archive.is_file():
        raise UserError(f"There is no file {archive}.", hint=f"Make it with: runnel spark package --output {archive}")
    if not archive.name.endswith(ENDINGS):
        raise UserError(f"{archive} must end in .tar.gz: by that Spark knows that it has to unpack it.")
    made = read_manifest(archive)
    again = f"Make it anew: runnel spark package --output {archive}"
    if made.python != python_version():
        raise UserError(f"{archive} is for Python {made.python}, and this is Python {python_version()}.", hint=again)
    if made.sources != sources_digest():
        raise UserError(f"{archive} holds another Runnel ({made.runnel}) than this one.", hint=again)


def package_settings(place: str) -> dict[str, str]:
    """The configuration that makes executors use an archive."""
    where = place if "://" in place else Path(place).resolve().as_uri()
    return {"spark.archives": f"{where}#{FOLDER}", "spark.executorEnv.PYTHONPATH": f"./{FOLDER}"}


def _files() -> Iterator[tuple[Path, PurePath]]:
    """Every file, with its name in the archive."""
    yield from _own_files()
    for distribution in DISTRIBUTIONS:
        for file in _distribution(distribution).files or ():
            path = Path(str(file.locate()))
            if _is_needed(file) and path.is_file():
                yield path, file


def _own_files() -> Iterator[tuple[Path, PurePath]]:
    """Runnel itself, installed or not."""
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*")):
        name = PurePath("runnel") / path.relative_to(root)
        if path.is_file() and _is_needed(name):
            yield path, name


def _is_needed(name: PurePath) -> bool:
    """Not what lies outside of the packages' folder, such as commands."""
    return not (name.is_absolute() or ".." in name.parts or _SKIPPED_FOLDERS & set(name.parts)) and (
        name.suffix not in _SKIPPED_ENDINGS
    )


def _distribution(name: str) -> metadata.Distribution:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UserError(f"The package {name} is not installed here, and tasks need it.") from None
    if not found.files:
        raise UserError(f"The package {name} does not say which files belong to it.", hint="Install it with pip.")
    return found


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(_anonymous(member), io.BytesIO(data))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whoever unpacks it owns it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member
