"""The typer application: registers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import os
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from runnel.cli.commands import bench, define, demo, inspect, lake, shell, stack
from runnel.errors import RunnelError


class Commands(TyperGroup):
    """The group that all commands belong to: errors raised on purpose are printed, not traced."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # `runnel status --debug` is what one types after a failure: accept it behind the command too.
        own = args[: args.index("--")] if "--" in args else args
        if "--debug" in own:
            args = ["--debug", *(each for each in own if each != "--debug"), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RunnelError as error:
            if _debugging(ctx):
                raise
            _fail(error)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            # Usage errors are the framework's to show; everything else is ours to answer for.
            if _debugging(ctx) or hasattr(error, "show"):
                raise
            _fail(
                RunnelError(
                    f"Unexpected {type(error).__name__}: {error}",
                    hint="Run the command again with --debug for the whole trace, and please report it.",
                )
            )


app = typer.Typer(
    name="runnel",
    cls=Commands,
    help="Stream tables: SQL query results that stay fresh over PostgreSQL, computed on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of an error.")] = False,
) -> None:
    """Stream tables: SQL query results that stay fresh over PostgreSQL, computed on Spark."""


STACK, TABLES, LOOK = "The stack", "Stream tables", "Looking inside"

for panel, name, command in (
    (STACK, "demo", demo.demo),
    (STACK, "up", stack.up),
    (STACK, "down", stack.down),
    (STACK, "init", stack.init),
    (STACK, "dsn", shell.dsn),
    (STACK, "version", shell.version),
    (TABLES, "create", define.create),
    (TABLES, "alter", define.alter),
    (TABLES, "drop", define.drop),
    (TABLES, "refresh", define.refresh),
    (TABLES, "validate", define.validate),
    (LOOK, "status", inspect.status),
    (LOOK, "history", inspect.history),
    (LOOK, "explain", inspect.explain),
    (LOOK, "verify", inspect.verify),
    (LOOK, "lineage", inspect.lineage),
):
    app.command(name, rich_help_panel=panel)(command)

app.add_typer(lake.app, name="lake", rich_help_panel=TABLES)
app.add_typer(bench.app, name="bench", rich_help_panel=LOOK)

# psql has options of its own: pass on whatever we do not know.
app.command(
    "psql",
    rich_help_panel=STACK,
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": ["--help"],
    },
)(shell.psql)


def _debugging(ctx: Any) -> bool:
    return bool(ctx.params.get("debug") or os.environ.get("RUNNEL_DEBUG"))


def _fail(error: RunnelError) -> NoReturn:
    from runnel.cli.output import print_error

    print_error(error)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
