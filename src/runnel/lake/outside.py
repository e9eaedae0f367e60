"""How others reach a lake: the statements that a DuckDB user pastes, the call that a Spark user makes, and the settings
of clients that read it as Iceberg.

No password and no key is ever in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from psycopg.conninfo import make_conninfo

from runnel.errors import RunnelError
from runnel.lake.duck import extension, literal

SECRET_WORDS = ("password", "sslpassword", "passfile", "application_name", "connect_timeout")


def attach_statements(
    name: str,
    schema: str,
    data_path: str,
    connection: Mapping[str, str],
    *,
    encrypted: bool = False,
    moved: bool = False,
    store: Mapping[str, str] | None = None,
    install: bool = False,
) -> list[str]:
    """LOAD, CREATE SECRET with placeholders where one is needed, ATTACH, USE.

    `moved` says that the catalog itself names another place for the files. Extensions come from this installation
    where it has them; with `install` DuckDB fetches its own from the internet, whatever its version.
    """
    scheme = data_path.partition("://")[0] if "://" in data_path else ""
    # DuckDB encrypts files with the cryptography of httpfs.
    needed = ["ducklake", "postgres", *(["httpfs"] if scheme in ("s3", "gs") or encrypted else [])]
    if scheme == "az":
        needed.append("azure")
    lines = [_load(each, install) for each in needed]
    if scheme:
        lines.append(_secret(scheme, data_path, store or {}))
    options = [f"METADATA_SCHEMA {literal(schema)}"]
    if moved:
        options += [f"DATA_PATH {literal(data_path)}", "OVERRIDE_DATA_PATH true"]
    target = literal("ducklake:postgres:" + conninfo(connection))
    return [*lines, f"ATTACH {target} AS {identifier(name)} ({', '.join(options)});", f"USE {identifier(name)};"]


def spark_call(schema: str, connection: Mapping[str, str]) -> str:
    """The call that gives a Spark user a DataFrame."""
    place = "ducklake:postgres:" + conninfo(connection)
    return f"runnel.spark.read_ducklake(spark, {place!r}, 'TABLE', schema={schema!r})"


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """Where a lake is read as Iceberg. The token is in a file, and never among the lines."""

    uri: str
    warehouse: str
    token_file: str
    store: Mapping[str, str]
    data_path: str

    @property
    def prefix(self) -> str:
        return quote(self.warehouse, safe="")

    @property
    def prefix_v2(self) -> str:
        return quote(f"{self.warehouse}@v2", safe="@")

    def as_json(self) -> dict[str, str]:
        return {
            "uri": self.uri,
            "warehouse": self.warehouse,
            "prefix": self.prefix,
            "prefix_v2": self.prefix_v2,
            "token_file": self.token_file,
        }


def iceberg_lines(client: str, place: IcebergPlace) -> list[str]:
    """What a user of a client pastes. Older readers take version 2 of the format: the warehouse with @v2 behind it."""
    remote = "://" in place.data_path
    match client:
        case "pyiceberg":
            return [
                "# pip install 'pyiceberg[pyarrow]'; for Iceberg 2: warehouse=" + repr(f"{place.warehouse}@v2"),
                "from pathlib import Path",
                "from pyiceberg.catalog.rest import RestCatalog",
                f"catalog = RestCatalog({place.warehouse!r}, uri={place.uri!r}, warehouse={place.warehouse!r},",
                f"    token=Path({place.token_file!r}).read_text().strip())",
                *(["# keys of the store: s3.access-key-id, s3.secret-access-key, or from the environment"] * remote),
                "catalog.load_table('main.TABLE').scan().to_arrow()",
            ]
        case "duckdb-iceberg":
            return [
                f"-- the token is in {place.token_file}; for Iceberg 2 attach {place.warehouse}@v2",
                _load("httpfs", False),
                _load("avro", False),
                _load("iceberg", False),
                *([_secret(place.data_path.partition("://")[0], place.data_path, place.store)] * remote),
                "CREATE SECRET runnel (TYPE iceberg, TOKEN '<token>');",
                f"ATTACH {literal(place.warehouse)} AS ice (TYPE iceberg, ENDPOINT {literal(place.uri)}, SECRET runnel,"
                " ACCESS_DELEGATION_MODE 'none', DEFAULT_SCHEMA 'main');",
                "SELECT * FROM ice.main.<table>;",
            ]
        case "spark":
            name = f"spark.sql.catalog.{place.warehouse}"
            return [
                "# Spark 4.1 with iceberg-spark-runtime-4.1_2.13 1.12; a column of type TIME makes a table unreadable",
                f"# the token is in {place.token_file}",
                f"{name}=org.apache.iceberg.spark.SparkCatalog",
                f"{name}.type=rest",
                f"{name}.uri={place.uri}",
                f"{name}.warehouse={place.warehouse}",
                f"{name}.token=<token>",
                *([f"{name}.io-impl=org.apache.iceberg.aws.s3.S3FileIO"] * remote),
            ]
        case _:
            file_system = (
                ["fs.native-s3.enabled=true", *_trino_store(place.store)]
                if remote
                else ["fs.native-local.enabled=true", "local.location=/"]
            )
            return [
                "# etc/catalog/lake.properties; before Trino 483, which reads deletes of Iceberg 3: add @v2",
                f"# the token is in {place.token_file}",
                "connector.name=iceberg",
                "iceberg.catalog.type=rest",
                f"iceberg.rest-catalog.uri={place.uri}",
                f"iceberg.rest-catalog.warehouse={place.warehouse}",
                "iceberg.rest-catalog.security=OAUTH2",
                "iceberg.rest-catalog.oauth2.token=<token>",
                *file_system,
            ]


def _trino_store(store: Mapping[str, str]) -> list[str]:
    lines = []
    if store.get("endpoint"):
        lines += [f"s3.endpoint={store['endpoint']}", "s3.path-style-access=true"]
    if store.get("region"):
        lines.append(f"s3.region={store['region']}")
    return [*lines, "s3.aws-access-key=<access key>", "s3.aws-secret-key=<secret key>"]


def conninfo(connection: Mapping[str, str]) -> str:
    """A connection string of keywords, without what is secret or of no use to others."""
    return make_conninfo("", **{key: value for key, value in connection.items() if key not in SECRET_WORDS})


def identifier(name: str) -> str:
    """A name as DuckDB takes it, quoted only where it must be."""
    plain = name.isidentifier() and name.isascii() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _load(name: str, install: bool) -> str:
    """The packages hold the extensions as DuckDB signed them: its shell loads them as they are."""
    package = {"postgres": "postgres_scanner"}.get(name, name)
    if not install:
        try:
            return f"LOAD {literal(str(extension(package)))};"
        except (ImportError, RunnelError):
            pass  # not among the packages, or not for this DuckDB
    return f"INSTALL {name}; LOAD {name};"


def _secret(scheme: str, data_path: str, store: Mapping[str, str]) -> str:
    bucket = f"{scheme}://{urlsplit(data_path).netloc}"
    if scheme == "az":
        account = literal(store.get("account_name", "<account name>"))
        return (
            f"CREATE SECRET (TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME {account}, SCOPE {literal(bucket)});"
        )
    words = [f"TYPE {'gcs' if scheme == 'gs' else 's3'}", "KEY_ID '<access key>'", "SECRET '<secret key>'"]
    if store.get("region"):
        words.append(f"REGION {literal(store['region'])}")
    if store.get("endpoint"):
        address = urlsplit(store["endpoint"])
        words += [f"ENDPOINT {literal(address.netloc or store['endpoint'])}", "URL_STYLE 'path'"]
        if address.scheme == "http":
            words.append("USE_SSL false")
    return f"CREATE SECRET ({', '.join(words)}, SCOPE {literal(bucket)});"
