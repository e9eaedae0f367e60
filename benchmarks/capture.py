"""What does capture cost the writers?"""

from __future__ import annotations

from benchmarks.report import Answer, Grid, Target
from benchmarks.stack import Bench
from benchmarks.timing import median, ms, timed

ROWS = 10_000
KINDS = ("plain", "captured")

TABLE = """
CREATE TABLE capture.{name} (
    id bigint PRIMARY KEY, customer_id int NOT NULL, product_id int NOT NULL, quantity int NOT NULL DEFAULT 1,
    total_usd numeric(10,2) NOT NULL, status text NOT NULL DEFAULT 'pending',
    ordered_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON capture.{name} (customer_id);
CREATE INDEX ON capture.{name} (product_id);
INSERT INTO capture.{name} (id, customer_id, product_id, total_usd)
SELECT i, i % 5000, i % 500, i % 100 FROM generate_series(1, 100000) i;
"""
QUERY = """
SELECT date_trunc('day', ordered_at) AS day, product_id, sum(total_usd) AS revenue, count(DISTINCT customer_id) AS n
FROM capture.{name} WHERE status = 'shipped' GROUP BY 1, 2
"""
BULK = {
    "insert": "INSERT INTO capture.{name} (id, customer_id, product_id, total_usd) "
    "SELECT 1000000 + i, i % 5000, i % 500, i % 100 FROM generate_series(1, 10000) i",
    "update": "UPDATE capture.{name} SET total_usd = total_usd + 1, status = 'shipped' WHERE id > 1000000",
    "delete": "DELETE FROM capture.{name} WHERE id > 1000000",
}
_LIMITS = {"single-row insert": 1.2, "insert": 1.4, "update": 1.4, "delete": 3.0}


def run(bench: Bench) -> Answer:
    """Plain and captured tables take turns."""
    rounds, singles = (3, 200) if bench.quick else (25, 3000)
    bench.start_engine()
    bench.conn.execute("CREATE SCHEMA capture")
    for kind in KINDS:
        bench.conn.execute(TABLE.format(name=kind).encode())
    bench.client.create_stream_table("capture.result", QUERY.format(name="captured"), "@yearly", "DIFFERENTIAL")
    for kind in KINDS:
        bench.conn.execute(f"VACUUM ANALYZE capture.{kind}".encode())
    bench.conn.execute("CHECKPOINT")
    spent = _bulk(bench, rounds) | {"single-row insert": _single(bench, singles)}
    assert bench.client.verify("capture.result").ok
    bench.client.drop_stream_table("capture.result")
    bench.conn.execute("DROP SCHEMA capture CASCADE")

    rows, targets = [], []
    for what, limit in _LIMITS.items():
        plain, captured = (median(spent[what][kind]) for kind in KINDS)
        ratio = captured / plain
        label = what if "row" in what else f"{what} of {ROWS:,} rows"
        rows.append([label, ms(plain), ms(captured), f"{ratio:.2f}x"])
        targets.append(Target(f"captured / plain, {label}", f"at most {limit}x", f"{ratio:.2f}x", ratio <= limit))
    return Answer(
        question="Write overhead of capture",
        setup=(
            "The orders table with its primary key and two secondary indexes, once plain and once as the source of a "
            "stream table that uses five of its seven columns. The engine runs and is idle. Single rows: one "
            f"transaction each, {singles:,} of them; bulk statements: median of {rounds}. Commits are included."
        ),
        grid=Grid(("statement", "plain", "captured", "ratio"), rows),
        targets=targets,
    )


def _bulk(bench: Bench, rounds: int) -> dict[str, dict[str, list[float]]]:
    spent: dict[str, dict[str, list[float]]] = {what: {kind: [] for kind in KINDS} for what in BULK}
    for round_ in range(rounds + 1):
        for what, text in BULK.items():
            for kind in KINDS if round_ % 2 else reversed(KINDS):
                statement = text.format(name=kind).encode()
                once = timed(lambda statement=statement: bench.conn.execute(statement))  # type: ignore[misc]
                if round_:
                    spent[what][kind].append(once)
        if round_ % 5 == 4:
            # What is due to the bulk of earlier rounds should not be paid by later ones.
            for kind in KINDS:
                bench.conn.execute(f"VACUUM capture.{kind}".encode())
            bench.client.refresh("capture.result")
            bench.conn.execute("CHECKPOINT")
    return spent


def _single(bench: Bench, number: int) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for i in range(number):
        for kind in KINDS if i % 2 else reversed(KINDS):
            statement = (
                f"INSERT INTO capture.{kind} (id, customer_id, product_id, total_usd, status) "
                f"VALUES ({2_000_000 + i}, {i % 5000}, {i % 500}, {i % 100}, 'shipped')"
            ).encode()
            spent[kind].append(timed(lambda statement=statement: bench.conn.execute(statement)))  # type: ignore[misc]
    return spent
