"""`explain` and `validate`: the same plan that refreshes run, as text."""

from __future__ import annotations

import textwrap

from runnel.catalog.locale import read_locale
from runnel.catalog.rows import StreamTable
from runnel.engine.capturing import describe_capture
from runnel.engine.definitions import Caller, session_settings
from runnel.engine.operations import Operations
from runnel.engine.refreshes import Outlook
from runnel.errors import RunnelError
from runnel.explain.evaluators import render_evaluators
from runnel.explain.render import WIDTH, Evaluated, render_plan
from runnel.model.frontier import Frontier
from runnel.model.work import WorkDone
from runnel.plan.stage import Leaf, Plan, Relation
from runnel.refresh.maintained import Maintained
from runnel.sparksql.translate import Around, Translation, translate
from runnel.sql.compile import Compiled, compile_query


def explain(operations: Operations, name: str, caller: Caller) -> list[str]:
    """The plan as a tree, the delta rule of each operator, what is dear, and what a refresh would read now."""
    row = operations.settled(name, caller)
    table = operations.registry.maintained(operations.conn, row.pgt_id)
    lines = [
        f"Stream table {table.name}",
        f"Mode: {row.effective_mode} (requested {row.refresh_mode}), schedule {row.schedule}, status {row.status}",
    ]
    written = _as_written(operations, row, table)
    if row.mode_reason:
        lines.append(f"Why {row.effective_mode}: {row.mode_reason}")
    if row.effective_mode == "FULL" and written is not None and written.detail:
        lines += [f"  {line}" for line in written.detail.splitlines()]
    error = operations.access.last_error(row, caller)
    if error:
        lines.append(f"Last error: {error}")
    lines += describe_capture(operations.conn, row.pgt_id)
    published = operations.refresher.sinks.describe(operations.conn, row.pgt_id)
    if published is not None:
        lines.append(f"Published: {published}")
    if written is not None and written.notes:
        lines += ["Decided where the query leaves it open", *(f"  {line}" for n in written.notes for line in _fill(n))]
    lines.append("")
    if table.plan is None:
        lines.append("! Each refresh evaluates the query in PostgreSQL and writes only the rows that differ:")
        lines += [f"  {line}" for line in row.defining_query.splitlines()]
    else:
        if row.effective_mode == "FULL":
            lines += ["! Each refresh recomputes all of this, and writes only the rows that differ:", ""]
        lines += render_plan(table.plan, str(table.name), _evaluated(operations, table.plan))
    lines.append("")
    frontier = Frontier.from_json(row.frontier)
    if row.is_populated and row.status != "ERROR":
        outlook = operations.refresher.look(row.pgt_id)
        if outlook.stages:
            lines += [*render_evaluators(outlook.stages, outlook.threshold, recomputed=table.recomputes), ""]
        lines.append(_waiting(outlook))
        others = "".join(f", {name} {version}" for name, version in sorted(frontier.elsewhere.items()))
        lines.append(f"Frontier: postgres {frontier.snapshot}, clock {frontier.clock}{others}")
        lines += [*_lake_reads(operations, row), *_last_work(operations, row)]
    return lines


def _last_work(operations: Operations, row: StreamTable) -> list[str]:
    """By whom the latest refresh with work was evaluated."""
    found = operations.conn.execute(
        "SELECT action, work FROM pgtrickle.pgt_refresh_history WHERE pgt_id = %s AND work IS NOT NULL "
        "ORDER BY refresh_id DESC LIMIT 1",
        (row.pgt_id,),
    ).fetchone()
    return [] if found is None else [f"Last evaluated ({found[0]}): {WorkDone.from_json(found[1])}"]


def _evaluated(operations: Operations, plan: Plan) -> Evaluated:
    """Who computes many rows of what is not in PostgreSQL."""
    bytewise = read_locale(operations.conn).bytewise

    def who(leaf: Leaf) -> tuple[str, str] | None:
        if not isinstance(leaf.source, Relation) or leaf.source.origin.selectable:
            return None
        columns = leaf.source.columns
        found = translate(leaf, columns, Around(plan.settings, bytewise))
        if isinstance(found, Translation):
            return "Spark", ""
        short = {c.name: (0, 1) for c in columns}
        if isinstance(translate(leaf, columns, Around(plan.settings, bytewise, short)), Translation):
            return "Spark, if statistics leave room for the digits of", found.reason
        return "PostgreSQL, because of", found.reason

    return who


def _lake_reads(operations: Operations, row: StreamTable) -> list[str]:
    """What the latest refresh that read lakes had to open."""
    found = operations.conn.execute(
        "SELECT action, lake_io FROM pgtrickle.pgt_refresh_history WHERE pgt_id = %s AND lake_io IS NOT NULL "
        "ORDER BY refresh_id DESC LIMIT 1",
        (row.pgt_id,),
    ).fetchone()
    if found is None:
        return []
    action, io = found
    return [
        f"Last read of lakes ({action}): {io['files']} file(s), {io['bytes']} bytes, {io['inlined_rows']} inlined "
        f"row(s); {io['skipped']} file(s) left out by their statistics"
    ]


def _as_written(operations: Operations, row: StreamTable, table: Maintained) -> Compiled | None:
    """The query in the user's own text: what is maintained is decided already, and says nothing of it any more."""
    try:
        return compile_query(
            operations.conn,
            row.original_query,
            settings=row.settings,
            role=table.owner,
            kinds=operations.registry.kinds,
        )
    except RunnelError:
        return None


def _fill(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 4, subsequent_indent="  ", break_long_words=False)


def _waiting(outlook: Outlook) -> str:
    """What the sources say is new, as a refresh would ask them."""
    waiting = outlook.waiting
    total = sum(pending.rows for pending in waiting.values())
    each = ", ".join(f"{pending.rows} of {name}" for name, pending in waiting.items() if pending.rows)
    return f"A refresh now would read {total} changed row(s)" + (f": {each}" if each else "")


def validate(operations: Operations, query: str, caller: Caller) -> list[dict[str, str]]:
    """Check a query without creating anything: (check, result, severity) per finding."""
    compiled = compile_query(
        operations.conn, query, settings=session_settings(caller), role=caller.role, kinds=operations.registry.kinds
    )
    checks = [
        ("valid_query", f"{len(compiled.description.columns)} column(s)", "OK"),
        ("sources", ", ".join(str(r.name) for r in compiled.relations) or "none", "OK"),
    ]
    if compiled.plan is None:
        checks.append(("refresh_mode", f"FULL: {compiled.reason} cannot be maintained incrementally", "WARNING"))
        if compiled.detail:
            checks.append(("reason", compiled.detail, "INFO"))
        if compiled.entry and compiled.entry.way_out:
            checks.append(("way_out", compiled.entry.way_out, "INFO"))
    else:
        checks.append(("refresh_mode", f"DIFFERENTIAL in {len(compiled.plan.stages)} stage(s)", "OK"))
        if compiled.plan.uses_clock:
            checks.append(("clock", "rows enter and leave as time passes", "INFO"))
    checks += [("decided", note, "INFO") for note in compiled.notes]
    return [{"check": c, "result": r, "severity": s} for c, r, s in checks]
