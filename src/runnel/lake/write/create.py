"""Making a lake: the catalog of DuckLake 1.0 in a schema of PostgreSQL, so that DuckDB can ATTACH it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from runnel.errors import UserError
from runnel.lake.format.model import Lake
from runnel.lake.format.statements import execute
from runnel.model.names import quote

if TYPE_CHECKING:
    from psycopg import Connection

VERSION = "1.0"

# Columns are BIGINT where no type is given, as nearly all are ids.
TABLES = {
    "metadata": "key VARCHAR NOT NULL, value VARCHAR NOT NULL, scope VARCHAR, scope_id",
    "snapshot": "snapshot_id PRIMARY KEY, snapshot_time TIMESTAMPTZ, schema_version, next_catalog_id, next_file_id",
    "snapshot_changes": "snapshot_id PRIMARY KEY, changes_made VARCHAR, author VARCHAR, commit_message VARCHAR, "
    "commit_extra_info VARCHAR",
    "schema": "schema_id PRIMARY KEY, schema_uuid UUID, begin_snapshot, end_snapshot, schema_name VARCHAR, "
    "path VARCHAR, path_is_relative BOOLEAN",
    "table": "table_id, table_uuid UUID, begin_snapshot, end_snapshot, schema_id, table_name VARCHAR, path VARCHAR, "
    "path_is_relative BOOLEAN",
    "view": "view_id, view_uuid UUID, begin_snapshot, end_snapshot, schema_id, view_name VARCHAR, dialect VARCHAR, "
    "sql VARCHAR, column_aliases VARCHAR",
    "column": "column_id, begin_snapshot, end_snapshot, table_id, column_order, column_name VARCHAR, "
    "column_type VARCHAR, initial_default VARCHAR, default_value VARCHAR, nulls_allowed BOOLEAN, parent_column, "
    "default_value_type VARCHAR, default_value_dialect VARCHAR",
    "tag": "object_id, begin_snapshot, end_snapshot, key VARCHAR, value VARCHAR",
    "column_tag": "table_id, column_id, begin_snapshot, end_snapshot, key VARCHAR, value VARCHAR",
    "data_file": "data_file_id PRIMARY KEY, table_id, begin_snapshot, end_snapshot, file_order, path VARCHAR, "
    "path_is_relative BOOLEAN, file_format VARCHAR, record_count, file_size_bytes, footer_size, row_id_start, "
    "partition_id, encryption_key VARCHAR, mapping_id, partial_max",
    "delete_file": "delete_file_id PRIMARY KEY, table_id, begin_snapshot, end_snapshot, data_file_id, path VARCHAR, "
    "path_is_relative BOOLEAN, format VARCHAR, delete_count, file_size_bytes, footer_size, encryption_key VARCHAR, "
    "partial_max",
    "file_column_stats": "data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, "
    "min_value VARCHAR, max_value VARCHAR, contains_nan BOOLEAN, extra_stats VARCHAR",
    "file_variant_stats": "data_file_id, table_id, column_id, variant_path VARCHAR, shredded_type VARCHAR, "
    "column_size_bytes, value_count, null_count, min_value VARCHAR, max_value VARCHAR, contains_nan BOOLEAN, "
    "extra_stats VARCHAR",
    "table_stats": "table_id, record_count, next_row_id, file_size_bytes",
    "table_column_stats": "table_id, column_id, contains_null BOOLEAN, contains_nan BOOLEAN, min_value VARCHAR, "
    "max_value VARCHAR, extra_stats VARCHAR",
    "partition_info": "partition_id, table_id, begin_snapshot, end_snapshot",
    "partition_column": "partition_id, table_id, partition_key_index, column_id, transform VARCHAR",
    "file_partition_value": "data_file_id, table_id, partition_key_index, partition_value VARCHAR",
    "files_scheduled_for_deletion": "data_file_id, path VARCHAR, path_is_relative BOOLEAN, schedule_start TIMESTAMPTZ",
    "inlined_data_tables": "table_id, table_name VARCHAR, schema_version",
    "column_mapping": "mapping_id, table_id, type VARCHAR",
    "name_mapping": "mapping_id, column_id, source_name VARCHAR, target_field_id, parent_column, is_partition BOOLEAN",
    "schema_versions": "begin_snapshot, schema_version, table_id",
    "macro": "schema_id, macro_id, macro_name VARCHAR, begin_snapshot, end_snapshot",
    "macro_impl": "macro_id, impl_id, dialect VARCHAR, sql VARCHAR, type VARCHAR",
    "macro_parameters": "macro_id, impl_id, column_id, parameter_name VARCHAR, parameter_type VARCHAR, "
    "default_value VARCHAR, default_value_type VARCHAR",
    "sort_info": "sort_id, table_id, begin_snapshot, end_snapshot",
    "sort_expression": "sort_id, table_id, sort_key_index, expression VARCHAR, dialect VARCHAR, "
    "sort_direction VARCHAR, null_order VARCHAR",
}

# The format asks for none of these. They keep the cost of a commit apart from the number of files in the lake.
INDEXES = {
    "data_file": "table_id, begin_snapshot",
    "delete_file": "data_file_id",
    "file_column_stats": "data_file_id",
    "file_partition_value": "data_file_id",
    "column": "table_id",
    "table_stats": "table_id",
    "table_column_stats": "table_id",
}


def create_lake(
    conn: Connection[Any], schema: str, data_path: str, encrypted: bool = False, *, name: str = "lake"
) -> Lake:
    """Create an empty lake in the caller's transaction: all tables, snapshot 0 and the schema `main`."""
    if not data_path:
        raise UserError("a lake needs a folder or a URL for its files", hint="Give a data path such as /srv/lake/.")
    data_path = data_path if data_path.endswith("/") else f"{data_path}/"
    if execute(conn, schema, "SELECT to_regclass(%s)", (f"{quote(schema)}.ducklake_metadata",)).fetchone() != (None,):
        raise UserError(
            f"schema {schema} already holds a lake", hint="Attach it instead, or choose another catalog schema."
        )
    execute(conn, schema, "CREATE SCHEMA IF NOT EXISTS {lake}")
    for table, columns in TABLES.items():
        execute(conn, schema, f"CREATE TABLE {{lake}}.ducklake_{table} ({_typed(columns)})")
        # Few of them have a key, and a publication may contain them all.
        execute(conn, schema, f"ALTER TABLE {{lake}}.ducklake_{table} REPLICA IDENTITY FULL")
    for table, columns in INDEXES.items():
        execute(conn, schema, f"CREATE INDEX ON {{lake}}.ducklake_{table} ({columns})")
    execute(conn, schema, "INSERT INTO {lake}.ducklake_snapshot VALUES (0, clock_timestamp(), 0, 1, 0)")
    execute(
        conn,
        schema,
        "INSERT INTO {lake}.ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (0, %s)",
        ('created_schema:"main"',),
    )
    settings = {
        "version": VERSION,
        "created_by": "Runnel",
        "data_path": data_path,
        "encrypted": "true" if encrypted else "false",
    }
    for key, value in settings.items():
        execute(conn, schema, "INSERT INTO {lake}.ducklake_metadata (key, value) VALUES (%s, %s)", (key, value))
    execute(
        conn,
        schema,
        "INSERT INTO {lake}.ducklake_schema VALUES (0, %s, 0, NULL, 'main', 'main/', true)",
        (uuid.uuid4(),),
    )
    return Lake(name=name, schema=schema, data_path=data_path, encrypted=encrypted)


def _typed(columns: str) -> str:
    """Give every column a type.

    >>> _typed("a PRIMARY KEY, b VARCHAR, c")
    'a BIGINT PRIMARY KEY, b VARCHAR, c BIGINT'
    """
    typed = []
    for column in columns.split(", "):
        name, _, rest = column.partition(" ")
        typed.append(f"{name} BIGINT {rest}".rstrip() if rest in {"", "PRIMARY KEY"} else column)
    return ", ".join(typed)
