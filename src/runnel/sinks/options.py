"""Options of create and alter, as every sink reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.errors import UserError
from runnel.model.names import Name

COMPRESSIONS = ("zstd", "snappy", "gzip", "none")


def given(args: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Those of the options that a request names.

    >>> given({"name": "t", "sink": "ducklake", "delta_export_path": None}, ["sink", "delta_export_path"])
    {'sink': 'ducklake'}
    """
    return {option: args[option] for option in options if args.get(option) is not None}


def choice(args: Mapping[str, Any], option: str, allowed: Sequence[str], default: str) -> str:
    """An option with few values."""
    value = args.get(option)
    if value is None:
        return default
    if str(value).lower() not in allowed:
        raise UserError(f"invalid {option} {value!r}", hint=f"Use one of {', '.join(allowed)}.", sqlstate="22023")
    return str(value).lower()


def lake_schema(name: Name) -> str:
    """The lake's schema for a stream table: both sides have one that needs no mention."""
    return "main" if name.schema == "public" else name.schema
