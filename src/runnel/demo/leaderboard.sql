-- step 1: the tables of a game

CREATE TABLE players (
    id       SERIAL PRIMARY KEY,
    name     TEXT NOT NULL,
    country  TEXT NOT NULL
);

CREATE TABLE matches (
    id         BIGSERIAL PRIMARY KEY,
    player_id  INT NOT NULL REFERENCES players(id),
    points     INT NOT NULL,
    played_at  TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX ON matches (player_id);

-- step 2: the leaderboard, maintained once, for the game backend and for the analysts

CREATE EXTENSION IF NOT EXISTS pg_trickle;

SELECT pgtrickle.create_stream_table(
    name     => 'leaderboard',
    query    => $$
        SELECT
            p.id               AS player_id,
            p.name             AS player,
            p.country,
            SUM(m.points)      AS score,
            COUNT(*)           AS matches,
            MAX(m.points)      AS best_match,
            MAX(m.id)          AS last_match
        FROM players p
        JOIN matches m ON m.player_id = p.id
        GROUP BY p.id, p.name, p.country
    $$,
    schedule => '200ms',
    sink     => 'ducklake'
);

CREATE INDEX ON leaderboard (player_id);
CREATE INDEX ON leaderboard (score);

SELECT pgtrickle.create_stream_table(
    name     => 'top_ten',
    query    => $$
        SELECT player, country, score, matches FROM leaderboard ORDER BY score DESC, player_id LIMIT 10
    $$,
    schedule => '200ms',
    sink     => 'ducklake'
);
