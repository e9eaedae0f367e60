"""An engine as a process of its own: `python -m tests.robustness.engine_process DSN [MASTER]`.

Says `ready` on a line when it works, and `refused: ...` when it may not. It hands the engine a session of its own,
as an embedding program would, which skips the warm-up: the slow first refreshes are what a crash test wants to hit.
RUNNEL_TASKS_ABOVE moves the line between small and large.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa

import runnel
from runnel.errors import RunnelError
from runnel.spark.session import build_sessions


def main(dsn: str, master: str = "local[2]") -> int:
    """Start Spark, then the engine, and work until SIGTERM."""
    sessions = build_sessions(master)
    above = os.environ.get("RUNNEL_TASKS_ABOVE")
    # More at once than by default: the more is under way when it is killed.
    engine = runnel.Engine(dsn, spark=sessions.base, tasks_above=int(above) if above else None, workers=4)
    try:
        engine.start()
    except RunnelError as error:
        print(f"refused: {error}", flush=True)
        sessions.stop()
        return 1
    # As `runnel up` does: Arrow must not break off a read when the engine is told to stop.
    pa.enable_signal_handlers(False)
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    print("ready", flush=True)
    engine.run()
    engine.close()
    sessions.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
