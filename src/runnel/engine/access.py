"""Stream tables by the names that callers give them, and what these may do and know."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psycopg

from runnel.catalog import store
from runnel.catalog.masking import masked
from runnel.catalog.rows import StreamTable
from runnel.engine import definitions as defs
from runnel.engine.redefine import as_user_error
from runnel.engine.registry import Registry
from runnel.errors import RunnelError, UserError
from runnel.model.names import Name
from runnel.refresh.unit import RefreshFailed


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller may do, looked up on one connection."""

    conn: psycopg.Connection
    registry: Registry

    def known(self, text: str, caller: defs.Caller) -> StreamTable:
        """A stream table by the name its caller gives it."""
        self.registry.reload(self.conn)
        only = self.registry.find_only(text)
        if only is not None:
            return only
        name = defs.resolve_name(self.conn, text, caller)
        row = self.registry.find(name)
        if row is None and "." not in text:
            same = [r for r in self.registry.rows.values() if r.pgt_name == name.name]
            row = same[0] if len(same) == 1 else None
        if row is None:
            raise defs.not_found(name)
        return row

    def owned(self, text: str, caller: defs.Caller) -> StreamTable:
        """The same, if its caller may act as its owner."""
        row = self.known(text, caller)
        if not self.acts_as_owner(row, caller):
            raise UserError(f"must be owner of stream table {row.pgt_schema}.{row.pgt_name}", sqlstate="42501")
        return row

    def refuse_unseen_writes(self, row: StreamTable, closure: Collection[int], caller: defs.Caller) -> None:
        """Whoever has not committed what he wrote to a source would wait for himself."""
        sources = {oid for member in closure for oid in self.registry.relations_read[member]}
        defs.refuse_unseen_writes(self.conn, Name(row.pgt_schema, row.pgt_name), sorted(sources), caller)

    def acts_as_owner(self, row: StreamTable, caller: defs.Caller) -> bool:
        """Whether a caller may do what the owner may."""
        allowed = self.conn.execute("SELECT pg_has_role(%s, %s::oid, 'MEMBER')", (caller.role, row.owner)).fetchone()
        return bool(allowed and allowed[0])

    def last_error(self, row: StreamTable, caller: defs.Caller) -> str | None:
        """The last error, as far as the caller may read it."""
        return store.whole_error(self.conn, row.pgt_id) if self.acts_as_owner(row, caller) else row.last_error

    def told(self, row: StreamTable, failure: RefreshFailed, caller: defs.Caller) -> RunnelError:
        """Why a refresh failed, as far as the caller may know: it may be a table of others that this one reads."""
        failed = self.registry.rows.get(failure.table, row)
        cause = failure.cause if self.acts_as_owner(failed, caller) else masked(failure.cause)
        return as_user_error(Name(row.pgt_schema, row.pgt_name), cause)

    def refuse_suspended(self, row: StreamTable, caller: defs.Caller) -> None:
        """A stream table that does not take part cannot be refreshed."""
        name = f"{row.pgt_schema}.{row.pgt_name}"
        if row.status == "SUSPENDED":
            raise UserError(
                f"stream table {name} is suspended",
                hint=f"Run pgtrickle.resume_stream_table('{name}') first.",
                detail=self.last_error(row, caller),
                sqlstate="55000",
            )
        if row.status == "ERROR":
            raise UserError(
                f"stream table {name} is in ERROR: {self.last_error(row, caller)}",
                hint="Undo what broke it and run pgtrickle.resume_stream_table, change its query with "
                "pgtrickle.alter_stream_table, or drop it.",
                sqlstate="55000",
            )

    def may_act_as(self, role: str | None, caller: defs.Caller) -> bool:
        """Whether a caller may do what a role may."""
        found = self.conn.execute("SELECT pg_has_role(%s, %s, 'MEMBER')", (caller.role, role)).fetchone()
        return bool(role is not None and found and found[0])
