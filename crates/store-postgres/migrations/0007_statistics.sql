-- While the server samples a table for its statistics, rows that have died since stay in every index, and claims walk past
-- all emails that were claimed meanwhile. A small sample is taken in a tenth of the time and tells these queries enough:
-- each goes along one index. Contents and events are found by their email alone.
DO $$
DECLARE
    sampled record;
BEGIN
    FOR sampled IN
        SELECT attrelid::regclass AS name, attname,
               CASE WHEN attrelid IN ('contents'::regclass, 'events'::regclass) THEN 0 ELSE 10 END AS target
        FROM pg_attribute
        WHERE attrelid IN ('email_outbox'::regclass, 'email_queue'::regclass, 'contents'::regclass, 'events'::regclass,
                           'provider_messages'::regclass)
          AND attnum > 0 AND NOT attisdropped
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS %s', sampled.name, sampled.attname, sampled.target);
    END LOOP;
END
$$;
