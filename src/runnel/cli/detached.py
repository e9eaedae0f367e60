"""`runnel up --detach`: the same command once more, in the background, until it says that it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runnel.errors import RunnelError

VARIABLE = "RUNNEL_DETACHED"
"""Set for the one in the background: its log goes to its file alone."""
READY = "Ready"
"""How what `up` prints begins when it is."""
_LOOK_SECONDS = 0.05


def is_detached() -> bool:
    """Whether this process was started in the background."""
    return bool(os.environ.get(VARIABLE))


def start(arguments: Sequence[str], log_file: Path) -> str:
    """Start `runnel` with these arguments; what it printed by the time it was ready. Raises if it ends before."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    told = log_file.with_suffix(".out")
    command = [sys.executable, "-m", "runnel.cli.main", *(each for each in arguments if each != "--detach")]
    environment = {**os.environ, VARIABLE: "1", "RUNNEL_LOG_FILE": str(log_file)}
    with os.fdopen(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        while READY not in _lines(told):
            if process.poll() is not None:
                raise RunnelError(f"It ended before it was ready: {told.read_text(errors='replace').strip()}")
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    said = told.read_text(errors="replace")
    return said[said.index(READY) :]


def _lines(told: Path) -> set[str]:
    """The first words of all lines."""
    return {line.partition(" ")[0] for line in told.read_text(errors="replace").splitlines()}
