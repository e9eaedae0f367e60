"""Spark's master: a name that Spark would not understand, or a host that does not answer, is told before Spark starts.

Spark itself tries an unreachable master for a minute and then fails with a trace.
"""

from __future__ import annotations

import re
import shutil
import socket
from os import environ
from pathlib import Path

from runnel.errors import TransientError, UserError

_KNOWN = re.compile(
    r"local|local\[(?:\*|\d+)(?:\s*,\s*\d+)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s,/:]+:\d+(?:,[^\s,/:]+:\d+)*|yarn|k8s://\S+"
)
_SECONDS = 5.0


def check_master(master: str) -> None:
    """Refuse a master that cannot work, in one sentence."""
    if not _KNOWN.fullmatch(master):
        raise UserError(
            f"{master!r} is no Spark master.", hint="Use local[*], local[4], spark://host:7077, yarn or k8s://..."
        )
    if master.startswith("spark://"):
        _check_reachable(master)


def is_cluster(master: str) -> bool:
    """Whether tasks run in other processes than the engine's own Spark.

    >>> [is_cluster(master) for master in ("local", "local[*]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn")]
    [False, False, True, True, True]
    """
    return master != "local" and not master.startswith("local[")


def check_java() -> None:
    """Spark is started with JAVA_HOME's Java, or the first on the path."""
    home = environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        raise UserError(f"JAVA_HOME is {home}, and there is no Java in it.", hint="Correct or unset JAVA_HOME.")
    if not home and shutil.which("java") is None:
        raise UserError("Java is missing, which Spark needs.", hint="Install Java 17 or newer, or set JAVA_HOME.")


def _check_reachable(master: str) -> None:
    """One of several masters is enough: the others may be waiting for it to fail."""
    problems = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS).close()
        except (OSError, OverflowError) as error:
            problems.append(f"{address}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise TransientError(
        f"The Spark master {master} does not answer.",
        hint="Is it running, and are host and port right? `--master local[*]` needs no cluster.",
        detail="\n".join(problems),
    )
