-- An upload that its client has given up may still arrive, so its path stays known for a while after its transaction.
ALTER TABLE pgtrickle.pgt_lake_uploads ADD COLUMN given_up_at timestamptz;

COMMENT ON COLUMN pgtrickle.pgt_lake_uploads.given_up_at IS
    'When the transaction was found to be over, or the store last failed to answer; the file is looked for from then on.';
