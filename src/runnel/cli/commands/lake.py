"""`runnel lake ...`: lakes that stream tables are published to and read from."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.cli.output import JsonOption, done, note, print_json, print_lake_tables, print_lakes
from runnel.cli.target import DsnOption, HomeOption, absolute, http_place, open_client
from runnel.dsn import SECRET_WORDS
from runnel.errors import UserError
from runnel.model.quantities import counted

if TYPE_CHECKING:
    from pathlib import Path

    from runnel.answers import LakeInfo

PASSWORD_VARIABLE = "RUNNEL_LAKE_PASSWORD"  # noqa: S105  (the name of one)

app = typer.Typer(
    help="Lakes: Parquet files with a catalog in PostgreSQL (DuckLake), open to DuckDB and Spark.\n\n"
    "`runnel up` makes one named `lake`. See how to open it with: runnel lake info",
    no_args_is_help=True,
)

DEEDS = {
    "merged_files": "{merged_files:,} files merged into {new_files:,}",
    "flushed_rows": "{flushed_rows:,} inlined rows written out",
    "flushed_deletes": "{flushed_deletes:,} inlined deletes written out",
    "removed_files": "{removed_files:,} files removed that no snapshot needs",
    "removed_orphans": "{removed_orphans:,} files removed that no catalog knows",
    "removed_generated": "{removed_generated:,} files of older Iceberg metadata removed",
}


class Reader(StrEnum):
    """Clients that read a lake as Iceberg."""

    PYICEBERG = "pyiceberg"
    DUCKDB = "duckdb-iceberg"
    SPARK = "spark"
    TRINO = "trino"


NameArgument = Annotated[str, typer.Argument(help="Lake.")]
OptionalName = Annotated[str | None, typer.Argument(help="Lake; the default one when none is named.")]


@app.command()
def info(
    name: OptionalName = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install/--local",
            help="Let DuckDB fetch its extensions from the internet, for another machine or another version of DuckDB; "
            "or load those of this installation (the default).",
        ),
    ] = False,
    client: Annotated[
        Reader | None,
        typer.Option(help="What to paste into another client, which reads the lake as Iceberg.", show_default=False),
    ] = None,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Print the lines that open a lake in DuckDB: runnel lake info > lake.sql && duckdb -init lake.sql"""
    with open_client(home, dsn) as connected:
        lake = connected.lake_info(name)
    if client is not None:
        _print_iceberg(lake, client, json, home, dsn)
        return
    statements = lake.attach_statements(install=install)
    if json:
        connection = {key: value for key, value in lake.connection.items() if key not in SECRET_WORDS}
        print_json({**_fields(lake), "connection": connection, "statements": statements})
        return
    kind = "encrypted lake" if lake.encrypted else "lake"
    held = f"snapshot {lake.snapshot}, {counted(lake.tables, 'table')}, {counted(lake.views, 'view')}"
    done(f"-- {kind} {lake.name!r}: {held}; files in {lake.data_path}")
    if lake.connection.get("password") or lake.remote:
        done("-- the server may ask for a password: set PGPASSWORD, or put it in ~/.pgpass")
    if not install:
        from duckdb import __version__ as duckdb_version

        again = f"runnel lake info{f' {name}' if name else ''} --install"
        done(f"-- with the extensions of this installation, for DuckDB {duckdb_version}; for any other: {again}")
    for line in statements:
        done(line)
    done(f"-- from Spark: {lake.spark_call}")
    if lake.problem:
        note(f"The engine does not reach the files of this lake: {lake.problem}")
        if "://" in lake.data_path:
            note(
                "It takes credentials from its environment (AWS_ACCESS_KEY_ID ...), or store them with: "
                f"runnel lake set {lake.name} access_key_id, and: runnel lake set {lake.name} secret_access_key"
            )


@app.command("list")
def list_lakes(json: JsonOption = False, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """List the attached lakes."""
    with open_client(home, dsn) as client:
        lakes = client.lakes()
    print_json(lakes) if json else print_lakes(lakes)


@app.command()
def tables(name: OptionalName = None, json: JsonOption = False, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """List the tables and views of a lake, with rows, files and bytes."""
    with open_client(home, dsn) as client:
        found = client.lake_tables(name)
    print_json(found) if json else print_lake_tables(found)


@app.command()
def attach(
    name: Annotated[str, typer.Argument(help="Name for the lake; its tables are then NAME.table in queries.")],
    schema: Annotated[
        str, typer.Option(help="Schema with the ducklake_* tables (DuckDB's METADATA_SCHEMA).", show_default=True)
    ] = "public",
    catalog: Annotated[
        str | None,
        typer.Option(
            help="Server with the catalog when it is not this one, as 'host=... dbname=... user=...'. The password "
            f"comes from {PASSWORD_VARIABLE}, or is asked for with --password.",
            metavar="CONNINFO",
        ),
    ] = None,
    password: Annotated[bool, typer.Option("--password", help="Ask for the password of --catalog.")] = False,
    data_path: Annotated[
        str | None,
        typer.Option(help="Where its files are: a folder, s3://..., gs://..., az://... (else as its catalog says)."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the lake when the schema holds none.")] = False,
    encrypted: Annotated[bool, typer.Option("--encrypted", help="With --create: encrypt its files.")] = False,
    default: Annotated[bool, typer.Option("--default", help="Publish here when a sink names no lake.")] = False,
    region: Annotated[str | None, typer.Option(help="Region of the object store.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="URL of the object store, when it is not the cloud's own.")
    ] = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Attach a lake that exists, or make one with --create.

    Credentials of an object store come from the engine's environment (AWS_ACCESS_KEY_ID ...). To store them,
    encrypted, use `runnel lake set NAME access_key_id` and `runnel lake set NAME secret_access_key`.
    """
    options = {"region": region, "endpoint": endpoint}
    if endpoint and endpoint.startswith("http://"):
        options["allow_http"] = "true"
    with open_client(home, dsn) as client:
        client.attach_lake(
            name,
            schema,
            dsn=_with_password(catalog, password),
            data_path=absolute(data_path),
            options={key: value for key, value in options.items() if value},
            create=create,
            encrypted=encrypted,
            make_default=default,
        )
    done(f"Lake {name} is attached. See it from DuckDB with: runnel lake info {name}")


@app.command()
def detach(name: NameArgument, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Forget a lake. Its catalog and its files stay as they are."""
    with open_client(home, dsn) as client:
        client.detach_lake(name)
    done(f"Lake {name} is detached. Its catalog and files were not touched.")


@app.command("set")
def set_option(
    name: NameArgument,
    option: Annotated[
        str,
        typer.Argument(
            help="access_key_id, secret_access_key, token, region, endpoint, timeout, max_retries, maintain_every ..."
        ),
    ],
    value: Annotated[
        str | None, typer.Argument(help="Only for what is no secret; secrets are asked for, or read from stdin.")
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the setting.")] = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Set an option of a lake. Secrets are encrypted before they leave this command.

    runnel lake set lake secret_access_key < key.txt
    runnel lake set lake maintain_every '1 hour'
    """
    chosen = None if forget else _value(option, value)
    with open_client(home, dsn) as client:
        client.set_lake_option(name, option, chosen)
    done(f"Option {option} of lake {name} is {'forgotten' if forget else 'set'}.")


@app.command()
def maintain(
    name: OptionalName = None, json: JsonOption = False, home: HomeOption = None, dsn: DsnOption = None
) -> None:
    """Tidy a lake now: merge small files, flush inlined rows, remove files that no snapshot needs.

    The engine does this by itself for lakes that Runnel made; see `runnel lake list` for how often.
    """
    with open_client(home, dsn) as client:
        result = client.maintain_lake(name)
    if json:
        print_json(result)
        return
    said = [text.format(**result) for key, text in DEEDS.items() if result.get(key)]
    done(f"Done: {', '.join(said)}." if said else "There was nothing to tidy.")
    for table, reason in (result.get("skipped") or {}).items():
        note(f"{table} was left as it is: {reason}")


@app.command()
def watch(
    name: OptionalName = None,
    every: Annotated[str, typer.Option(help="Schedule of the watch's stream tables.")] = "2s",
    small: Annotated[int, typer.Option(min=1, help="Files below so many KiB are small.")] = 1024,
    too_many: Annotated[
        int, typer.Option(min=1, help="From so many small files on, a table is in too_many_small_files.")
    ] = 20,
    remove: Annotated[bool, typer.Option("--remove", help="Stop watching, and drop the stream tables.")] = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Watch a lake by stream tables over its own catalog: snapshots, files, small files, deletes, lag, writers.

    They are in schema LAKE_watch, ordinary tables for psql and dashboards, and are shown on the page. They follow
    whoever writes to the lake. Run it again to change its options.
    """
    from runnel.lake.watch import TABLES, Limits

    with open_client(home, dsn) as client:
        if remove:
            gone = client.unwatch_lake(name)
            done(f"{counted(len(gone), 'stream table')} dropped." if gone else "The lake was not watched.")
            return
        names = client.watch_lake(name, schedule=every, limits=Limits(small_bytes=small * 1024, small_files=too_many))
    done("The lake is watched by:")
    for watching, table in zip(names, TABLES, strict=True):
        done(f"  {watching}: {table.about}")


def _print_iceberg(lake: LakeInfo, client: Reader, json: bool, home: Path | None, dsn: str | None) -> None:
    from runnel.lake.outside import IcebergPlace, iceberg_lines

    if lake.encrypted:
        raise UserError(
            f"The files of lake {lake.name} are encrypted, which readers of Iceberg cannot open.",
            hint="DuckDB can: runnel lake info",
        )
    place, url = http_place(home, dsn)
    parts = IcebergPlace(f"{url}/iceberg", lake.name, str(place.token_file), dict(lake.store), lake.data_path)
    if json:
        print_json(parts.as_json())
        return
    for line in iceberg_lines(client.value, parts):
        done(line)


def _value(option: str, value: str | None) -> str:
    from runnel.lake.attached import HARMLESS

    if option in HARMLESS:
        if value is None:
            raise UserError(f"The value of {option} is missing.", hint=f"runnel lake set NAME {option} VALUE")
        return value
    if value is not None:
        raise UserError(
            f"{option} may be secret, and other users can see the arguments of a command.",
            hint="Leave the value out: it is asked for, or read from standard input. The one you typed is known now.",
        )
    secret = typer.prompt(option, hide_input=True) if sys.stdin.isatty() else sys.stdin.read().strip()
    if not secret:
        raise UserError(f"The value of {option} is empty.")
    return str(secret)


def _with_password(catalog: str | None, ask: bool) -> str | None:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    if catalog is None:
        return None
    try:
        words = conninfo_to_dict(catalog)
    except ProgrammingError:
        raise UserError(
            "--catalog cannot be read.", hint="Give it as 'host=... port=... dbname=... user=...'."
        ) from None
    if "password" in words:
        raise UserError(
            "--catalog holds a password, and other users can see the arguments of a command.",
            hint=f"Leave it out and add --password, or set {PASSWORD_VARIABLE}.",
        )
    given = typer.prompt("Password", hide_input=True) if ask else os.environ.get(PASSWORD_VARIABLE)
    if not given:
        note("No password is stored for this catalog: the engine connects without one.")
    return make_conninfo(catalog, **({"password": given} if given else {}))


def _fields(value: object) -> dict[str, object]:
    from dataclasses import fields

    return {each.name: getattr(value, each.name) for each in fields(value)}  # type: ignore[arg-type]
