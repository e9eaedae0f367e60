"""Each refresh's changes as a Parquet file of its own, for whoever wants them without a lake."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import pyarrow as pa

from runnel.catalog.owner import AsOwner
from runnel.lake.format.model import Lake, LakeColumn
from runnel.lake.store.storage import open_store
from runnel.lake.write.parquet import encode_files
from runnel.sinks.catalog import Sink
from runnel.sinks.ducklake.columns import published
from runnel.sinks.ducklake.uploads import Uploads, store_options
from runnel.sinks.ducklake.views import LOG_COLUMNS
from runnel.sinks.ducklake.write import Reading, changes_sql, logged
from runnel.sinks.model import Refreshed, Result


def export_changes(
    owner: AsOwner, uploads: Uploads, sink: Sink, result: Result, refreshed: Refreshed, lakes: Iterable[Lake]
) -> str:
    """Write a refresh's changes; the file's path. Names sort by time."""
    assert sink.delta_export_path is not None
    columns = published(result.columns, result.scales)
    types = [*((c.name, c.lake) for c in columns), *LOG_COLUMNS]
    own = [LakeColumn(i, name, type) for i, (name, type) in enumerate(types, 1)]
    reading = Reading(owner, columns, own[: len(columns)], hashed=False)
    batches = reading.batches(changes_sql(len(columns), result.delta), [("action", pa.string())])
    moment = dt.datetime.fromisoformat(refreshed.at).astimezone(dt.UTC)
    name = f"{moment:%Y%m%dT%H%M%S%f}Z_{refreshed.id}.parquet"
    (file,) = encode_files(
        logged(batches, refreshed),
        own,
        compression=sink.delta_export_compression,
        target_size=None,
        name=lambda: name,
        empty=True,
    )
    path = sink.delta_export_path + name
    uploads.start(None, [path])
    open_store(path, store_options(path, lakes)).put(path, memoryview(file.data))
    uploads.arrived([path])
    return path
