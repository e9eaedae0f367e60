-- What a watched lake tells about publications: how old their rows were when the snapshot was made.

ALTER TABLE pgtrickle.pgt_ducklake_provenance ADD COLUMN data_timestamp timestamptz;

COMMENT ON COLUMN pgtrickle.pgt_ducklake_provenance.data_timestamp IS
    'The moment that the published rows reflect; null for what a relay has written.';
