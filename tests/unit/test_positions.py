"""A place in the user's text is the right one, or none."""

from __future__ import annotations

import pytest

from runnel.sql import positions, registry


def column(place: str | None) -> tuple[int, int] | None:
    """(line, column), checked against the caret."""
    if place is None:
        return None
    head, shown, caret = place.split("\n")
    line, place_in_line = (int(n) for n in head.removeprefix("At line ").removesuffix(":").split(", column "))
    assert shown.startswith(f"LINE {line}: ")
    assert caret.strip() == "^"
    return line, place_in_line


def under_caret(place: str | None) -> str:
    assert place is not None
    _, shown, caret = place.split("\n")
    return shown[caret.index("^") :]


def test_pointer_counts_lines_and_columns() -> None:
    query = "SELECT a,\n       b\nFROM t"
    assert column(positions.pointer(query, query.index("b"))) == (2, 8)
    assert column(positions.pointer(query, 0)) == (1, 1)
    assert column(positions.pointer(query, 10_000)) == (3, 7), "behind the end"


def test_pointer_survives_tabs_wide_characters_and_long_lines() -> None:
    assert under_caret(positions.pointer("SELECT\tx", 7)) == "x"
    wide = positions.pointer("SELECT '日本', x", 13)
    assert wide.split("\n")[2].index("^") == len("LINE 1: SELECT '日本', ") + 2, "two characters are two columns wide"
    long = f"SELECT {', '.join(f'column_{i}' for i in range(50))}, nope, {', '.join(f'd{i}' for i in range(50))} FROM t"
    place = positions.pointer(long, long.index("nope"))
    assert under_caret(place).startswith("nope")
    assert all(len(line) < 100 for line in place.split("\n"))
    assert "..." in place


@pytest.mark.parametrize(
    ("entry", "query", "expected"),
    [
        (registry.TABLESAMPLE, "SELECT id FROM t tablesample system (10)", (1, 18)),
        (registry.TABLESAMPLE, "SELECT 'TABLESAMPLE', \"TABLESAMPLE\" FROM t -- TABLESAMPLE", None),
        (registry.TABLESAMPLE, "SELECT id /* TABLESAMPLE */\nFROM t\n  TABLESAMPLE BERNOULLI (1)", (3, 3)),
        (registry.ONLY, "SELECT id FROM ONLY t ORDER BY id FETCH FIRST 3 ROWS ONLY", (1, 11)),
        (registry.ONLY, "SELECT id FROM t ORDER BY id FETCH FIRST 3 ROWS ONLY", None),
        (registry.ROW_LOCK, "SELECT substring(k FROM 1 FOR 2) FROM t FOR NO KEY UPDATE", (1, 41)),
        (registry.CLOCK_VALUE, "SELECT id, now() AS n FROM t WHERE at > now() - interval '1 d'", (1, 12)),
        (registry.CLOCK_VALUE, "SELECT extract(day FROM now()) AS d FROM t", (1, 25)),
        (registry.CLOCK_VALUE, "SELECT id FROM t WHERE at > now()", None),
        (registry.CLOCK_SEVERAL, "SELECT 1 FROM t, u WHERE t.a < now() AND t.b + u.b < now()", None),
        (registry.CLOCK_SEVERAL, "SELECT 1 FROM t, u WHERE t.b + u.b < Current_Timestamp", (1, 38)),
        (registry.LATERAL, "SELECT 1 FROM t, LATERAL unnest(a), LATERAL (SELECT 1) x", (1, 37)),
        (registry.MATERIALIZED_VIEW, "SELECT 1", None),
    ],
)
def test_constructs(entry: registry.Entry, query: str, expected: tuple[int, int] | None) -> None:
    assert column(positions.entry_place(entry, query)) == expected


def test_what_may_stand_in_a_view_is_not_shown_elsewhere() -> None:
    query = "SELECT id FROM v WHERE n + m < now()"
    assert positions.entry_place(registry.CLOCK_SEVERAL, query) is not None
    assert positions.entry_place(registry.CLOCK_SEVERAL, query, ["SELECT id, now() AS n, m FROM t"]) is None


@pytest.mark.parametrize(
    ("name", "query", "expected"),
    [
        ("random", "SELECT 'random()', random() FROM t", (1, 20)),
        ("random", "SELECT random FROM t", None),
        ("Odd", 'SELECT s."Odd"(1), odd(2) FROM t', (1, 10)),
        ("age", "SELECT age(a, b), age(a) FROM t", None),
        ("age", "SELECT age(a) FROM t", (1, 8)),
    ],
)
def test_calls(name: str, query: str, expected: tuple[int, int] | None) -> None:
    assert column(positions.call_place(name, query)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT mv.id, mv FROM x, mv", (1, 26)),
        ("SELECT id FROM s.mv", (1, 16)),
        ('SELECT id FROM "mv"', (1, 16)),
        ("SELECT id AS mv FROM t WHERE mv > 1", None),
        ("SELECT t.id FROM t LEFT JOIN (mv JOIN u USING (id)) ON true", (1, 31)),
        ("SELECT extract(year FROM mv) FROM t", None),
        ("SELECT 1 FROM t WHERE x IN (1, mv)", None),
    ],
)
def test_tables(query: str, expected: tuple[int, int] | None) -> None:
    assert column(positions.table_place("mv", query)) == expected


def test_the_limit_without_an_order_is_found() -> None:
    query = "SELECT * FROM (SELECT id FROM t LIMIT 3) x ORDER BY id LIMIT 2"
    assert column(positions.unordered_limit(query)) == (1, 33)
    assert positions.unordered_limit("SELECT id FROM t ORDER BY id LIMIT 2") is None


def test_text_that_cannot_be_read_has_no_places() -> None:
    assert positions.entry_place(registry.TABLESAMPLE, "SELECT 'unfinished TABLESAMPLE") is None
