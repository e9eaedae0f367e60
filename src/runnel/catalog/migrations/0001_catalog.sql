-- The catalog: what the engine knows, readable by everyone, writable by its owner alone.

CREATE SCHEMA IF NOT EXISTS pgtrickle;
CREATE SCHEMA IF NOT EXISTS pgtrickle_changes;
CREATE SCHEMA IF NOT EXISTS pgtrickle_state;

-- USAGE lets a role that was granted one table reach it; it opens no table by itself.
GRANT USAGE ON SCHEMA pgtrickle, pgtrickle_changes, pgtrickle_state TO PUBLIC;

CREATE TABLE pgtrickle.pgt_stream_tables (
    pgt_id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_relid          oid NOT NULL UNIQUE,
    pgt_schema         text NOT NULL,
    pgt_name           text NOT NULL,
    owner              oid NOT NULL,
    original_query     text NOT NULL,
    defining_query     text NOT NULL,
    schedule           text NOT NULL,
    refresh_mode       text NOT NULL CHECK (refresh_mode IN ('AUTO', 'FULL', 'DIFFERENTIAL')),
    effective_mode     text NOT NULL CHECK (effective_mode IN ('FULL', 'DIFFERENTIAL')),
    mode_reason        text,
    status             text NOT NULL CHECK (status IN ('INITIALIZING', 'ACTIVE', 'SUSPENDED', 'ERROR')),
    is_populated       boolean NOT NULL DEFAULT false,
    needs_reinit       boolean NOT NULL DEFAULT false,
    settings           jsonb NOT NULL DEFAULT '{}',
    frontier           jsonb NOT NULL DEFAULT '{}',
    version            bigint NOT NULL DEFAULT 0,
    definition_version integer NOT NULL DEFAULT 1,
    uses_clock         boolean NOT NULL DEFAULT false,
    data_timestamp     timestamptz,
    last_refresh_at    timestamptz,
    consecutive_errors integer NOT NULL DEFAULT 0,
    last_error         text,
    retry_at           timestamptz,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (pgt_schema, pgt_name)
) WITH (fillfactor = 70);

COMMENT ON TABLE pgtrickle.pgt_stream_tables IS 'One row per stream table.';
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.frontier IS
    'Version of each source that the rows reflect; moves only in the transaction that changes the rows.';
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.version IS
    'Counts the refreshes that changed rows; the version of the change log.';

CREATE TABLE pgtrickle.pgt_dependencies (
    pgt_id        bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    source_relid  oid NOT NULL,
    source_type   text NOT NULL CHECK (source_type IN ('TABLE', 'STREAM_TABLE', 'VIEW')),
    source_name   text NOT NULL,
    columns_used  text[] NOT NULL DEFAULT '{}',
    column_types  text[] NOT NULL DEFAULT '{}',
    source_pgt_id bigint,
    PRIMARY KEY (pgt_id, source_relid)
);
CREATE INDEX pgt_dependencies_source ON pgtrickle.pgt_dependencies (source_relid);

COMMENT ON COLUMN pgtrickle.pgt_dependencies.column_types IS
    'Type of each used column at creation, as pgtrickle._columns prints it, in the order of columns_used.';

CREATE TABLE pgtrickle.pgt_refresh_history (
    refresh_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_id         bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    data_timestamp timestamptz,
    start_time     timestamptz NOT NULL,
    end_time       timestamptz,
    action         text NOT NULL CHECK (action IN ('DIFFERENTIAL', 'FULL', 'INITIAL', 'REINITIALIZE')),
    status         text NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED')),
    initiated_by   text NOT NULL CHECK (initiated_by IN ('SCHEDULER', 'MANUAL', 'INITIAL')),
    changes_read   bigint,
    rows_inserted  bigint,
    rows_deleted   bigint,
    reason         text,
    error_message  text,
    timings        jsonb,
    spark_jobs     integer
);
CREATE INDEX pgt_refresh_history_latest ON pgtrickle.pgt_refresh_history (pgt_id, refresh_id DESC);

CREATE TABLE pgtrickle.pgt_change_tracking (
    source_relid oid PRIMARY KEY,
    buffer       text NOT NULL,
    columns      jsonb NOT NULL,
    relations    oid[] NOT NULL,
    ancestors    oid[] NOT NULL DEFAULT '{}',
    guarded      boolean NOT NULL DEFAULT false
);

COMMENT ON TABLE pgtrickle.pgt_change_tracking IS 'One row per table whose changes are captured.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.columns IS
    'Captured columns: name, attnum (the buffer column is c<attnum>), type, and the expression of a generated one.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.relations IS 'The table and all descendants that carry its triggers.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.ancestors IS
    'Tables above it through which its rows can be written; they carry triggers that keep only its rows.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.guarded IS
    'Whether the trigger traps its own errors because no event trigger keeps it in step with DDL.';

CREATE TABLE pgtrickle.pgt_requests (
    request_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text NOT NULL,
    args        jsonb NOT NULL DEFAULT '{}',
    role        text NOT NULL,
    caller_pid  integer NOT NULL,
    settings    jsonb NOT NULL DEFAULT '{}',
    status      text NOT NULL DEFAULT 'PENDING'
                CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED', 'CANCELLED')),
    result      jsonb,
    error       jsonb,
    created_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX pgt_requests_open ON pgtrickle.pgt_requests (request_id) WHERE status = 'PENDING';

CREATE TABLE pgtrickle.pgt_engine (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    pid          integer NOT NULL,
    host         text,
    os_pid       integer,
    version      text,
    started_at   timestamptz NOT NULL DEFAULT now(),
    spark_master text
);

CREATE TABLE pgtrickle.pgt_settings (
    key   text PRIMARY KEY,
    value text
);

-- Whether writers need to wake the engine: 1 = it sleeps (the default), 2 = it will look by itself. A NOTIFY makes
-- commits queue for one lock, so under load writers must be able to leave it out. A sequence, because its value is
-- seen at once by everybody, outside of transactions, and reading it costs next to nothing.
CREATE SEQUENCE pgtrickle.pgt_wake_gate MINVALUE 1 MAXVALUE 2 START 1;
SELECT setval('pgtrickle.pgt_wake_gate', 1);

GRANT SELECT ON pgtrickle.pgt_stream_tables, pgtrickle.pgt_dependencies, pgtrickle.pgt_refresh_history,
    pgtrickle.pgt_change_tracking, pgtrickle.pgt_engine, pgtrickle.pgt_migrations TO PUBLIC;

-- No privilege may slip in through database-wide default privileges.
REVOKE ALL ON pgtrickle.pgt_settings, pgtrickle.pgt_requests FROM PUBLIC;
REVOKE ALL ON SEQUENCE pgtrickle.pgt_wake_gate FROM PUBLIC;
