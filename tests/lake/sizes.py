"""How much the proofs of the lake do: little in `make test-all`, all of it in `make soak-lake`."""

from __future__ import annotations

import os
import random
import time

FULL = os.environ.get("RUNNEL_LAKE_FULL") == "1"
"""Every mode, query, place and encryption, and the numbers below at their full size."""

REFRESHES = int(os.environ.get("RUNNEL_LAKE_REFRESHES", "50" if FULL else "4"))
"""Random refreshes of each stream table, in each place."""

KILLS = int(os.environ.get("RUNNEL_LAKE_KILLS", "25" if FULL else "15"))
"""SIGKILLs of an engine that publishes."""

SECONDS = float(os.environ.get("RUNNEL_LAKE_SECONDS", "180" if FULL else "10"))
"""How long clients of DuckDB write at the same time as the engine."""

SOURCE_STEPS = int(os.environ.get("RUNNEL_LAKE_STEPS", "120" if FULL else "10"))
"""Random operations of DuckDB on tables that stream tables read."""

SEED = int(os.environ.get("RUNNEL_LAKE_SEED", time.time_ns() % 1_000_000))


def chance(name: str) -> random.Random:
    """Random choices that the printed seed brings back."""
    print(f"RUNNEL_LAKE_SEED={SEED}")
    return random.Random(f"{SEED}/{name}")
