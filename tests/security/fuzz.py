"""Random objects of an ordinary role, each with the trap hung on it, under random stream tables."""

from __future__ import annotations

import random
from dataclasses import dataclass

TYPES = {
    "int": "{v}",
    "text": "({v})::text",
    "g.dom": "({v})::g.dom",
    "g.dom[]": "ARRAY[{v}]::g.dom[]",
    "g.comp": "ROW({v}, {v})::g.comp",
    "g.frange": "g.frange({v}, {v} + 3)",
    "g.mood": "(ARRAY['bad', 'fine']::g.mood[])[1 + ({v}) % 2]",
}

SHARED = """
CREATE TYPE g.comp AS (d g.dom, n int);
CREATE TYPE g.mood AS ENUM ('bad', 'fine');
CREATE FUNCTION g.diff(float8, float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM g.spring(); RETURN $1 - $2; END $$;
CREATE TYPE g.frange AS RANGE (subtype = float8, subtype_diff = g.diff);
CREATE FUNCTION g.eq(int, int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM g.spring(); RETURN $1 = $2; END $$;
CREATE OPERATOR g.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = g.eq);
CREATE FUNCTION g.add(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM g.spring(); RETURN coalesce($1, 0) + coalesce($2, 0); END $$;
CREATE AGGREGATE g.total(int) (SFUNC = g.add, STYPE = int, INITCOND = 0);
"""

ON_TABLES = (
    "CREATE INDEX ON {t} (k) WHERE g.ok(1)",
    "CREATE INDEX ON {t} (g.same(k))",
    "CREATE INDEX ON {t} ((k::g.dom))",
    "ALTER TABLE {t} ADD CHECK (g.ok(k))",
    "CREATE STATISTICS {t}_z{n} ON (g.same(k)), id FROM {t}",
    "CREATE TRIGGER z{n} BEFORE INSERT OR UPDATE ON {t} FOR EACH ROW EXECUTE FUNCTION g.fires()",
    "ALTER TABLE {t} ADD COLUMN d{n} int DEFAULT g.same(1)",
    "ALTER TABLE {t} ADD COLUMN e{n} g.dom DEFAULT 1",
    "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY; ALTER TABLE {t} FORCE ROW LEVEL SECURITY; "
    "CREATE POLICY p{n} ON {t} USING (g.ok(k))",
)

ON_STREAM_TABLES = (
    "CREATE INDEX ON {t} (g.same({c})) WHERE g.ok(1)",
    "ALTER TABLE {t} ADD CHECK (g.ok({c}))",
    "CREATE TRIGGER z{n} BEFORE INSERT OR DELETE ON {t} FOR EACH ROW EXECUTE FUNCTION g.fires()",
    "CREATE TRIGGER z{n} AFTER INSERT OR DELETE ON {t} FOR EACH STATEMENT EXECUTE FUNCTION g.fires()",
    "CREATE CONSTRAINT TRIGGER z{n} AFTER INSERT ON {t} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION g.fires()",
    "CREATE TABLE {t}_child{n} (CHECK (g.ok({c}))) INHERITS ({t})",
    "CREATE STATISTICS {t}_z{n} ON (g.same({c})), {c} FROM {t}",
)

QUERIES = (
    "SELECT a.id AS c, {value} AS v FROM {a} a WHERE {condition}",
    "SELECT a.k AS c, count(*) AS n, max({value}) AS v FROM {a} a GROUP BY a.k",
    "SELECT a.id AS c, {value} AS v FROM {a} a JOIN {b} b ON b.id = a.k WHERE {condition}",
    "SELECT a.id AS c, b.k FROM {a} a LEFT JOIN {b} b ON b.id = {scalar}",
    "SELECT DISTINCT {scalar} AS c FROM {a} a",
    "SELECT a.id AS c, sum({scalar}) OVER (PARTITION BY a.k ORDER BY a.id) AS s FROM {a} a",
    "SELECT a.k AS c, g.total({scalar}) AS s FROM {a} a GROUP BY a.k",
    "SELECT a.id AS c FROM {a} a WHERE EXISTS (SELECT FROM {b} b WHERE b.k = {scalar})",
    "SELECT {scalar} AS c FROM {a} a UNION ALL SELECT k FROM {b}",
    "SELECT id AS c FROM g.seen_through",
)
VALUES = ("g.same(a.k)", "a.k::g.dom", "ARRAY[a.k]::g.dom[]", "ROW(a.k, 1)::g.comp", "a.x", "g.frange(a.k, a.k + 2)")
SCALARS = ("g.same(a.k)", "(a.k::g.dom)::int", "a.k")
CONDITIONS = ("true", "g.ok(a.k)", "a.k OPERATOR(g.===) 1", "a.k::g.dom >= 0", "a.k >= 0")


@dataclass(frozen=True, slots=True)
class Scene:
    """Statements of the guest before and after its stream table is made, its query, and changes."""

    before: tuple[str, ...]
    query: str
    mode: str
    after: tuple[str, ...]
    changes: tuple[str, ...]


def scene(seed: int) -> Scene:
    """One random scene; the same for the same seed."""
    dice = random.Random(seed)
    before = [SHARED]
    for name in ("g.a", "g.b"):
        type_ = dice.choice(list(TYPES))
        value = TYPES[type_].format(v="i % 7")
        before.append(f"CREATE TABLE {name} (id int, k int, x {type_})")
        before.append(f"INSERT INTO {name} SELECT i, i % 5, {value} FROM generate_series(1, 15) i")
        for n, text in enumerate(dice.sample(ON_TABLES, dice.randint(0, 3))):
            before.append(text.format(t=name, n=n))
    before.append(f"CREATE VIEW g.seen_through AS SELECT id, {dice.choice(SCALARS)} AS k FROM g.a a")
    query = dice.choice(QUERIES).format(
        a="g.a", b="g.b", value=dice.choice(VALUES), scalar=dice.choice(SCALARS), condition=dice.choice(CONDITIONS)
    )
    after = [
        text.format(t="g.st", c="c", n=n) for n, text in enumerate(dice.sample(ON_STREAM_TABLES, dice.randint(0, 3)))
    ]
    if dice.random() < 0.3:  # noqa: PLR2004
        after.append("CREATE OR REPLACE VIEW g.seen_through AS SELECT id, g.same(k) AS k FROM g.b")
    changes = (
        "INSERT INTO g.a (id, k, x) SELECT id + 100, k, x FROM g.a WHERE id < 5",
        "UPDATE g.b SET k = k + 1 WHERE id < 4",
        "DELETE FROM g.a WHERE id = 3",
    )
    return Scene(tuple(before), query, dice.choice(("AUTO", "AUTO", "FULL")), tuple(after), changes)
