"""The demo's way to Trino: which one is asked, and how. A real one is asked by `make test-engines`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from runnel.demo.trino import open_trino
from runnel.errors import UserError


class Fake(HTTPServer):
    """Answers in two pages, as Trino does, and remembers what it was told."""

    told: list[str]
    refuses: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Fake

    def do_POST(self) -> None:
        sql = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.told.append(sql)
        if self.server.refuses and self.server.refuses in sql:
            self._say({"error": {"message": "Access Denied: no catalogs here"}})
        else:
            self._say({"nextUri": f"{self.server.url}/v1/next", "data": [["north", 1]]})

    def do_GET(self) -> None:
        self._say({"data": [["south", 2]]})

    def _say(self, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake(("127.0.0.1", 0), _Answers)
    server.told = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_catalog_is_made_and_dropped_again(fake: Fake) -> None:
    with open_trino(fake.url + "/", "http://127.0.0.1:1234") as trino:
        assert trino is not None
        assert trino.rows("SELECT 1") == [("north", 1), ("south", 2)]
    drop, create, _, last = fake.told
    assert drop == last == "DROP CATALOG IF EXISTS runnel_demo"
    assert create.startswith("CREATE CATALOG runnel_demo USING iceberg WITH (")
    assert "\"iceberg.rest-catalog.uri\" = 'http://127.0.0.1:1234/iceberg'" in create
    assert "token" not in create


def test_without_an_address_none_is_asked() -> None:
    for none in (None, ""):
        with open_trino(none, "http://127.0.0.1:1234") as trino:
            assert trino is None


def test_what_is_wrong_is_said_with_a_way_out(fake: Fake) -> None:
    fake.refuses = "CREATE CATALOG"
    with pytest.raises(UserError, match="no catalogs here") as refused, open_trino(fake.url, "http://x"):
        pass
    assert "catalog.management=dynamic" in str(refused.value.hint)
    with pytest.raises(UserError, match="does not answer"), open_trino("http://127.0.0.1:9", "http://x"):
        pass
