"""What `runnel up` can be told: its options, and what their texts mean."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from runnel.errors import UserError

MOST_WORKERS = 32


class Level(StrEnum):
    """What the log tells."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """What a line of the log looks like."""

    TEXT = "text"
    JSON = "json"


class Joins(StrEnum):
    """Who joins rows that all are in PostgreSQL."""

    POSTGRES = "postgres"
    SPARK = "spark"


class CdcMode(StrEnum):
    """How changes of tables are captured."""

    TRIGGER = "trigger"
    AUTO = "auto"
    WAL = "wal"


MasterOption = Annotated[
    str | None,
    typer.Option(help="Spark master: local[*] (the default), local[4], spark://host:7077 ...", metavar="MASTER"),
]
LevelOption = Annotated[Level | None, typer.Option(help="How much the log tells (info).", show_default=False)]
FormatOption = Annotated[
    Format | None, typer.Option(help="Lines for people (text) or for programs (json).", show_default=False)
]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the log here as well as to standard error. Above 16 MB it is set aside; five older ones are kept.",
        metavar="FILE",
        dir_okay=False,
    ),
]

DataPathOption = Annotated[
    str | None,
    typer.Option(
        help="Where the files of the default lake are kept: a folder, s3://..., gs://... or az://... "
        "(HOME/lake for the embedded server; none with --dsn). Chosen at the first start.",
        metavar="PLACE",
    ),
]

VerifyOption = Annotated[
    str | None,
    typer.Option(
        help="How often a stream table chosen by chance is compared with its query, say 1h; never unless given.",
        metavar="PERIOD",
    ),
]

TasksOption = Annotated[
    str | None,
    typer.Option(
        help="Work on more rows than this is done by Spark's tasks, from the source to the sink; 100000 unless given.",
        metavar="ROWS",
    ),
]

WorkersOption = Annotated[
    str | None,
    typer.Option(
        help="How many refreshes run side by side; as many as the machine has cores, and at least two, unless given.",
        metavar="NUMBER",
    ),
]

JoinsOption = Annotated[
    Joins | None,
    typer.Option(
        help="Who joins many rows that all are in PostgreSQL: postgres joins them where they are (the default), "
        "spark has them sent to its tasks. Rows of lakes are joined by Spark.",
        show_default=False,
    ),
]

CdcModeOption = Annotated[
    CdcMode | None,
    typer.Option(
        help="How changes of tables are captured whose stream tables do not say: by a trigger (the default), "
        "from the wal, or auto: from the WAL where that works.",
        show_default=False,
    ),
]

PackageOption = Annotated[
    str | None,
    typer.Option(
        help="What executors of a cluster need, sent to them when Spark starts: the archive that "
        "`runnel spark package` makes.",
        metavar="FILE",
    ),
]

HttpOption = Annotated[
    str | None,
    typer.Option(
        help="Where to serve HTTP: 127.0.0.1 unless given, with the port that was used last.", metavar="HOST:PORT"
    ),
]
NoHttpOption = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
CertOption = Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate (PEM).", metavar="FILE")]
KeyOption = Annotated[Path | None, typer.Option(help="The key of --http-cert (PEM).", metavar="FILE")]

DetachOption = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Start it in the background and return when it is ready; `runnel logs -f` shows what it says, "
        "`runnel down` stops it.",
    ),
]
StandbyOption = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="With --dsn: if another engine works on the database, wait for its end and take its place.",
    ),
]

LoopbackOption = Annotated[
    str | None,
    typer.Option(
        help="How the server reaches itself, when its socket will not do: 'host=... port=... user=...'. "
        "It is tried before it is stored.",
        metavar="CONNINFO",
    ),
]


def rows(text: str | None) -> int:
    """A number of rows."""
    plain = (text or "").replace("_", "").replace(",", "")
    if not plain.isdecimal():
        raise UserError(f"--tasks-above {text} is not a number of rows.", hint="Use one such as 100000.")
    return int(plain)


def workers(text: str | None) -> int | None:
    """A number of workers, or None: the machine decides."""
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise UserError(f"--workers {text} is not a number of workers.", hint=f"Use one from 1 to {MOST_WORKERS}.")
    return int(text)


def archive(text: str | None) -> str | None:
    """A file of this machine, or an address that the cluster opens itself."""
    return text if text is None or "://" in text else str(Path(text).expanduser().resolve())


def seconds(period: str | None) -> float | None:
    """A period such as 30s or 1h30m."""
    from runnel.schedule.spec import parse_schedule

    if period is None:
        return None
    schedule = parse_schedule(period)
    if schedule.kind != "duration":
        raise UserError(f"--verify-every {period} is not a period.", hint="Use one such as 10m or 1h30m.")
    return schedule.seconds
