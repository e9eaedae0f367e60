"""The page in a real browser, on a live stack: it loads, follows what happens, and its buttons do what they say.

With RUNNEL_PICTURES=1 the pictures of the README are made anew.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests
from playwright.sync_api import Browser, Page, expect, sync_playwright

import runnel
from runnel.catalog.tokens import create_token
from runnel.http.page.overview import attention
from runnel.http.server import HttpServer
from runnel.lake.watch import Limits
from tests.conftest import running_engine
from tests.e2e.helpers import eventually
from tests.http.test_metrics import TABLE
from tests.iceberg.clients import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHROMIUM = shutil.which("chromium")
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
ORDERS = """
CREATE TABLE customers (id int PRIMARY KEY, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2));
INSERT INTO customers SELECT i, (ARRAY['de', 'fr', 'pt'])[1 + i % 3] FROM generate_series(1, 40) i;
INSERT INTO orders SELECT i, i % 40 + 1, i FROM generate_series(1, 400) i;
"""
BY_COUNTRY = (
    "SELECT c.country, count(*) AS orders, sum(o.total) AS usd\nFROM orders o JOIN customers c ON c.id = o.customer\n"
    "GROUP BY c.country"
)

# More to see, for the pictures alone.
MORE = """
CREATE TABLE products (id int PRIMARY KEY, name text, category text);
CREATE TABLE items ("order" int, product int, pieces int);
INSERT INTO products SELECT i, 'p' || i, (ARRAY['books', 'coffee', 'games', 'tools'])[1 + i % 4]
    FROM generate_series(1, 60) i;
INSERT INTO items SELECT i, i % 60 + 1, i % 5 + 1 FROM generate_series(1, 400) i;
"""
MORE_TABLES = {
    "sales_by_category": (
        "SELECT p.category, sum(i.pieces) AS pieces FROM items i JOIN products p ON p.id = i.product GROUP BY 1",
        "ducklake",
    ),
    "best_products": ("SELECT product, sum(pieces) AS n FROM items GROUP BY product ORDER BY n DESC LIMIT 10", None),
    "baskets": (
        'SELECT o.id, o.total, count(*) AS lines FROM orders o JOIN items i ON i."order" = o.id GROUP BY o.id, o.total',
        None,
    ),
    "large_baskets": ("SELECT id, total, lines FROM baskets WHERE lines > 1", None),
}
PICTURED = bool(os.environ.get("RUNNEL_PICTURES"))
EDGES = 12 if PICTURED else 5

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is needed")


class Watched:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.set_default_timeout(30_000)
        expect.set_options(timeout=30_000)

    def picture(self, name: str) -> None:
        if PICTURED:
            PICTURES.mkdir(exist_ok=True)
            self.page.wait_for_timeout(1500)
            self.page.screenshot(path=PICTURES / f"{name}.png")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, **options)
    try:
        watched = Watched(context.new_page())
        watched.page.goto(url)
        yield watched
    finally:
        context.close()


@pytest.fixture
def stack(dsn: str, db: psycopg.Connection, spark: SparkSession, tmp_path: Path) -> Iterator[HttpServer]:
    """An engine with three stream tables, one of them published, behind a server whose machine may read."""
    with running_engine(dsn, spark) as engine, serving(dsn, tmp_path / "http", looks=engine.looks) as server:
        (tmp_path / "lake").mkdir(mode=0o777)
        for statement in ORDERS.split(";"):
            if statement.strip():
                db.execute(statement.encode())
        db.execute(
            "SELECT pgtrickle.attach_ducklake('lake', 'lake_catalog', data_path => %s, create_if_missing => true, "
            "make_default => true)",
            (f"{tmp_path}/lake/",),
        )
        make = "SELECT pgtrickle.create_stream_table(%s, %s, '1s', sink => %s)"
        db.execute(make, ("by_country", BY_COUNTRY, "ducklake"))
        db.execute(make, ("large_orders", "SELECT id, customer, total FROM orders WHERE total > 100", None))
        db.execute(make, ("best", "SELECT country, usd FROM by_country ORDER BY usd DESC LIMIT 2", None))
        with trade(dsn) if PICTURED else nullcontext():
            yield server


@contextmanager
def trade(dsn: str) -> Iterator[None]:
    """A shop that is open, for the pictures."""
    over = threading.Event()

    def sell() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for number in itertools.count(100_000):
                if over.wait(0.04 + 0.04 * (number % 7)):
                    return
                with conn.transaction():
                    conn.execute("INSERT INTO orders VALUES (%s, %s, %s)", (number, number % 40 + 1, number % 90))
                    for line in range(number % 3 + 1):
                        product = (number * 7 + line) % 60 + 1
                        conn.execute("INSERT INTO items VALUES (%s, %s, %s)", (number, product, number % 4 + 1))
                    conn.execute("DELETE FROM orders WHERE id = %s", (number - 50,))

    with psycopg.connect(dsn, autocommit=True) as db:
        for statement in MORE.split(";"):
            if statement.strip():
                db.execute(statement.encode())
        for name, (query, sink) in MORE_TABLES.items():
            db.execute("SELECT pgtrickle.create_stream_table(%s, %s, '1s', sink => %s)", (name, query, sink))
    seller = threading.Thread(target=sell)
    seller.start()
    time.sleep(25)
    try:
        yield
    finally:
        over.set()
        seller.join()


def token_of(tmp_path: Path) -> str:
    return (tmp_path / "http" / "token").read_text().strip()


def pgt_id(db: psycopg.Connection, name: str) -> int:
    row = db.execute("SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", (name,)).fetchone()
    assert row is not None
    return int(row[0])


def status_of(db: psycopg.Connection, name: str) -> str:
    row = db.execute("SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", (name,)).fetchone()
    return "gone" if row is None else str(row[0])


@needs_browser
@pytest.mark.slow
def test_the_page_shows_and_does(db: psycopg.Connection, stack: HttpServer, browser: Browser, tmp_path: Path) -> None:
    with opened(browser, stack.url, color_scheme="light") as seen:
        page = seen.page
        # Overview: all of it, and a commit shows without reloading.
        expect(page.get_by_role("row", name="public.by_country")).to_contain_text("ACTIVE")
        expect(page.get_by_role("list", name="What wants attention")).to_contain_text(
            "Everything is well", timeout=60_000
        )
        expect(page.get_by_role("region", name="Engine")).to_contain_text("running")
        page.evaluate("window.stayed = true")
        for i in range(12):
            db.execute("INSERT INTO orders VALUES (%s, %s, 500)", (1000 + i, i % 40 + 1))
            time.sleep(0.1)
        changed = "SELECT rows_inserted FROM pgtrickle.get_refresh_history('large_orders', 1)"
        last = eventually(lambda: (db.execute(changed).fetchone() or (0,))[0], 30)
        # Where the shop is open, the next refresh comes at once and has nothing for this table.
        expect(page.get_by_role("row", name="public.large_orders")).to_contain_text("+" if PICTURED else f"+{last}")
        expect(page.get_by_role("region", name="Spark")).to_contain_text("Jobs running")
        assert page.evaluate("window.stayed") is True
        seen.picture("overview")

        # Graph, by keyboard.
        page.get_by_role("link", name="Graph").click()
        node = page.get_by_role("link", name="public.by_country, stream table")
        expect(node).to_be_visible()
        expect(page.locator(".edge")).to_have_count(EDGES)
        expect(page.locator(".edge.flows").first).to_be_attached()
        expect(page.locator(".node.moves").first).to_be_attached()
        if PICTURED:
            page.wait_for_timeout(12_000)
        seen.picture("graph")
        node.focus()
        page.keyboard.press("Enter")

        # Table.
        expect(page.get_by_role("heading", name="public.by_country", exact=True)).to_be_visible()
        expect(page.get_by_role("region", name="Query")).to_contain_text("GROUP BY c.country")
        expect(page.get_by_role("region", name="Plan")).to_contain_text("groups by c.country")
        expect(page.get_by_role("region", name="Refreshes").locator("svg").first).to_be_attached()
        expect(page.get_by_role("region", name="Sources and readers")).to_contain_text("public.orders")
        page.get_by_role("region", name="Refreshes").get_by_role("listitem").get_by_role("button").last.click()
        expect(page.get_by_role("region", name="Refreshes").locator("[aria-live]")).to_contain_text("merge")
        seen.picture("table")
        # The rows of the last change, though nobody else keeps them: they are kept while somebody looks.
        delta = page.get_by_role("region", name="Rows of the last change")
        db.execute("UPDATE customers SET country = 'it' WHERE id = 1")
        expect(delta.locator("tr.plus", has_text="it").first).to_contain_text("+1")
        expect(delta.locator("tr.minus").first).to_contain_text("−1")

        # Buttons: the first asks for a token, a wrong one is refused, and each does what it says.
        def press(name: str, words: str | re.Pattern[str]) -> None:
            page.get_by_role("group", name="Actions").get_by_role("button", name=name, exact=True).click()
            if page.locator("#token").is_visible():
                page.get_by_label("Token", exact=True).last.fill(token_of(tmp_path))
                page.get_by_role("button", name="Use it").click()
            expect(page.locator("#said")).to_contain_text(words)

        before = db.execute("SELECT count(*) FROM pgtrickle.get_refresh_history('by_country', 1000)").fetchone()
        press("Refresh", "Refreshed.")
        after = db.execute("SELECT count(*) FROM pgtrickle.get_refresh_history('by_country', 1000)").fetchone()
        assert before is not None and after is not None
        assert after[0] > before[0] if PICTURED else after[0] == before[0] + 1
        expect(page.locator("#key")).to_contain_text("As ")
        press("Verify", "it is what its query says")
        press("Suspend", "Suspended.")
        assert status_of(db, "by_country") == "SUSPENDED"
        press("Resume", "Resumed.")
        assert status_of(db, "by_country") == "ACTIVE"
        press("Cancel", re.compile("nothing to stop|is being stopped"))

        # Lineage of the newest snapshot.
        page.get_by_role("region", name="Lake").get_by_role("link").first.click()
        expect(page.get_by_text("from table")).to_have_count(2)
        expect(page.locator(".tree")).to_contain_text("by refresh")
        seen.picture("lineage")

        # A query is tried, and made.
        page.get_by_role("link", name="Try a query").click()
        page.get_by_label("Query").fill("SELECT nothing FROM orders")
        page.get_by_role("button", name="Check it").click()
        expect(page.locator(".notes")).to_contain_text('column "nothing" does not exist')
        page.get_by_label("Query").fill("SELECT customer, max(total) AS most FROM orders GROUP BY customer")
        page.get_by_role("button", name="Check it").click()
        expect(page.locator(".notes")).to_contain_text("DIFFERENTIAL")
        page.get_by_label("Name").fill("most")
        seen.picture("try")
        page.get_by_role("button", name="Create the stream table").click()
        expect(page.get_by_role("heading", name="public.most")).to_be_visible()
        assert status_of(db, "most") == "ACTIVE"
        # What the browser itself says about a refused request is no fault of the page.
        assert [e for e in seen.errors if "status of 400" not in e] == []

    with opened(browser, stack.url, color_scheme="dark") as seen:
        expect(seen.page.get_by_role("row", name="public.most")).to_be_visible()
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 28)"
        seen.picture("dark")
        seen.page.get_by_role("button", name="Light or dark").click()
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
        assert seen.errors == []


@needs_browser
@pytest.mark.slow
def test_a_phone_a_failure_and_an_end(
    db: psycopg.Connection, stack: HttpServer, browser: Browser, dsn: str, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE people (id int, pay text)")
    db.execute("SELECT pgtrickle.create_stream_table('numbers', 'SELECT id, pay::int AS pay FROM people', '1s')")
    with opened(browser, stack.url, is_mobile=True, has_touch=True) as seen:
        seen.page.set_viewport_size({"width": 390, "height": 800})
        expect(seen.page.get_by_role("row", name="public.best ACTIVE")).to_be_visible()
        for path in ("", "graph", "table/public.by_country", "lineage", "try"):
            seen.page.goto(f"{stack.url}/#/{path}")
            expect(seen.page.get_by_role("heading", level=1)).to_be_visible()
            seen.page.wait_for_timeout(500)
            width = seen.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path} is {width} wide"
        seen.page.goto(f"{stack.url}/#/")
        # What fails stands on top, in words; markup in a value is text.
        db.execute("INSERT INTO people VALUES (1, '<img src=x onerror=alert(1)>')")
        notes = seen.page.get_by_role("list", name="What wants attention")
        expect(notes).to_contain_text("<img src=x onerror=alert(1)>")
        expect(notes).to_contain_text("public.numbers")
        assert seen.page.locator("main img").count() == 0
        seen.picture("phone")
        assert seen.errors == []


@needs_browser
@pytest.mark.slow
def test_a_watched_lake(db: psycopg.Connection, stack: HttpServer, browser: Browser, dsn: str, tmp_path: Path) -> None:
    def seen_by(**headers: str) -> Any:
        return requests.get(f"{stack.url}/api/watch", headers=headers, timeout=30).json()

    assert seen_by() == []
    with runnel.connect(dsn) as client:
        client.watch_lake(schedule="1s", limits=Limits(small_files=1))
        with opened(browser, stack.url) as seen:
            lake = seen.page.get_by_role("region", name="Lake lake")
            expect(lake).to_contain_text("by_country__rows has 1 small files")
            expect(lake).to_contain_text("stream table by_country")
            expect(lake.get_by_role("heading", name="Files per table")).to_be_visible()
            # It follows a publication without reloading.
            row = lake.get_by_role("row", name="stream table by_country inserted into table by_country__rows")
            expect(row).to_contain_text(" 1")
            db.execute("INSERT INTO orders VALUES (5000, 1, 500)")
            expect(row.get_by_role("cell").nth(3)).to_have_text("2")
            seen.page.set_viewport_size({"width": 390, "height": 800})
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
            assert seen.errors == []
        # Others see it when they may read it.
        if not db.execute("SELECT FROM pg_roles WHERE rolname = 'page_guest'").fetchall():
            db.execute("CREATE ROLE page_guest")
        guest = {"Authorization": f"Bearer {create_token(db, 'page_guest')[1]}"}
        assert len(seen_by()) == 1 and seen_by(**guest) == []
        db.execute("GRANT USAGE ON SCHEMA lake_watch TO page_guest")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA lake_watch TO page_guest")
        eventually(lambda: len(seen_by(**guest)) == 1, 10)
        # What is in somebody else's schema is not read: there could be anything under these names.
        db.execute("ALTER SCHEMA lake_watch OWNER TO page_guest")
        eventually(lambda: seen_by() == [], 10)


def test_what_a_token_may_see_and_do(db: psycopg.Connection, dsn: str, engine: runnel.Engine, tmp_path: Path) -> None:
    """Under the role of the caller: errors without rows, no delta, no buttons of others' tables."""
    db.execute("CREATE TABLE people (id int, pay text)")
    db.execute("SELECT pgtrickle.create_stream_table('numbers', 'SELECT id, pay::int AS pay FROM people', '1s')")
    db.execute("SELECT pgtrickle.create_stream_table('reads', 'SELECT max(pay) AS m FROM numbers', '@yearly')")
    db.execute("INSERT INTO people VALUES (1, '10')")
    log = "SELECT count(*) FROM pgtrickle.get_refresh_history('numbers') WHERE rows_inserted = 1"
    eventually(lambda: (db.execute(log).fetchone() or (0,))[0], 30)
    if not db.execute("SELECT FROM pg_roles WHERE rolname = 'page_guest'").fetchall():
        db.execute("CREATE ROLE page_guest")
    with serving(dsn, tmp_path / "http", loopback_reads=False, looks=engine.looks) as server:
        guest, owner = (
            {"Authorization": f"Bearer {t}"} for t in (create_token(db, "page_guest")[1], token_of(tmp_path))
        )

        def get(path: str, who: dict[str, str]) -> Any:
            return requests.get(f"{server.url}/api/{path}", headers=who, timeout=30).json()

        def post(wish: dict[str, str], who: dict[str, str]) -> requests.Response:
            return requests.post(f"{server.url}/api/act", json=wish, headers=who, timeout=60)

        for path in ("overview", "graph", "me", "lakes", "table?name=public.numbers", "delta?name=public.numbers"):
            assert requests.get(f"{server.url}/api/{path}", timeout=10).status_code == 401
        assert requests.get(server.url, timeout=10).status_code == 200, "the page itself holds nothing"
        assert post({"action": "refresh", "name": "public.numbers"}, {}).status_code == 401
        assert get("me", guest) == {"role": "page_guest", "may_act": True}
        assert get("delta?name=public.numbers", owner)["rows"] == [[1, "1", "10"]]
        assert get("delta?name=public.numbers", owner)["columns"] == ["id", "pay"]
        assert "may not read" in get("delta?name=public.numbers", guest)["why"]
        # Rows that nobody else needs are kept for those who look, and may.
        db.execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT 1 AS k, count(*) AS n FROM people', '1s')")
        assert "may not read" in get("delta?name=public.sums", guest)["why"]
        assert not engine.looks.wants(pgt_id(db, "sums")), "who may not read does not look"
        assert "next change" in get("delta?name=public.sums", owner)["why"]
        db.execute("INSERT INTO people VALUES (3, NULL)")
        seen = eventually(lambda: get("delta?name=public.sums", owner)["rows"], 30)
        assert seen == [[-1, "1", "1"], [1, "1", "2"]]
        assert "may not read" in get("delta?name=public.sums", guest)["why"]
        refused = post({"action": "suspend", "name": "public.numbers"}, guest)
        assert refused.status_code == 403 and "owner" in refused.text
        assert status_of(db, "numbers") == "ACTIVE"
        assert post({"action": "drop", "name": "public.numbers"}, owner).status_code == 400
        assert requests.get(f"{server.url}/api/table?name=nothing", headers=owner, timeout=10).status_code == 404
        elsewhere = {**owner, "Origin": "http://evil.example"}
        assert post({"action": "suspend", "name": "public.numbers"}, elsewhere).status_code == 403
        db.execute("INSERT INTO people VALUES (2, 'a secret')")
        eventually(lambda: get("overview", owner)["attention"], 30)
        assert "a secret" in str(get("overview", owner)["attention"])
        for path in ("overview", "table?name=public.numbers", "history?name=public.numbers&before=99999999"):
            assert "a secret" not in str(get(path, guest)), path
            assert "invalid text representation" in str(get(path, guest)) or path == "overview"


def test_attention_is_in_words() -> None:
    well = {"up": True, "silence": 1.0, "pace": {}}
    table = {
        "name": "public.t", "status": "ACTIVE", "errors": 0, "error": None, "needs_reinit": False, "staleness": 0.0,
        "period": 5.0, "pending": 0, "schedule": "5s",
    }  # fmt: skip
    assert attention([table], well) == []
    late = {**table, "staleness": 300.0}
    stopped = {**table, "name": "public.s", "status": "ERROR", "error": "column x was dropped"}
    first, second = attention([late, stopped], well)
    assert first["severity"] == "bad" and "column x was dropped" in first["words"] and "Resume" in first["remedy"]
    assert second["words"] == "is 5 min behind; its schedule is 5s."
    # One that fails is late because of that.
    (failing,) = attention([{**late, "errors": 2, "error": "division by zero"}], well)
    assert failing["words"] == "failed 2 times in a row: division by zero"
    (held,) = attention([{**table, "tests": "unique k: 2 violations", "held": True}], well)
    assert held["severity"] == "bad" and held["words"] == "does not pass its tests: unique k: 2 violations."
    (told,) = attention([{**table, "tests": "unique k: 2 violations", "held": False}], well)
    assert told["severity"] == "warn" and "test_status" in told["remedy"]
    assert attention([{**table, "tests": "ok", "held": False}], well) == []
    (waits,) = attention([], {**well, "workers": 0})
    assert waits["words"].startswith("Spark is starting")
    assert attention([], {**well, "up": False})[0]["remedy"] == "Start one with: runnel up"


@needs_browser
@pytest.mark.slow
def test_500_stream_tables_and_100000_refreshes(
    db: psycopg.Connection, dsn: str, browser: Browser, tmp_path: Path
) -> None:
    db.execute(TABLE, (1, 500))
    db.execute(
        "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_type, source_name) "
        "SELECT pgt_id, 10 + pgt_id %% 50, 'TABLE', 'public.source_' || pgt_id %% 50 FROM pgtrickle.pgt_stream_tables",
        (),
    )
    db.execute(
        "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, start_time, end_time, action, status, initiated_by, "
        "changes_read, rows_inserted, rows_deleted, timings) SELECT s.pgt_id, now() - interval '1 s', now(), "
        "'DIFFERENTIAL', 'COMPLETED', 'SCHEDULER', 5, 2, 1, '{\"read\": 1, \"merge\": 2}' "
        "FROM generate_series(1, 200), pgtrickle.pgt_stream_tables s"
    )
    db.execute("ANALYZE pgtrickle.pgt_refresh_history, pgtrickle.pgt_stream_tables, pgtrickle.pgt_dependencies")
    with serving(dsn, tmp_path / "http") as server, opened(browser, server.url) as seen:
        page = seen.page
        took = {}

        def until(name: str, go: Callable[[], Any], there: Callable[[], Any]) -> None:
            began = time.perf_counter()
            go()
            there()
            took[name] = round(time.perf_counter() - began, 2)

        rows = page.locator("tbody tr")
        until("overview", lambda: page.goto(f"{server.url}/#/"), lambda: expect(rows).to_have_count(500))
        filtering = page.get_by_role("searchbox")
        until("filter", lambda: filtering.fill("t499"), lambda: expect(rows).to_have_count(1))
        until(
            "graph",
            lambda: page.goto(f"{server.url}/#/graph"),
            lambda: expect(page.locator(".node")).to_have_count(550),
        )
        history = page.get_by_role("region", name="History").locator("tbody tr")
        until("table", lambda: page.goto(f"{server.url}/#/table/public.t7"), lambda: expect(history).to_have_count(60))
        older = page.get_by_role("button", name="Older")
        until("older", older.click, lambda: expect(history).to_have_count(200))
        began = time.perf_counter()
        answer = requests.get(f"{server.url}/api/overview", timeout=30)
        took["overview as JSON"] = round(time.perf_counter() - began, 2)
        print(f"500 stream tables: {took} s, {len(answer.content) / 1000:.0f} kB")
        assert all(seconds < 5 for seconds in took.values()), took
        assert seen.errors == []
