"""The typer application: registers the commands and turns errors into one line and an exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from runnel.cli.commands import (
    bench,
    define,
    demo,
    inspect,
    lake,
    project,
    relay,
    service,
    shell,
    spark,
    stack,
    token,
    watch,
)
from runnel.cli.settings import Common, common
from runnel.errors import RunnelError

FLAGS = ("--debug",)
FILES = ("--config", "--dsn-file", "--password-file")


def hoisted(args: list[str]) -> list[str]:
    """The options that all commands share, moved before the command: `runnel status --debug` is what one types.

    >>> hoisted(["status", "--debug", "--config", "a.toml", "-x", "--dsn-file=b", "--", "--debug"])
    ['--debug', '--config', 'a.toml', '--dsn-file=b', 'status', '-x', '--', '--debug']
    """
    own = args[: args.index("--")] if "--" in args else args
    front, rest, words = [], [], iter(own)
    for word in words:
        if word in FLAGS or word.startswith(tuple(f"{name}=" for name in FILES)):
            front.append(word)
        elif word in FILES:
            front += [word, *(value for value in [next(words, None)] if value is not None)]
        else:
            rest.append(word)
    return [*front, *rest, *args[len(own) :]]


class Commands(TyperGroup):
    """The group that all commands belong to: errors raised on purpose are printed, not traced."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoisted(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Plain text: to import what draws boxes would take longer than all the rest.
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """All commands, by what they are about."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            panels.setdefault(panel, []).append((name, command.get_short_help_str(1000) if command else ""))
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

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
                _lost_connection(error)
                or RunnelError(
                    f"Unexpected {type(error).__name__}: {error}",
                    hint="Run the command again with --debug for the whole trace, and please report it.",
                )
            )


app = typer.Typer(
    name="runnel",
    cls=Commands,
    help="Stream tables: SQL query results that stay fresh over PostgreSQL, computed on Spark.\n\n"
    "Start with `runnel up`, then open `runnel psql` in another terminal.\n\n"
    "The options --debug, --config, --dsn-file and --password-file may also stand behind the command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from runnel import __version__

        typer.echo(f"runnel {__version__}")
        raise typer.Exit


def _file(help_text: str, name: str) -> Any:
    return typer.Option(f"--{name}", help=help_text, metavar="FILE", dir_okay=False)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of an error.")] = False,
    config: Annotated[
        Path | None, _file("Configuration (RUNNEL_CONFIG; ./runnel.toml, HOME/runnel.toml).", "config")
    ] = None,
    dsn_file: Annotated[Path | None, _file("Read the DSN from a file (RUNNEL_DSN_FILE).", "dsn-file")] = None,
    password_file: Annotated[
        Path | None, _file("Read the password of the DSN from a file (RUNNEL_PASSWORD_FILE).", "password-file")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Remember what holds for every command."""
    common.set(Common(config, dsn_file, password_file))


STACK, TABLES, PROJECT, LOOK = "The stack", "Stream tables", "Stream tables in files", "Looking inside"

for panel, name, command in (
    (STACK, "demo", demo.demo),
    (STACK, "up", stack.up),
    (STACK, "down", stack.down),
    (STACK, "logs", service.logs),
    (STACK, "relay", relay.relay),
    (STACK, "init", stack.init),
    (STACK, "dsn", shell.dsn),
    (STACK, "url", shell.url),
    (STACK, "config", shell.config),
    (STACK, "version", shell.version),
    (TABLES, "create", define.create),
    (TABLES, "alter", define.alter),
    (TABLES, "drop", define.drop),
    (TABLES, "refresh", define.refresh),
    (TABLES, "cancel", define.cancel),
    (TABLES, "validate", define.validate),
    (PROJECT, "init-project", project.init_project),
    (PROJECT, "plan", project.plan),
    (PROJECT, "apply", project.apply),
    (PROJECT, "export", project.export),
    (PROJECT, "test", project.test),
    (LOOK, "status", inspect.status),
    (LOOK, "history", inspect.history),
    (LOOK, "explain", inspect.explain),
    (LOOK, "verify", inspect.verify),
    (LOOK, "lineage", inspect.lineage),
    (LOOK, "watch", watch.watch),
):
    app.command(name, rich_help_panel=panel)(command)

app.add_typer(lake.app, name="lake", rich_help_panel=TABLES)
app.add_typer(token.app, name="token", rich_help_panel=STACK)
app.add_typer(spark.app, name="spark", rich_help_panel=STACK)
app.add_typer(service.app, name="service", rich_help_panel=STACK)
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


def _lost_connection(error: Exception) -> RunnelError | None:
    """A connection that failed or broke where nobody expected it to."""
    import psycopg

    from runnel.dsn import connection_failure

    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return connection_failure(error, "")
    return None


def _fail(error: RunnelError) -> NoReturn:
    from runnel.cli.output import print_error

    print_error(error)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
