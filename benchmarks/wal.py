"""Capture by triggers and from the WAL, beside none: what it costs the writers, and how soon the result follows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from benchmarks.capture import BULK, QUERY, ROWS, TABLE
from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench, bench_stack
from benchmarks.timing import median, ms, percentile, timed

KINDS = ("plain", "trigger", "wal")
SETTINGS = {"wal_level": "logical"}
RATIO = 1.05
LATER_MS = 100.0
RATE = 100_000
THEIRS = {"single-row insert": "1.98x", "insert": "2.06x", "update": "2.16x", "delete": "2.31x"}
"""What pg_trickle's benchmark guide prints for such statements, captured by its triggers / plain, on its machine."""


def run(bench: Bench) -> Answer:
    """Plain and captured tables take turns, on a server of their own."""
    bench.stop_engine()
    with bench_stack(bench.console, quick=bench.quick, settings=SETTINGS) as own:
        own.start_engine()
        own.conn.execute("CREATE SCHEMA capture")
        for kind in KINDS:
            own.conn.execute(TABLE.format(name=kind).encode())
        for kind in KINDS[1:]:
            query = QUERY.format(name=kind)
            own.client.create_stream_table(f"capture.by_{kind}", query, "@yearly", "DIFFERENTIAL", cdc_mode=kind)
        _until(lambda: _captured(own) == "wal")
        for kind in KINDS:
            own.conn.execute(f"VACUUM ANALYZE capture.{kind}".encode())
        own.conn.execute("CHECKPOINT")
        rounds, singles, times, decoded = (3, 200, 10, 100_000) if own.quick else (25, 3000, 60, 1_000_000)
        spent = {"single-row insert": _single(own, singles)} | _bulk(own, rounds)
        seen = _visible(own, times)
        rates = _rates(own, decoded)
        for kind in KINDS[1:]:
            assert own.client.verify(f"capture.by_{kind}").ok
    return _answer(spent, seen, rates, rounds=rounds, singles=singles, times=times, decoded=decoded)


def _answer(
    spent: dict[str, dict[str, list[float]]],
    seen: dict[str, list[float]],
    rates: dict[str, float],
    *,
    rounds: int,
    singles: int,
    times: int,
    decoded: int,
) -> Answer:
    rows, targets = [], []
    for what, each in spent.items():
        plain, trigger, wal = (median(each[kind]) for kind in KINDS)
        label = what if "row" in what else f"{what} of {ROWS:,} rows"
        ratios = [f"{trigger / plain:.2f}x", f"{wal / plain:.2f}x", THEIRS[what]]
        rows.append([label, ms(plain), ms(trigger), ms(wal), *ratios])
        if "insert" in what:
            ratio = wal / plain
            targets.append(Target(f"WAL / plain, {label}", f"at most {RATIO}x", f"{ratio:.2f}x", ratio <= RATIO))
    trigger, wal = (median(seen[kind]) for kind in KINDS[1:])
    rows.append(["commit to visible, p50", "", ms(trigger), ms(wal), "", "", ""])
    rows.append(["commit to visible, p95", "", *(ms(percentile(seen[k], 0.95)) for k in KINDS[1:]), "", "", ""])
    for what, rate in rates.items():
        rows.append([f"decoded rows per second, {what}", "", "", f"{rate:,.0f}", "", "", ""])
    slowest = min(rates.values())
    targets += [
        Target(
            "commit to visible, WAL - triggers",
            f"at most {LATER_MS:.0f} ms",
            ms(wal - trigger),
            wal - trigger <= LATER_MS,
        ),
        Target("decoded rows per second", f"at least {RATE:,}", f"{slowest:,.0f}", slowest >= RATE),
    ]
    return Answer(
        question="Capture by triggers and from the WAL",
        setup=(
            "The orders table three times, with its primary key and two secondary indexes: plain, captured by "
            "triggers, captured from the WAL; five of seven columns are used. wal_level is logical for all three. "
            f"Single rows: one transaction each, {singles:,} of them; bulk statements: median of {rounds}. Commits "
            "are included; what is decoded meanwhile runs on the same cores. Commit to visible: "
            f"{times} single orders, one at a time, by a "
            "reader that polls every 2 ms. Rows per second: the engine is stopped, "
            f"{decoded:,} rows are written in transactions of 10,000, the engine goes on, until all are in the buffer."
        ),
        grid=Grid(("statement", "plain", "triggers", "WAL", "triggers / plain", "WAL / plain", "pg_trickle*"), rows),
        targets=targets,
        notes=(
            "\\* Theirs: triggers / plain as the benchmark guide of pg_trickle prints it, for the same kinds of "
            "statements on other tables and another machine. It prints no such figures for its capture from the WAL.",
        ),
    )


def _captured(bench: Bench) -> str:
    row = bench.conn.execute(
        "SELECT capture FROM pgtrickle.pgt_change_tracking WHERE source_relid = 'capture.wal'::regclass"
    ).fetchone()
    assert row is not None
    return str(row[0])


def _turns(number: int) -> Sequence[str]:
    """Each kind comes first, second and third equally often."""
    first = number % len(KINDS)
    return KINDS[first:] + KINDS[:first]


def _single(bench: Bench, number: int) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for i in range(number):
        for kind in _turns(i):
            statement = (
                f"INSERT INTO capture.{kind} (id, customer_id, product_id, total_usd, status) "
                f"VALUES ({2_000_000 + i}, {i % 5000}, {i % 500}, {i % 100}, 'shipped')"
            ).encode()
            spent[kind].append(timed(lambda statement=statement: bench.conn.execute(statement)))  # type: ignore[misc]
    return spent


def _bulk(bench: Bench, rounds: int) -> dict[str, dict[str, list[float]]]:
    spent: dict[str, dict[str, list[float]]] = {what: {kind: [] for kind in KINDS} for what in BULK}
    for round_ in range(rounds + 1):
        for what, text in BULK.items():
            for kind in _turns(round_):
                statement = text.format(name=kind).encode()
                once = timed(lambda statement=statement: bench.conn.execute(statement))  # type: ignore[misc]
                if round_:
                    spent[what][kind].append(once)
        if round_ % 5 == 4:
            for kind in KINDS:
                bench.conn.execute(f"VACUUM capture.{kind}".encode())
            for kind in KINDS[1:]:
                bench.client.refresh(f"capture.by_{kind}")
            bench.conn.execute("CHECKPOINT")
    return spent


def _visible(bench: Bench, times: int) -> dict[str, list[float]]:
    """Milliseconds from the commit of one order to its sight, kinds in turn."""
    for kind in KINDS[1:]:
        bench.client.alter_stream_table(f"capture.by_{kind}", schedule="1s")
        bench.client.refresh(f"capture.by_{kind}")
    waited: dict[str, list[float]] = {kind: [] for kind in KINDS[1:]}
    for i in range(times):
        for kind in KINDS[1:]:
            product = 10_000 + i
            bench.conn.execute(
                f"INSERT INTO capture.{kind} (id, customer_id, product_id, total_usd, status) "
                f"VALUES ({3_000_000 + i}, 1, {product}, 1, 'shipped')".encode()
            )
            began = time.perf_counter()
            look = f"SELECT EXISTS (SELECT FROM capture.by_{kind} WHERE product_id = {product})".encode()
            while not _true(bench, look):
                time.sleep(0.002)
            waited[kind].append((time.perf_counter() - began) * 1000)
        # A schedule is the least time between two refreshes.
        time.sleep(1.1)
    return waited


def _rates(bench: Bench, rows: int) -> dict[str, float]:
    """Decoded rows per second: the engine stands still while they are written."""
    assert bench.engine is not None
    # Nothing else than the decoder is to work.
    for kind in KINDS[1:]:
        bench.client.alter_stream_table(f"capture.by_{kind}", schedule="@yearly")
    bench.client.refresh("capture.by_wal")
    found = {}
    statements = {
        "inserts": (
            "INSERT INTO capture.wal (id, customer_id, product_id, total_usd) "
            "SELECT 4000000 + i, i %% 5000, i %% 500, i %% 100 FROM generate_series(%s::int, %s::int) i"
        ),
        "updates (two rows each)": (
            "UPDATE capture.wal SET total_usd = total_usd + 1 WHERE id BETWEEN 4000000 + %s::int AND 4000000 + %s::int"
        ),
    }
    for what, statement in statements.items():
        os.kill(bench.engine.pid, signal.SIGSTOP)
        try:
            for start in range(0, rows, ROWS):
                bench.conn.execute(statement.encode(), (start, start + ROWS - 1))
            end = bench.conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert end is not None
            # Its place is past the last change when the decoder records one more.
            bench.conn.execute("UPDATE capture.wal SET total_usd = total_usd + 1 WHERE id = 1")
        finally:
            began = time.perf_counter()
            os.kill(bench.engine.pid, signal.SIGCONT)
        look = f"SELECT decoded_lsn > '{end[0]}' FROM pgtrickle.pgt_wal".encode()
        _until(lambda look=look: _true(bench, look), pause=0.01)  # type: ignore[misc]
        found[what] = rows * (1 if what == "inserts" else 2) / (time.perf_counter() - began)
    return found


def _true(bench: Bench, look: bytes) -> bool:
    row = bench.conn.execute(look).fetchone()
    return bool(row and row[0])


def _until(true: Callable[[], bool], seconds: float = 300, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come true")
        time.sleep(pause)
