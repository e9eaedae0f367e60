"""How others reach a lake: the statements that a DuckDB user pastes, the call that a Spark user makes.

No password and no key is ever in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

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
