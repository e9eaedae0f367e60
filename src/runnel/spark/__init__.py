"""DELTA -> DATAFRAMES: sessions, evaluation of join trees, and the reads that run inside tasks.

For users: `read_ducklake` and `read_ducklake_changes`, lake tables and their changes as DataFrames; `write_ducklake`,
DataFrames as lake tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runnel.spark.ducklake.save import write_ducklake
    from runnel.spark.ducklake.tables import read_ducklake, read_ducklake_changes

__all__ = ["read_ducklake", "read_ducklake_changes", "write_ducklake"]


def __getattr__(name: str) -> Any:
    # Tasks import this package for what runs in them; they need neither a catalog nor a parser.
    if name == "write_ducklake":
        from runnel.spark.ducklake.save import write_ducklake

        return write_ducklake
    if name in __all__:
        from runnel.spark.ducklake import tables as ducklake

        return getattr(ducklake, name)
    raise AttributeError(name)
