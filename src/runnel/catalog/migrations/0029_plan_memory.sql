-- What the plans that an engine keeps prepared hold of its memory: told with each beat, shown by health_check().
CREATE OR REPLACE FUNCTION pgtrickle._pulse() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN NOT alive THEN 'ERROR' WHEN p.silence < interval '90 seconds' THEN 'OK'
                WHEN p.busy IS NOT NULL THEN 'WARN' ELSE 'ERROR' END,
           CASE WHEN NOT alive THEN 'no Runnel engine is running on this database; start one with: runnel up'
                WHEN p.silence < interval '90 seconds' THEN coalesce(p.who || p.plans, p.who, 'an engine is running')
                WHEN p.busy IS NOT NULL THEN
                    format('the engine has been at one piece of work since %s; calls wait until it is done', p.busy)
                ELSE format('the engine does not answer: its loop last came round %s ago, and calls hang; look at its '
                            'log and start it again', date_trunc('second', p.silence)) END
    FROM pgtrickle._engine_alive() alive
    CROSS JOIN LATERAL (
        SELECT clock_timestamp() - greatest((SELECT h.seen_at FROM pgtrickle.pgt_heartbeat h),
                                            (SELECT e.started_at FROM pgtrickle.pgt_engine e)) AS silence,
               pgtrickle._engine_busy() AS busy,
               (SELECT format('engine %s, process %s on %s, since %s', e.version, e.os_pid, e.host, e.started_at)
                FROM pgtrickle.pgt_engine e) AS who,
               (SELECT format('; prepared plans: %s kept in at most %s, %s made, %s times used again',
                              h.prepared_plans ->> 'plans',
                              pg_size_pretty(coalesce((h.prepared_plans ->> 'bytes')::bigint, 0)),
                              h.prepared_plans ->> 'made', h.prepared_plans ->> 'used')
                FROM pgtrickle.pgt_heartbeat h WHERE h.prepared_plans IS NOT NULL) AS plans) p
$$;
