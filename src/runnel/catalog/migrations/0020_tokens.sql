-- Bearer tokens of the HTTP server. A token speaks for a role; only its hash is kept.

CREATE TABLE pgtrickle.pgt_tokens (
    token_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest     bytea NOT NULL UNIQUE,
    role       oid NOT NULL,
    label      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT current_user
);
REVOKE ALL ON pgtrickle.pgt_tokens FROM PUBLIC;

COMMENT ON TABLE pgtrickle.pgt_tokens IS 'Tokens of the HTTP server: whoever shows one reads what its role may SELECT.';
COMMENT ON COLUMN pgtrickle.pgt_tokens.digest IS 'SHA-256 of the token, which nobody but its holder has.';
