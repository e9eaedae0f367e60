"""Secrets that are made once and kept in a file that only its owner can read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runnel.errors import UserError


def kept_secret(path: Path, new: Callable[[], str], *, way_out: str) -> str:
    """The secret in a file, made at the first time; a file that others can read is refused with a way out."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise UserError(f"{path} can be read by other users", hint=way_out) from None
        return path.read_text(encoding="ascii").strip()
    secret = new()
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret + "\n")
    return secret
