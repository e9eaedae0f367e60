"""The catalog: schemas, numbered migrations (SQL), and typed access to the catalog tables."""

from __future__ import annotations

from runnel.catalog.migrate import migrate

__all__ = ["migrate"]
