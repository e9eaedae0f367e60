-- Large changes are read by tasks, in slices of the buffer: whoever may read its columns may say where they are, too.

DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT DISTINCT c.oid::regclass AS buffer, acl.grantee
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'pgtrickle_changes'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'pgt_w'
        CROSS JOIN LATERAL aclexplode(a.attacl) acl
        WHERE c.relname ~ '^changes_[0-9]+$' AND acl.privilege_type = 'SELECT' AND acl.grantee <> 0
    LOOP
        EXECUTE format('GRANT SELECT (ctid) ON %s TO %I', granted.buffer, pg_get_userbyid(granted.grantee));
    END LOOP;
END
$$;
