"""`runnel relay`: deliver messages of outboxes from another process, or another machine, than the engine's."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from runnel.cli import logs
from runnel.cli.output import done, note
from runnel.cli.settings import effective
from runnel.cli.target import DsnOption, HomeOption, chosen_home, reaching, resolve_dsn
from runnel.dsn import secrets

DRY_RUN_MESSAGES = 5


def relay(
    home: HomeOption = None,
    dsn: DsnOption = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Work on this pipeline alone; may be repeated.", metavar="NAME")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what waits in each pipeline, send nothing, and end.")
    ] = False,
) -> None:
    """Send what waits in outboxes to their sinks, and take in what arrives for inboxes, until Ctrl-C.

    `runnel up` does this, too. Any number of relays share the pipelines;
    each pipeline is worked on by one of them at a time.
    """
    from runnel.catalog.migrate import migrate
    from runnel.catalog.secrets import hold_key
    from runnel.relay.relay import Relay

    target = resolve_dsn(home, dsn)
    with reaching(target):
        migrate(target)
    if dry_run:
        _show(target, only or [])
        return
    values = effective(home=home, dsn=dsn)
    logs.configure(
        str(values["log_level"].text), str(values["log_format"].text), values["log_file"].text, secrets(target)
    )
    hold_key(chosen_home(home) if dsn is None else None)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    wanted = set(only or [])
    running = Relay(target, only=(lambda name: name in wanted) if wanted else None)
    running.start()
    done("The relay is at work.")
    stopping.wait()
    running.close()


def _show(dsn: str, only: list[str]) -> None:
    """What would be sent next."""
    from runnel.catalog.sessions import connect
    from runnel.relay.catalog import next_messages, pipelines, standing

    with reaching(dsn), connect(dsn, "runnel relay") as conn:
        found, forbidden = pipelines(conn)
        for each in found:
            if each.inbox or (only and each.name not in only):
                continue
            offset = (standing(conn, each) or (0, 0, None))[0]
            waiting = next_messages(conn, each, offset, DRY_RUN_MESSAGES)
            done(
                f"{each.name}: {each.place} -> {each.kind}, {'from ' + str(offset + 1) if waiting else 'nothing waits'}"
            )
            for message in waiting:
                done(f"  {message.envelope()}")
        for name in forbidden:
            note(f"{name}: its owner may not do this any more.")
