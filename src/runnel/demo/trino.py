"""Trino in the demo of engines: the one that TRINO_URL names, over HTTP, with a catalog that is made for the demo.

It must run on this machine, since it reads the lake's files, and let catalogs be created, which is what its setting
`catalog.management=dynamic` is for. Reading from this machine is open, so no token is in what it is told.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runnel.errors import UserError

CATALOG = "runnel_demo"
_SECONDS = 120.0
_HINT = "TRINO_URL names a Trino on this machine, such as http://127.0.0.1:8080, with catalog.management=dynamic."

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Trino:
    """A server that answers."""

    url: str

    def rows(self, sql: str) -> Rows:
        """Run a statement, page by page."""
        answer = self._ask(f"{self.url}/v1/statement", sql.encode())
        found: Rows = []
        while True:
            if "error" in answer:
                raise UserError(f"Trino says: {answer['error'].get('message')}", hint=_HINT)
            found += [tuple(row) for row in answer.get("data", [])]
            if "nextUri" not in answer:
                return found
            answer = self._ask(answer["nextUri"])

    def _ask(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        headers = {"X-Trino-User": "runnel", "X-Trino-Time-Zone": "UTC"}
        try:
            request = urllib.request.Request(url, body, headers)  # noqa: S310  (the user's own address)
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UserError(f"Trino does not answer at {self.url}: {error}", hint=_HINT) from error


@contextlib.contextmanager
def open_trino(url: str | None, served: str) -> Iterator[Trino | None]:
    """Trino with the lake that is served there as catalog `runnel_demo`; None if no address is given."""
    if not url:
        yield None
        return
    trino = Trino(url.rstrip("/"))
    properties = {
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": f"{served}/iceberg",
        "iceberg.rest-catalog.warehouse": "lake",
        "fs.native-local.enabled": "true",
        "local.location": "/",
    }
    given = ", ".join(f"\"{key}\" = '{value}'" for key, value in properties.items())
    trino.rows(f"DROP CATALOG IF EXISTS {CATALOG}")
    trino.rows(f"CREATE CATALOG {CATALOG} USING iceberg WITH ({given})")
    try:
        yield trino
    finally:
        with contextlib.suppress(UserError):
            trino.rows(f"DROP CATALOG IF EXISTS {CATALOG}")
