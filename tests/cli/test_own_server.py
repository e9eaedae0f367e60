"""A server of one's own: scripts written for pg_trickle begin with CREATE EXTENSION."""

from __future__ import annotations

import shutil

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.conftest import Locked, Run
from tests.guarded import PASSWORD
from tests.versions import needs

CREATE = "CREATE EXTENSION pg_trickle"


@needs(18)
def test_init_leaves_the_files_of_the_extension(run: Run, locked: Locked, database: str) -> None:
    run("init", "--dsn", database, PGPASSWORD=PASSWORD)
    # The directory that this server's extension_control_path names; an administrator's server has nothing there.
    directory = locked.server.home.extensions
    shutil.rmtree(directory / "extension")
    with psycopg.connect(make_conninfo(database, password=PASSWORD), autocommit=True) as conn:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="is not available"):
            conn.execute(CREATE)
        said = run("init", "--extension-files", str(directory)).stdout
        assert str(directory / "extension" / "pg_trickle.control") in said
        conn.execute(CREATE)
        assert conn.execute("SELECT count(*) FROM pg_extension WHERE extname = 'pg_trickle'").fetchone() == (1,)
        conn.execute("DROP EXTENSION pg_trickle")
    assert "cannot be written" in run("init", "--extension-files", "/proc/nowhere", code=1).stderr
