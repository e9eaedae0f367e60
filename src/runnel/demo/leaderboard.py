"""A game's leaderboard, maintained once: the game backend reads it in PostgreSQL, the analysts from the lake."""

from __future__ import annotations

import random

from runnel.demo.story import Connection, Done, Question, Story, script

PLAYERS = 500
PAST_MATCHES = 20_000

_PAST = """
SELECT setseed(0.42);

INSERT INTO players (name, country)
SELECT format('%s%s', (ARRAY['Ada', 'Bo', 'Chi', 'Dov', 'Eli', 'Fay', 'Gus', 'Hui'])[1 + i % 8], i),
       (ARRAY['BR', 'DE', 'IN', 'JP', 'KE', 'US'])[1 + floor(random() * 6)]
FROM generate_series(1, {players}) i;

INSERT INTO matches (player_id, points, played_at)
SELECT 1 + floor(random() * {players})::int, floor(random() * 100), now() - random() * interval '30 days'
FROM generate_series(1, {matches});
"""

_PLAY = "INSERT INTO matches (player_id, points) VALUES (%(player)s, %(points)s) RETURNING id"
_CHEATER = """
DELETE FROM matches WHERE player_id = %(player)s AND id IN
    (SELECT id FROM matches WHERE player_id = %(player)s ORDER BY id LIMIT 20)
"""
_MOVE = "UPDATE players SET country = 'JP' WHERE id = %(player)s AND country <> 'JP'"

QUESTIONS = (
    Question(
        "the game's home screen: the top ten",
        "PostgreSQL",
        "SELECT player, country, score, matches FROM top_ten ORDER BY score DESC, player",
    ),
    Question(
        "the game's profile page: one player's place",
        "PostgreSQL",
        """
        SELECT l.player, l.score, l.best_match,
               1 + (SELECT count(*) FROM leaderboard b WHERE b.score > l.score) AS place
        FROM leaderboard l WHERE l.player_id = 7""",
    ),
    Question(
        "who plays where, from Parquet",
        "DuckDB",
        """
        SELECT country, count(*) AS players, sum(matches)::BIGINT AS matches, round(avg(score), 1) AS mean_score,
               quantile_disc(score, 0.9) AS p90_score
        FROM lake.leaderboard GROUP BY country ORDER BY country""",
    ),
    Question(
        "time travel: who gained most in the last 15 seconds",
        "DuckDB",
        """
        SELECT now.player, now.country, now.score - past.score AS gained, now.score
        FROM lake.leaderboard AS now
        JOIN lake.leaderboard AS past AT (VERSION => {then}) USING (player_id)
        ORDER BY gained DESC, now.player LIMIT 6""",
    ),
    Question(
        "the change feed since then",
        "DuckDB",
        """
        SELECT change_type, count(*) AS rows, count(DISTINCT snapshot_id) AS snapshots
        FROM lake.table_changes('leaderboard__rows', {then}, {now})
        GROUP BY 1 ORDER BY 1""",
    ),
)


def fill_game(connection: Connection) -> str:
    """Players and a month of matches."""
    connection.execute(_PAST.format(players=PLAYERS, matches=PAST_MATCHES).encode())
    return f"A game with {PLAYERS} players and {PAST_MATCHES:,} matches"


def play_match(connection: Connection, chance: random.Random) -> Done:
    """A match; now and then a cheater loses old ones, or a player moves."""
    # Some players are better and play more: that is what makes a leaderboard.
    player = min(1 + int(chance.expovariate(1 / 60)), PLAYERS)
    played = connection.execute(_PLAY, {"player": player, "points": chance.randint(0, 40 + player % 61)}).fetchone()
    assert played is not None
    other = 0
    if chance.random() < 0.01:
        other += connection.execute(_CHEATER, {"player": chance.randint(1, PLAYERS)}).rowcount
    if chance.random() < 0.02:
        other += connection.execute(_MOVE, {"player": chance.randint(1, PLAYERS)}).rowcount
    return Done(played[0], other)


def leaderboard_story() -> Story:
    """The demo of `runnel demo leaderboard`."""
    tables, stream_tables = script("leaderboard.sql").split("-- step 2", 1)
    return Story(
        name="leaderboard",
        unit="matches",
        rate=50,
        tables=tables,
        fill=fill_game,
        stream_tables="-- step 2" + stream_tables,
        act=play_match,
        questions=QUESTIONS,
        newest="SELECT max(last_match) FROM lake.leaderboard",
        probed="leaderboard",
    )
