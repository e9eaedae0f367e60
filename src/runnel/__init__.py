"""Runnel keeps the results of SQL queries fresh over PostgreSQL by computing only what changed, on Spark.

    import runnel

    client = runnel.connect("postgresql://...")
    client.create_stream_table("revenue", "SELECT day, sum(total) FROM orders GROUP BY day", schedule="5s")

`runnel.Engine` embeds the engine itself in a program or notebook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runnel.errors import RunnelError

if TYPE_CHECKING:
    from runnel.client import Client, connect
    from runnel.engine import Engine

__version__ = "0.1.0"

__all__ = ["Client", "Engine", "RunnelError", "__version__", "connect"]

# Imported at first use: a client needs no Spark, and `runnel --help` neither.
_LAZY = {"Client": "runnel.client", "connect": "runnel.client", "Engine": "runnel.engine"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
