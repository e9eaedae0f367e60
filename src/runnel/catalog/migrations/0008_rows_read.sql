-- What a refresh has read, by source.
ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN rows_read jsonb;

COMMENT ON COLUMN pgtrickle.pgt_refresh_history.rows_read IS
    'Rows read per source, changes included; null for a source that Spark''s tasks scanned, whose rows are not counted.';
