"""Deletion vectors (Iceberg 3): bitmaps of deleted positions, in Puffin files."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

Ints = npt.NDArray[np.int64]

_MAGIC = b"PFA1"
_VECTOR = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True, slots=True)
class Vector:
    """Where a deletion vector is in its file."""

    offset: int
    length: int


def vector_blob(positions: Ints) -> bytes:
    """Positions (ascending) as the specification's blob: length, magic, 64-bit roaring bitmap, checksum."""
    parts = []
    highs = positions >> 32
    for key in np.unique(highs).tolist():
        bitmap = BitMap((positions[highs == key] & 0xFFFFFFFF).astype(np.uint32))
        bitmap.run_optimize()
        parts.append(key.to_bytes(4, "little") + bitmap.serialize())
    body = _VECTOR + len(parts).to_bytes(8, "little") + b"".join(parts)
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def write_puffin(path: str, positions: Ints) -> tuple[bytes, Vector]:
    """A file with the vector of one data file, and where in it that is."""
    blob = vector_blob(positions)
    described = {
        "type": "deletion-vector-v1",
        # The row's position, by its reserved field id; inherited numbers are -1.
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": len(_MAGIC),
        "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [described], "properties": {"created-by": "runnel"}}).encode()
    end = _MAGIC + footer + len(footer).to_bytes(4, "little") + bytes(4) + _MAGIC
    return _MAGIC + blob + end, Vector(len(_MAGIC), len(blob))


def read_vector(blob: bytes) -> Ints:
    """The positions of a blob, ascending; raises ValueError for what is none."""
    length = int.from_bytes(blob[:4], "big")
    body = blob[4 : 4 + length]
    if len(blob) != length + 8 or body[:4] != _VECTOR or zlib.crc32(body) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("not a deletion vector")
    parts, at = [], 12
    for _ in range(int.from_bytes(body[4:12], "little")):
        key = int.from_bytes(body[at : at + 4], "little")
        bitmap = BitMap.deserialize(body[at + 4 :])
        # What is behind a bitmap is not looked at; its own form has the same length.
        at += 4 + len(bitmap.serialize())
        parts.append(np.array(bitmap.to_array(), dtype=np.int64) | key << 32)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
