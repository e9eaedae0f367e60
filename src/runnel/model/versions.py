"""What versions of PostgreSQL differ in, as far as Runnel is concerned: 15 to 18, the difference in this one place.

| from | what | before |
|---|---|---|
| 18 | MERGE returns rows as they were and as they are | a small merge of groups is several statements, not one |
| 18 | a deferred trigger fires with the role it was queued with | owners may leave none to COMMIT (catalog/owner.py) |
| 18 | `extension_control_path` | `CREATE EXTENSION pg_trickle` finds nothing on an embedded server |
| 17 | MERGE .. RETURNING, `merge_action()` | distinct values that come and go take a statement of their own |
| 17 | `transaction_timeout` | the setting is left out (catalog/sessions.py) |
| 17 | rules are kept without places in the text | they are taken out: the same view replaced is no change |
| 17 | the builtin locale provider | embedded servers have C.UTF-8 of libc, sorted by bytes |
| 16 | `any_value`, `pg_input_is_valid` | functions of the same meaning in schema pgtrickle_compat |
"""

from __future__ import annotations

from dataclasses import dataclass

OLDEST = 15
NEWEST = 18


@dataclass(frozen=True, slots=True)
class Version:
    """A server's version by its first number: 15, 16, .."""

    major: int

    @property
    def merge_returns(self) -> bool:
        """Whether a MERGE may say what it did to which row."""
        return self.major >= 17

    @property
    def merge_returns_both(self) -> bool:
        """Whether it may also say how the row was before."""
        return self.major >= 18

    @property
    def refuse_deferred(self) -> str:
        """A statement for plpgsql, after code of others: fails where that code may have left a trigger to COMMIT.

        From 18 on such a trigger runs with the role that queued it. Before, it would run as the engine.
        """
        return "" if self.major >= 18 else f"PERFORM {STAND_IN_SCHEMA}.refuse_deferred();"

    @property
    def has_any_value(self) -> bool:
        return self.major >= 16

    @property
    def any_value(self) -> str:
        """The aggregate that gives any of its values that is not NULL."""
        return "any_value" if self.has_any_value else f"{STAND_IN_SCHEMA}.any_value"

    @property
    def has_extension_path(self) -> bool:
        """Whether control files of extensions may lie elsewhere than in the installation."""
        return self.major >= 18

    @property
    def initdb_locale(self) -> tuple[str, ...]:
        """Options of initdb for text that is sorted by its bytes and has Unicode's letters."""
        if self.major >= 17:
            # The builtin provider sorts the same on every machine and in every version of libc.
            return ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        return ("--locale=C.UTF-8", "--lc-collate=C")

    def adapted(self, migration: str) -> str:
        """The text of a migration as this server understands it."""
        text = migration
        if self.major < 17:
            text = text.replace("-c transaction_timeout=0 ", "")
            text = text.replace("(r.ev_action::text,", f"({_WITHOUT_PLACES.format(tree='r.ev_action::text')},")
        if self.major < 16:
            text = text.replace("pg_input_is_valid(", f"{STAND_IN_SCHEMA}.input_is_valid(")
        return text

    @property
    def stand_ins(self) -> str:
        """SQL for what this server lacks, run once, before the first migration."""
        return (_WITHOUT_18 if self.major < 18 else "") + (_WITHOUT_16 if self.major < 16 else "")


def version_of(number: int) -> Version:
    """By `server_version_num`.

    >>> version_of(150018).any_value, version_of(180004).merge_returns_both
    ('pgtrickle_compat.any_value', True)
    """
    return Version(number // 10000)


NEWER_SETTINGS = ("transaction_timeout", "restrict_nonsystem_relation_kind")
"""Settings of the engine's sessions that not every server knows; the second came with minor releases."""

STAND_IN_SCHEMA = "pgtrickle_compat"

_WITHOUT_PLACES = "regexp_replace({tree}, ' :(stmt_)?(location|len) -?[0-9]+', '', 'g')"
_WITHOUT_18 = """
CREATE SCHEMA pgtrickle_compat;
GRANT USAGE ON SCHEMA pgtrickle_compat TO PUBLIC;
COMMENT ON SCHEMA pgtrickle_compat IS 'What later versions of PostgreSQL have themselves.';

CREATE FUNCTION pgtrickle_compat.refuse_deferred() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    written regclass;
BEGIN
    -- Whoever writes to a table holds this lock until the transaction ends. Foreign keys are checked as the table's
    -- owner, and a unique constraint over plain columns calls nobody's code.
    SELECT l.relation INTO written
    FROM pg_locks l JOIN pg_trigger t ON t.tgrelid = l.relation JOIN pg_proc p ON p.oid = t.tgfoid
    LEFT JOIN pg_index i ON i.indexrelid = t.tgconstrindid
    WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND t.tgdeferrable
      AND NOT (p.pronamespace = 'pg_catalog'::regnamespace AND starts_with(p.proname::text, 'RI_FKey_'))
      AND NOT (p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'unique_key_recheck'
               AND i.indexprs IS NULL AND i.indpred IS NULL)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a refresh may not leave the deferrable trigger or constraint of % to its COMMIT', written
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Make it NOT DEFERRABLE, or upgrade to PostgreSQL 18, where it runs with its own role.';
    END IF;
END
$$;
COMMENT ON FUNCTION pgtrickle_compat.refuse_deferred() IS
    'Before PostgreSQL 18 a deferred trigger runs with the rights of whoever commits: the engine.';
"""
_WITHOUT_16 = """
CREATE FUNCTION pgtrickle_compat.input_is_valid(value text, type text) RETURNS boolean
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('SELECT %L::%s', value, type::regtype);
    RETURN true;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION pgtrickle_compat.input_is_valid(text, text) IS 'What PostgreSQL 16 has as pg_input_is_valid.';

CREATE FUNCTION pgtrickle_compat.first_value(anyelement, anyelement) RETURNS anyelement
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT $1';
CREATE AGGREGATE pgtrickle_compat.any_value(anyelement) (
    sfunc = pgtrickle_compat.first_value, stype = anyelement, combinefunc = pgtrickle_compat.first_value,
    parallel = safe);
COMMENT ON AGGREGATE pgtrickle_compat.any_value(anyelement) IS 'What PostgreSQL 16 has as any_value.';
"""
