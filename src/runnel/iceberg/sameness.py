"""Whether files hold the same rows: a client that says it has only moved rows is not just believed.

The sum of the rows' hashes depends neither on their order nor on their files. DuckDB computes it while the rows
stream by.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from runnel.lake.duck import connect
from runnel.lake.format.model import LakeColumn
from runnel.lake.read.reader import FileScan, scan_files, scan_schema


def same_rows(columns: tuple[LakeColumn, ...], before: Sequence[FileScan], after: Sequence[FileScan]) -> bool:
    """Compare two lists of files. What cannot be compared is not the same."""
    try:
        return _sum(columns, before) == _sum(columns, after)
    except (duckdb.Error, pa.ArrowException):
        return False


def _sum(columns: tuple[LakeColumn, ...], files: Sequence[FileScan]) -> tuple[int, int | None]:
    plain = pa.schema([field.with_name(f"c{place}") for place, field in enumerate(scan_schema(columns))])
    batches = (pa.RecordBatch.from_arrays(each.columns, schema=plain) for each in scan_files(files))
    rows = pa.RecordBatchReader.from_batches(plain, batches)
    with connect() as conn:
        names = ", ".join(plain.names)
        found = conn.from_arrow(rows).aggregate(f"count(*), sum(hash({names})::HUGEINT)").fetchone()
    assert found is not None
    return found[0], found[1]
