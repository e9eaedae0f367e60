"""Each refresh's changes as a Parquet file of its own, for whoever wants them without a lake."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import pyarrow as pa

from runnel.catalog.owner import AsOwner
from runnel.lake.format.model import Lake, LakeColumn
from runnel.lake.store.storage import open_store
from runnel.lake.write.parquet import Form, encode_files
from runnel.ports.sink import Refreshed, Result
from runnel.sinks.columns import published
from runnel.sinks.files.catalog import Export
from runnel.sinks.reading import LOG_COLUMNS, Reading, changes_sql, logged
from runnel.sinks.uploads import Uploads, store_options


def export_changes(
    owner: AsOwner, uploads: Uploads, export: Export, result: Result, refreshed: Refreshed, lakes: Iterable[Lake]
) -> str:
    """Write a refresh's changes; the file's path. Names sort by time."""
    columns = published(result.columns, result.scales)
    types = [*((c.name, c.lake) for c in columns), *LOG_COLUMNS]
    own = [LakeColumn(i, name, type) for i, (name, type) in enumerate(types, 1)]
    reading = Reading(owner, columns, own[: len(columns)], hashed=False)
    batches = reading.batches(changes_sql(len(columns), result.delta), [("action", pa.string())])
    moment = dt.datetime.fromisoformat(refreshed.at).astimezone(dt.UTC)
    name = f"{moment:%Y%m%dT%H%M%S%f}Z_{refreshed.id}.parquet"
    form = Form(tuple(own), export.compression)
    (file,) = encode_files(form, logged(batches, refreshed), target_size=None, name=lambda: name, empty=True)
    path = export.path + name
    uploads.start(None, [path])
    file.upload(open_store(path, store_options(path, lakes)), export.path)
    uploads.arrived([path])
    return path
