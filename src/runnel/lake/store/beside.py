"""Where files lie that are generated from a lake's catalog: beside its data, never among it.

Other clients remove Parquet files below a data path that their catalog does not know. A bucket has no outside, so there
they are in a folder of their own; no generated file is called .parquet.
"""

from __future__ import annotations

ICEBERG = "iceberg"
KEPT = "kept.json"
"""In each folder of a table: the names of the files in it that the newest metadata needs."""


def beside(data_path: str) -> str:
    """The folder for generated files of the lake with this data path; ends with a slash.

    >>> beside("/srv/lake/"), beside("s3://bucket/a/lake/"), beside("s3://bucket/")
    ('/srv/lake.iceberg/', 's3://bucket/a/lake.iceberg/', 's3://bucket/.iceberg/')
    """
    scheme, mark, rest = data_path.rpartition("://")
    if mark and not rest.strip("/").partition("/")[2]:
        return f"{scheme}{mark}{rest.strip('/')}/.{ICEBERG}/"
    return f"{data_path.rstrip('/')}.{ICEBERG}/"


def uri(path: str) -> str:
    """A path as Iceberg's metadata has it: always with a scheme, and the same one everywhere.

    Readers compare the paths in manifests with those in delete files letter by letter.

    >>> uri("/a/b"), uri("s3://b/c")
    ('file:///a/b', 's3://b/c')
    """
    return f"file://{path}" if path.startswith("/") else path
