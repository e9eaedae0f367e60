"""The other way round: what a database has, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from runnel.errors import UserError
from runnel.model.names import UNDESCRIBED
from runnel.project.model import DEFAULT_SCHEMA, Model, written
from runnel.project.plan import present

EXAMPLE = {
    "runnel.toml": """\
# A database per environment. `runnel plan DIR --env staging` names one; without --env it is "default".
[environments.default]

[environments.staging]
schema_prefix = "staging_"
""",
    "marts/revenue.sql": """\
/* runnel
schedule = "5s"
description = "Revenue per region"
tags = ["finance"]

[[tests]]
unique = ["region"]
not_null = ["region", "total"]
*/
SELECT region, sum(amount) AS total, count(*) AS orders
FROM (VALUES (1, 'eu', 10.00), (2, 'us', 20.00)) AS o (id, region, amount)
GROUP BY region
""",
    "marts/large_regions.sql": """\
/* runnel
schedule = "5s"
*/
SELECT region, total FROM revenue WHERE total > 15
""",
}


def export(conn: psycopg.Connection[Any], root: Path) -> list[Path]:
    """Write a file for each stream table; what was written."""
    made = []
    (me,) = conn.execute("SELECT current_user").fetchone() or ("",)
    for name, each in present(conn).items():
        folder = root if name.schema == DEFAULT_SCHEMA else root / name.schema
        path = folder / f"{name.name}.sql"
        model = Model(
            path,
            name,
            each.original,
            each.schedule,
            each.mode,
            owner=None if each.owner == me else each.owner,
            description=None if each.comment == UNDESCRIBED else each.comment,
            tests=each.tests,
            options=each.options,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(model), encoding="utf-8")
        made.append(path)
    return made


def init_project(root: Path) -> list[Path]:
    """A folder with an example that works."""
    if root.exists() and any(root.iterdir()):
        raise UserError(f"{root} is not empty.", hint="Name a new folder.")
    made = []
    for name, text in EXAMPLE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made.append(path)
    return made
