"""What versions of PostgreSQL differ in, as far as Runnel is concerned: 15 to 18, the difference in this one place.

| from | what | before |
|---|---|---|
| 18 | MERGE returns rows as they were and as they are | a small merge of groups is several statements, not one |
| 18 | `extension_control_path` | `CREATE EXTENSION pg_trickle` finds nothing on an embedded server |
| 18 | publications have stored generated columns | tables with generated columns are captured by triggers |
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
    def published_with(self) -> str:
        """What a publication is made with, so that all columns are in it that can be."""
        return "publish_generated_columns = stored" if self.major >= 18 else ""

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
        return _WITHOUT_16 if self.major < 16 else ""


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
_WITHOUT_16 = """
CREATE SCHEMA pgtrickle_compat;
GRANT USAGE ON SCHEMA pgtrickle_compat TO PUBLIC;
COMMENT ON SCHEMA pgtrickle_compat IS 'What later versions of PostgreSQL have themselves.';

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
