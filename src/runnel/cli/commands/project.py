"""`runnel plan`, `apply`, `export`, `test` and `init-project`: stream tables kept in files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.cli.output import JsonOption, done, note, print_json
from runnel.cli.target import DsnOption, HomeOption, reaching, resolve_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from runnel.project.plan import Change
    from runnel.project.project import Project

DirArgument = Annotated[Path, typer.Argument(help="The folder of SQL files.", metavar="DIR")]
EnvOption = Annotated[
    str | None, typer.Option("--env", help="An environment of DIR/runnel.toml.", metavar="NAME", show_default=False)
]
PruneOption = Annotated[
    bool, typer.Option("--prune", help="Drop stream tables in the project's schemas that no file speaks of.")
]
TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only files with this tag, and what they read; may be repeated.", metavar="NAME"),
]
CHANGES_WAIT = 2
_MARKS = {"create": "+", "alter": "~", "rebuild": "!", "rename": ">", "drop": "-", "keep": "="}


def plan(
    folder: DirArgument,
    env: EnvOption = None,
    tag: TagOption = None,
    prune: PruneOption = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 2 when there is something to do.")] = False,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Show what `runnel apply` would do, and change nothing."""
    from runnel.project.plan import make_plan

    project = _read(folder, env, tag, prune=prune)
    with _connected(project, home, dsn) as conn:
        changes = make_plan(conn, project, prune=prune)
    if json:
        print_json([_as_json(change) for change in changes])
    else:
        for change in changes:
            done(_line(change))
        todo = sum(change.verb != "keep" for change in changes)
        done(f"{todo} to do." if todo else "Nothing to do.")
    if any(change.problem for change in changes):
        raise typer.Exit(1)
    if exit_code and any(change.verb != "keep" for change in changes):
        raise typer.Exit(CHANGES_WAIT)


def apply(
    folder: DirArgument,
    env: EnvOption = None,
    tag: TagOption = None,
    prune: PruneOption = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="When a step fails, keep what was done before it; the next apply goes on.")
    ] = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Bring a folder of stream tables to a database: what is read first. What has not changed is left alone.

    The engine must run. When a step fails, those before it are undone.
    """
    from runnel.project.apply import apply as bring
    from runnel.project.plan import make_plan

    project = _read(folder, env, tag, prune=prune)
    with _connected(project, home, dsn) as conn:
        changes = make_plan(conn, project, prune=prune)
        count = bring(conn, changes, lambda change: done(_line(change)), done, keep=keep)
    done(f"{count} done." if count else "Nothing to do.")


def export(folder: DirArgument, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Write the stream tables of a database to files; `runnel plan` on them finds nothing to do."""
    import psycopg

    from runnel.project.export import export as write

    target = resolve_dsn(home, dsn)
    with reaching(target), psycopg.connect(target, autocommit=True, prepare_threshold=None) as conn:
        made = write(conn, folder)
    done(f"{len(made)} files in {folder}.")


def test(
    folder: DirArgument,
    env: EnvOption = None,
    tag: TagOption = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Run the tests that the headers name; end with 1 if one finds a violation."""
    from runnel.project.checks import run_checks

    project = _read(folder, env, tag)
    failed = 0
    with _connected(project, home, dsn) as conn:
        for outcome in run_checks(conn, project):
            failed += bool(outcome.violations)
            told = f"{outcome.violations} violations" if outcome.violations else "ok"
            done(f"{'✗' if outcome.violations else '✓'} {outcome.model}: {outcome.test}: {told}")
    if failed:
        raise typer.Exit(1)


def init_project(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder to make.", metavar="DIR", show_default=False)
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Only print the JSON schema of a header.")] = False,
) -> None:
    """Make a folder with an example that works."""
    from runnel.errors import UserError
    from runnel.project import model
    from runnel.project.export import init_project as make

    if schema:
        print_json(model.schema())
        return
    if folder is None:
        raise UserError("Which folder?", hint="runnel init-project DIR")
    for path in make(folder):
        note(str(path))
    done(f"Next: runnel plan {folder}, then runnel apply {folder}")


def _read(folder: Path, env: str | None, tags: list[str] | None, *, prune: bool = False) -> Project:
    from runnel.errors import UserError
    from runnel.project.project import read_project, tagged

    project = read_project(folder, env)
    if tags and prune:
        raise UserError("--prune looks at all files of a project.", hint="Leave out --tag.")
    return tagged(project, tags) if tags else project


@contextmanager
def _connected(project: Project, home: Path | None, dsn: str | None) -> Iterator[psycopg.Connection[Any]]:
    """The database of an option, else of the environment, else the one that every command talks to."""
    import psycopg

    chosen = dsn or (project.environment.dsn if home is None else None)
    target = resolve_dsn(home, chosen)
    with reaching(target), psycopg.connect(target, autocommit=True, prepare_threshold=None) as conn:
        yield conn


def _line(change: Change) -> str:
    reads = f", reads about {change.rows:,} rows" if change.rows is not None else ""
    took = ""
    if change.seconds is not None:
        known = change.before is not None and change.before.seconds is not None
        took = f", took {change.seconds:.1f} s last time" if known else f", about {change.seconds:.1f} s"
    why = f": {change.why}" if change.why else ""
    problem = f"\n    will fail: {change.problem}" if change.problem else ""
    return f"{_MARKS[change.verb]} {change.verb} {change.name}{why}{reads}{took}{problem}"


def _as_json(change: Change) -> dict[str, Any]:
    said = ("verb", "why", "rows", "seconds", "problem")
    tags = list(change.model.tags) if change.model is not None else []
    return {"name": str(change.name), **{key: getattr(change, key) for key in said}, "tags": tags}
