"""An HTTP server in a process of its own, which stops at a point of a commit and waits there to be killed.

python -m tests.iceberg.server_process DSN FOLDER POINT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.iceberg import write
from runnel.iceberg.commit import Plan

POINTS: dict[str, tuple[Any, str]] = {
    "taken": (Plan, "take_files"),
    "locked": (write, "finish"),
    "committed": (write.Writer, "commit"),
}
"""Files are written, the catalog is not; the catalog is, the transaction is not; all is, and nobody has been told."""


def stop_at(owner: Any, name: str) -> None:
    """Say that the point is reached, and go no further."""
    act: Callable[..., Any] = getattr(owner, name)

    def stopping(*given: Any, **named: Any) -> Any:
        found = act(*given, **named)
        print("reached", flush=True)
        time.sleep(600)
        return found

    setattr(owner, name, stopping)


def main() -> None:
    dsn, folder, point = sys.argv[1:]
    if point in POINTS:
        stop_at(*POINTS[point])
    server = HttpServer(dsn, HttpPlace(Path(folder)), None, loopback_reads=True)
    server.start()
    print(f"listening on {server.url}", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
