"""Passwords among the arguments of this process, which every user of the machine can list."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def hide_argument(text: str) -> bool:
    """Write stars over an argument in the memory that `ps` reads; whether it was found.

    What was there between the start and this call may have been seen. Only Linux tells where its copy of the
    arguments lies; elsewhere nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    secret = text.encode()
    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        # Fields behind the program's name, which may hold spaces: arg_start and arg_end are the 48th and 49th of all.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
    except (OSError, IndexError, ValueError):
        return False
    at = shown.find(secret)
    if not secret or at < 0 or not start or end - start != len(shown):
        return False
    while at >= 0:
        ctypes.memset(start + at, ord("*"), len(secret))
        at = shown.find(secret, at + len(secret))
    return True
