"""Where a lake's files are: a folder, or an object store (s3://, gs://, az://) through obstore.

Paths are the absolute ones of the catalog, or relative to the folder that was opened. A `Store` is only a description,
so it can be sent to Spark's tasks; clients are made where they are needed and kept. Every failure becomes a
`StoreError`, which never names a secret.
"""

from __future__ import annotations

import datetime as dt
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from runnel.errors import TransientError, UserError
from runnel.lake.store import signed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})

MULTIPART_THRESHOLD = 5 * 1024 * 1024
"""Larger files are sent in parts; `multipart_threshold` among a store's options changes it."""

_DEFAULTS = {"max_retries": "4", "retry_timeout": "20", "timeout": "30", "connect_timeout": "5"}
"""Seconds, but for the first: enough for a hiccup, short enough to tell the user of a store that is down."""

_lenient: set[str] = set()
"""Stores whose servers are asked for ranges in another way; see `signed`."""

_UNFINISHED = ".part"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)(/.*)?$", re.IGNORECASE)


_CAUSES = {
    "ConnectionRefused": "the store refused the connection",
    "TimedOut|kind: Timeout": "the store did not answer in time",
    "dns error|failed to lookup": "no host of that name was found",
    "IncompleteMessage|ConnectionReset|BrokenPipe|ChannelClosed": "the connection to the store broke off",
}
"""What obstore's debugging text says of a request that failed on its way, in words."""


class StoreError(TransientError):
    """A file could not be read or written; the store may be back later."""


class MissingFile(StoreError):
    """The store answers, and has no such file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that lies in a store."""

    path: str
    size: int
    modified: dt.datetime


@dataclass(frozen=True, slots=True)
class Store:
    """A folder, or a part of a bucket."""

    folder: str
    """What relative paths are relative to; ends with a slash."""
    root: str
    """`s3://bucket/`, or `/` for files."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        return self.root == "/"

    def put(self, path: str, data: bytes | memoryview | Path | IO[bytes]) -> None:
        """Write a whole file; nobody sees half of it. An open file is read from where it stands."""
        with _failures(self, "write", path):
            if self.is_local:
                _write_local(self._path(path), data)
                return
            import obstore

            if isinstance(data, memoryview):
                data = data.cast("B")  # Arrow's buffers are of signed bytes, which obstore takes for numbers
            threshold = int(self.options.get("multipart_threshold", MULTIPART_THRESHOLD))
            obstore.put(self._client(), self._key(path), data, use_multipart=_size(data) > threshold)

    def get(self, path: str) -> bytes:
        """Read a whole file."""
        with _failures(self, "read", path):
            if self.is_local:
                return self._path(path).read_bytes()
            import obstore

            return bytes(obstore.get(self._client(), self._key(path)).bytes())

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of a file."""
        with _failures(self, "read", path):
            if self.is_local:
                with self._path(path).open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            return _remote_ranges(self, self._client(), self._key(path), [(start, start + length)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several parts of a file, each from its first byte to before its last; near ones in one request."""
        with _failures(self, "read", path):
            if self.is_local:
                return [self.get_range(path, start, end - start) for start, end in ranges]
            return _remote_ranges(self, self._client(), self._key(path), ranges)

    def duplicate(self, path: str, other: str) -> None:
        """Give a file a second name, which stays when the first one goes. The bytes do not come here."""
        with _failures(self, "read", path):
            if self.is_local:
                _link(self._path(path), self._path(other))
                return
            import obstore

            obstore.copy(self._client(), self._key(path), self._key(other))

    def size(self, path: str) -> int:
        """A file's size in bytes."""
        with _failures(self, "look up", path):
            if self.is_local:
                return self._path(path).stat().st_size
            import obstore

            return int(obstore.head(self._client(), self._key(path))["size"])

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        with _failures(self, "look up", path):
            try:
                if self.is_local:
                    return self._path(path).is_file()
                import obstore

                obstore.head(self._client(), self._key(path))
            except FileNotFoundError:
                return False
            return True

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone already are fine."""
        for path in paths:
            with _failures(self, "remove", path):
                try:
                    if self.is_local:
                        self._path(path).unlink()
                        continue
                    import obstore

                    obstore.delete(self._client(), self._key(path))
                except FileNotFoundError:
                    continue

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that may be there, or there in part, because their writer has died."""
        for path in paths:
            self.delete([path])
            if self.is_local:
                with _failures(self, "remove", path):
                    where = self._path(path)
                    for beside in where.parent.glob(f".{glob.escape(where.name)}.*{_UNFINISHED}"):
                        beside.unlink(missing_ok=True)

    def list(self, folder: str) -> Iterator[Stored]:
        """All files below a folder."""
        with _failures(self, "list", folder):
            if self.is_local:
                yield from _list_local(self._path(folder))
                return
            import obstore

            for chunk in obstore.list(self._client(), self._key(folder).rstrip("/") or None):
                for each in chunk:
                    yield Stored(self.root + each["path"], each["size"], each["last_modified"])

    def full(self, path: str) -> str:
        """The absolute form of a path."""
        return path if path.startswith("/") or "://" in path else self.folder + path

    def _path(self, path: str) -> Path:
        return Path(self.full(path).removeprefix("file://"))

    def _key(self, path: str) -> str:
        path = self.full(path)
        if not path.startswith(self.root):
            raise UserError(f"{path} is not in the store {self.root}", hint="Open the store of that path.")
        return path[len(self.root) :]

    def _client(self) -> ObjectStore:
        return _client(self.root, tuple(sorted(self.options.items())))


def open_store(url: str, options: Mapping[str, str] | None = None) -> Store:
    """The store of a path or URL. Without options the environment's credentials are used.

    >>> open_store("s3://bucket/some/where/").root, open_store("/srv/lake/").root, open_store("file:///srv/lake").root
    ('s3://bucket/', '/', '/')
    """
    url = url if url.endswith("/") else f"{url}/"
    found = _URL.match(url)
    if found is None:
        if not url.startswith("/"):
            raise UserError(f"{url} is neither an absolute path nor a URL", hint="Give /path, s3://, gs:// or az://.")
        return Store(url, "/")
    scheme, place = found[1].lower(), found[2]
    if scheme == "file":
        return Store(url, "/")
    if scheme not in SCHEMES:
        raise UserError(f"files cannot be kept in {scheme}://", hint="Use a folder, s3://, gs:// or az://.")
    return Store(url, f"{found[1]}://{place}/", dict(options or {}))


@lru_cache(maxsize=32)
def _client(root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    from obstore.store import from_url

    given = dict(options)
    config = {
        key: value
        for key, value in given.items()
        if key not in _DEFAULTS and key not in {"multipart_threshold", "allow_http", "vend_credentials"}
    }
    limits = {key: given.get(key, default) for key, default in _DEFAULTS.items()}
    endpoint = given.get("endpoint") or given.get("aws_endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
    # Whoever names an endpoint without TLS means it.
    allow_http = given.get("allow_http", str(endpoint.startswith("http://"))).lower() == "true"
    client = {
        "timeout": dt.timedelta(seconds=float(limits["timeout"])),
        "connect_timeout": dt.timedelta(seconds=float(limits["connect_timeout"])),
    }
    if allow_http:
        client["allow_http"] = cast(Any, True)
    retry = {
        "max_retries": int(limits["max_retries"]),
        "retry_timeout": dt.timedelta(seconds=float(limits["retry_timeout"])),
        "backoff": {"init_backoff": dt.timedelta(milliseconds=100), "max_backoff": dt.timedelta(seconds=3), "base": 2},
    }
    return from_url(
        root, config=cast(Any, config) or None, client_options=cast(Any, client), retry_config=cast(Any, retry)
    )


def _remote_ranges(store: Store, client: ObjectStore, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    import obstore

    if store.root not in _lenient:
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        try:
            return [bytes(part) for part in obstore.get_ranges(client, key, starts=starts, ends=ends)]
        except obstore.exceptions.GenericError as error:
            if not signed.is_lenient(error):
                raise
            _lenient.add(store.root)
    timeout = float(store.options.get("timeout", _DEFAULTS["timeout"]))
    return [signed.get_range(cast(Any, client), key, start, end - start, timeout) for start, end in ranges]


def _size(data: bytes | memoryview | Path | IO[bytes]) -> int:
    """How many bytes there are to write."""
    if isinstance(data, Path):
        return data.stat().st_size
    if isinstance(data, bytes | memoryview):
        return len(data)
    here = data.tell()
    size = data.seek(0, os.SEEK_END) - here
    data.seek(here)
    return size


def _write_local(path: Path, data: bytes | memoryview | Path | IO[bytes]) -> None:
    """Write beside the place, make it durable, then move it there: the catalog must never outlive its files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
    try:
        with beside.open("wb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            elif isinstance(data, bytes | memoryview):
                file.write(data)
            else:
                shutil.copyfileobj(data, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _link(path: Path, other: Path) -> None:
    """Whoever wrote the file may not have made it durable."""
    _sync(path)
    try:
        other.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:
        _write_local(other, path)  # a file system without links
    else:
        _sync(other.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _list_local(folder: Path) -> Iterator[Stored]:
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            yield Stored(str(path), found.st_size, dt.datetime.fromtimestamp(found.st_mtime, dt.UTC))


@contextmanager
def _failures(store: Store, verb: str, path: str) -> Iterator[None]:
    from obstore.exceptions import BaseError, UnknownConfigurationKeyError

    try:
        yield
    except FileNotFoundError as error:
        if verb == "write":
            raise StoreError(f"cannot write {path}: there is no such bucket or folder", hint=_hint(store)) from error
        raise MissingFile(f"cannot {verb} {path}: there is no such file", hint=_hint(store)) from error
    except UnknownConfigurationKeyError as error:
        raise UserError(
            f"the store {store.root} has a setting that it does not know: {readable(error)}",
            hint="See obstore's names of settings: access_key_id, secret_access_key, endpoint, region, ...",
        ) from None
    except (BaseError, OSError, ValueError) as error:
        # The chain of causes would repeat what was taken out of the message.
        raise StoreError(
            f"cannot {verb} {path}: {readable(error, store.options.values())}", hint=_hint(store)
        ) from None


def readable(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """One line of an error of the store: its cause in words, without any of the store's settings."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text, _, details = str(error).partition("\n\nDebug source")
    for sign, words in _CAUSES.items():
        if re.search(sign, details):
            return words
    for secret in secrets:
        if len(secret) >= 8:
            text = text.replace(secret, "...")
    text = re.sub(r"(?i)((?:signature|credential|token|secret|key)[a-z_-]*[=:]\s*)[^\s&,;]+", r"\1...", text)
    text = _answer(" ".join(text.split()))
    return text if len(text) <= 400 else f"{text[:400]}..."


def _answer(text: str) -> str:
    """What a store answered, of all that obstore tells about it.

    >>> _answer("... - Server returned non-2xx status code: 507 Insufficient Storage: <Message>full</Message>")
    'the store answered 507 Insufficient Storage: full'
    """
    found = re.search(r"status code: (\d{3}[^:<]*)(?::.*?<Message>([^<]*))?", text)
    if found is None:
        return text
    return f"the store answered {found[1].strip()}" + (f": {found[2]}" if found[2] else "")


def _hint(store: Store) -> str:
    if store.is_local:
        return "Check that the folder is there, is writable and has room."
    return "Check that the store can be reached from here, and its credentials and region."
