"""How fast is a large stream table published in the lake at first?"""

from __future__ import annotations

from benchmarks.lake import duckdb_client
from benchmarks.report import Answer, Grid, Target
from benchmarks.shop import open_shop
from benchmarks.stack import Bench
from benchmarks.timing import count, median, ms, timed


def run(bench: Bench) -> Answer:
    """Publish and leave the lake again, a few times; DuckDB writes the same rows beside it."""
    size = 100_000 if bench.quick else 5_000_000
    rounds = 1 if bench.quick else 3
    shop = open_shop(bench, size)
    bench.start_engine()
    name, copied = f"{shop.schema}.all_orders", f"lake.main.copied_by_duckdb_{size}"
    query = f"SELECT id, customer_id, product_id, quantity, total_usd, status, ordered_at FROM {shop.schema}.orders"
    bench.client.create_stream_table(name, query, "@yearly", "DIFFERENTIAL")
    published, plain, after = [], [], []
    with duckdb_client(bench) as duck:
        for _ in range(rounds):
            # DuckDB goes first: it should not share the machine with what the engine still does after its answer.
            copy = f"CREATE TABLE {copied} AS SELECT * FROM live.{name}"
            plain.append(timed(lambda copy=copy: duck.execute(copy)))  # type: ignore[misc]
            published.append(timed(lambda: bench.client.alter_stream_table(name, sink="ducklake")))
            check = "SELECT count(*), sum(total_usd), sum(id), count(DISTINCT status), max(ordered_at) FROM {}"
            assert (
                duck.execute(check.format(f"lake.{name}")).fetchall() == duck.execute(check.format(copied)).fetchall()
            )
            sizes = duck.execute(
                "SELECT table_name, file_count, file_size_bytes FROM ducklake_table_info('lake') "
                "WHERE table_name LIKE 'all_orders%' OR table_name LIKE 'copied_by_duckdb%'"
            ).fetchall()
            gone = f"DELETE FROM {shop.schema}.orders WHERE id = (SELECT min(id) FROM {shop.schema}.orders)"
            bench.conn.execute(gone.encode())
            after.append(timed(lambda: bench.client.refresh(name)))
            duck.execute(f"DROP TABLE {copied}")
            bench.client.alter_stream_table(name, sink="none")
    bench.client.drop_stream_table(name)
    ours, theirs = median(published), median(plain)
    ratio = ours / theirs
    held = {table.startswith("all_orders"): (files, size_) for table, files, size_ in sizes}
    rows = [
        ["alter_stream_table(sink => 'ducklake')", ms(ours), f"{size / ours * 1000:,.0f}", *_held(held.get(True))],
        ["the next refresh, one order deleted", ms(median(after)), "", "", ""],
        ["DuckDB: CREATE TABLE lake.x AS SELECT", ms(theirs), f"{size / theirs * 1000:,.0f}", *_held(held.get(False))],
    ]
    return Answer(
        question=f"First publish of a {count(size)}-row stream table in the lake",
        setup=(
            f"All columns of {count(size)} orders, in PostgreSQL already; median of {rounds}. DuckDB copies the same "
            "table from the same server into the same lake. Runnel also remembers where in the lake each row is, so "
            "that later refreshes find a deleted row without reading Parquet. It does so after the publish, at leisure "
            "or at the latest in the next refresh, which is why that is shown, too."
        ),
        grid=Grid(("statement", "time", "rows per second", "files", "MiB"), rows),
        targets=(Target("first publish / DuckDB's own copy", "at most 2.0x", f"{ratio:.2f}x", ratio <= 2),),
    )


def _held(info: tuple[int, int] | None) -> list[str]:
    return ["-", "-"] if info is None else [str(info[0]), f"{info[1] / 2**20:,.0f}"]
