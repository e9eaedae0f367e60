"""Files of a lake as DuckDB reads them inside of tasks: plain ones itself, all others through `runnel.lake`.

Executors need DuckDB, pyarrow, obstore and `runnel.lake`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING

import pyarrow as pa

from runnel.lake.duck import literal
from runnel.lake.format.model import LakeColumn
from runnel.lake.format.types import arrow_field
from runnel.lake.read.input import Tally, local_path, open_parquet
from runnel.lake.read.reader import FileScan, deletions, scan_file, stored_columns
from runnel.model.names import quote
from runnel.spark.files import Piece, Share

if TYPE_CHECKING:
    import duckdb

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """Rows of a lake table, or what changed in it: in files, and in none. It is a `FileTable`.

    Changes have a weight behind their columns. Of a file that is new as a whole every row counts once.
    """

    columns: tuple[LakeColumn, ...]
    files: tuple[FileScan, ...]
    inlined: pa.Table
    weighted: bool = False

    @property
    def rows(self) -> int:
        """About how many."""
        return sum(spec.file.record_count for spec in self.files) + int(self.inlined.num_rows)

    @property
    def size(self) -> int:
        """Of the files, in bytes."""
        return sum(spec.file.size for spec in self.files)

    def divided(self, most: int) -> list[Share]:
        """Shares of about as many rows each; a file that DuckDB cannot open itself stays whole."""
        step = max(1, ceil(sum(spec.file.record_count for spec in self.files) / most))
        shares: list[list[Piece]] = [[]]
        room = step
        for number, spec in enumerate(self.files):
            first, count = 0, spec.file.record_count
            while count:
                taken = min(room, count) if _opens(spec) else count
                shares[-1].append(Piece(number, first, first + taken))
                first, count, room = first + taken, count - taken, room - taken
                if room <= 0:
                    shares.append([])
                    room = step
        return [tuple(share) for share in shares if share] or [()]

    def offer(self, duck: duckdb.DuckDBPyConnection, name: str, share: Share | None, *, first: bool) -> None:
        """A view with columns `c0`, `c1`, .. of a share, and its weights `w`; of all rows for None."""
        whole = tuple(Piece(number, 0, spec.file.record_count) for number, spec in enumerate(self.files))
        _offer(duck, name, self, whole if share is None else share, inlined=first)


def _offer(duck: duckdb.DuckDBPyConnection, name: str, table: LakeFiles, share: Share, *, inlined: bool) -> None:
    """A view with columns `c0`, `c1`, .. of a share of a table, and its weights `w`."""
    selects: list[str] = []
    rest: list[FileScan] = []
    whole: dict[tuple[str, ...], list[str]] = {}
    for piece in share:
        spec = table.files[piece.file]
        stored = _stored_names(spec) if _opens(spec) else None
        if stored is None:
            # It was not divided, unless its columns turn out to be others than the catalog says: then who has its
            # first row reads all of it.
            if piece.first == 0:
                rest.append(spec)
            continue
        path = local_path(spec.file.path) or ""
        is_whole = piece.first == 0 and piece.end >= spec.file.record_count
        if is_whole and not spec.deletes and not spec.inlined_deletes:
            whole.setdefault(stored, []).append(path)
            continue
        where = f"file_row_number >= {piece.first} AND file_row_number < {piece.end}"
        if spec.deletes or spec.inlined_deletes:
            positions, snapshots = deletions(spec, Tally())
            gone = f"gone_{name}_{len(selects)}"
            duck.register(gone, pa.table({"pos": pa.array(positions[snapshots <= spec.at], pa.int64())}))
            where += f" AND file_row_number NOT IN (SELECT pos FROM {gone})"
        selects.append(f"{_select(stored, [path], table.weighted, numbered=True)} WHERE {where}")
    selects += [_select(stored, paths, table.weighted) for stored, paths in whole.items()]
    here = table.inlined if inlined else table.inlined.slice(0, 0)
    if rest or here.num_rows or not selects:
        # Not a view over the batches themselves, which can be read only once.
        duck.register("batches", _batches(table, rest, here))
        duck.execute(f"CREATE TEMP TABLE rest_{name} AS SELECT * FROM batches")
        duck.unregister("batches")
        selects.append(f"SELECT {', '.join(_names(table))} FROM rest_{name}")
    duck.execute(f"CREATE TEMP VIEW {name} AS {' UNION ALL '.join(selects)}")


def _names(table: LakeFiles) -> list[str]:
    return [*(f"c{i}" for i in range(len(table.columns))), *(["w"] if table.weighted else [])]


def _batches(table: LakeFiles, specs: Sequence[FileScan], here: pa.Table) -> pa.RecordBatchReader:
    """Rows of files that DuckDB cannot open itself, and of none, under the names of the view."""
    count = len(table.columns)
    fields = [*map(arrow_field, table.columns), *([pa.field("w", pa.int64())] if table.weighted else [])]
    schema = pa.schema([field.with_name(name) for field, name in zip(fields, _names(table), strict=True)])

    def named() -> Iterator[pa.RecordBatch]:
        for spec, batch in chain(((s, b) for s in specs for b in scan_file(s)), ((None, b) for b in here.to_batches())):
            columns = batch.columns[:count]
            if table.weighted:
                once = spec is not None and spec.after is None
                ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
                columns.append(ones if once else batch.columns[-1])
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, named())


def _select(stored: Sequence[str], paths: Sequence[str], weighted: bool, *, numbered: bool = False) -> str:
    items = [*(f"{quote(name)} AS c{i}" for i, name in enumerate(stored)), *(["1::BIGINT AS w"] if weighted else [])]
    files = ", ".join(map(literal, paths))
    more = ", file_row_number = true" if numbered else ""
    return f"SELECT {', '.join(items)} FROM read_parquet([{files}], hive_partitioning = false{more})"


def _opens(spec: FileScan) -> bool:
    """Whether DuckDB can open a file itself, as far as the catalog tells."""
    path = local_path(spec.file.path)
    file = spec.file
    is_plain = file.encryption_key is None and spec.mapping is None and spec.after is None
    is_partial = file.partial_max is not None and file.partial_max > spec.at
    return path is not None and not _PATTERN.search(path) and is_plain and not is_partial


def _stored_names(spec: FileScan) -> tuple[str, ...] | None:
    """The names of a file's columns, if they are just what the table's are now."""
    with open_parquet(spec.file, spec.options, Tally()) as opened:
        schema = opened.parquet.schema_arrow
    stored = stored_columns(spec, schema)
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return None  # DuckDB would give one of them another name
    names = []
    for column in spec.columns:
        found = stored.get(column.id)
        if found is None or schema.field(found.name).type != arrow_field(column).type:
            return None
        names.append(found.name)
    return tuple(names)
