"""Random code on random objects: wherever the engine meets it, it runs as its owner and as nobody else."""

from __future__ import annotations

import contextlib
import os

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.security import fuzz, trap

SCENES = int(os.environ.get("RUNNEL_FUZZ_SCENES", "12"))
FIRST = int(os.environ.get("RUNNEL_FUZZ_SEED", "1"))


@pytest.mark.slow
def test_random_code_never_runs_as_anybody_else(dsn: str, db: psycopg.Connection, client: runnel.Client) -> None:
    sprung = made = 0
    for seed in range(FIRST, FIRST + SCENES):
        scene = fuzz.scene(seed)
        trap.lay(db)
        with psycopg.connect(make_conninfo(dsn, user=trap.ROLE), autocommit=True) as guest:
            trap.enter(guest)
            for statement in scene.before:
                guest.execute(statement)
            with contextlib.suppress(psycopg.Error):
                guest.execute(
                    "SELECT pgtrickle.create_stream_table('g.st', %s, '@yearly', %s)", (scene.query, scene.mode)
                )
                made += 1
                for statement in (*scene.after, *scene.changes):
                    with contextlib.suppress(psycopg.Error):
                        guest.execute(statement)
                for _ in range(2):
                    with contextlib.suppress(runnel.RunnelError):
                        client.refresh("g.st")
                with contextlib.suppress(runnel.RunnelError):
                    client.verify("g.st")
        trap.analyse_state(db)
        seen = trap.counts(db)
        assert trap.harmless(seen), f"seed {seed}: {seen}, {scene}"
        sprung += seen.visits > 0
        with contextlib.suppress(runnel.RunnelError):
            client.drop_stream_table("g.st", cascade=True)
        db.execute("DROP SCHEMA g CASCADE")
    assert made > SCENES // 2, "most scenes must be stream tables"
    assert sprung > SCENES // 3, "and many traps must be met"
