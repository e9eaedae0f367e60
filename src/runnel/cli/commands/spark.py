"""`runnel spark ...`: what a cluster needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runnel.cli.output import done, note

app = typer.Typer(
    help="Spark clusters. `runnel up` runs Spark on this machine; with --master it uses a cluster.",
    no_args_is_help=True,
)


@app.command()
def package(
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to write it. The name must end in .tar.gz; by default it says whom the archive fits.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Make the archive that executors need, so that workers need only Python.

    It holds this Runnel and the packages that its tasks import, as they are installed here. Nothing is downloaded.
    Workers must have the same minor version of Python, and the same kind of machine. Hand it to the engine:

    runnel up --dsn ... --master spark://host:7077 --spark-package FILE

    Spark then sends it to every executor, also on YARN and Kubernetes. FILE may be an address that the cluster
    opens itself, such as hdfs://... or s3a://... Make the archive anew after an upgrade of Runnel.
    """
    from runnel import __version__
    from runnel.spark.package import default_name, write_package

    target = output or Path(default_name(__version__))
    note("Packing ...")
    made = write_package(target, __version__)
    done(
        f"{target}: {target.stat().st_size / 2**20:.0f} MiB, for workers with Python {made.python} on {made.platform}."
    )
    done(f"  {', '.join(f'{name} {version}' for name, version in {'runnel': made.runnel, **made.packages}.items())}\n")
    done(f"Next:\n  runnel up --dsn ... --master spark://host:7077 --spark-package {target}")
