-- How many dead letters there are, kept instead of counted: an operator looks every few seconds, and there may be a million.
-- Several rows, like the counts per status, and a table of its own, so that its rows are always locked after those.
CREATE TABLE dead_letter_counts (
    shard  smallint PRIMARY KEY,
    emails bigint NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE dead_letter_counts ENABLE ROW LEVEL SECURITY;

CREATE FUNCTION count_dead_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dead_letter_counts (shard, emails)
    VALUES (pg_backend_pid() % 16, CASE WHEN TG_OP = 'UPDATE' AND NEW.dead_at IS NOT NULL THEN 1 ELSE -1 END)
    ON CONFLICT (shard) DO UPDATE SET emails = dead_letter_counts.emails + excluded.emails;
    RETURN NULL;
END
$$;

-- Deferred to the commit: whoever writes, this lock is its last.
CREATE CONSTRAINT TRIGGER dead_letter_came_or_went AFTER UPDATE OF dead_at ON email_outbox
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ((OLD.dead_at IS NULL) <> (NEW.dead_at IS NULL)) EXECUTE FUNCTION count_dead_letter();
CREATE CONSTRAINT TRIGGER dead_letter_deleted AFTER DELETE ON email_outbox
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.dead_at IS NOT NULL) EXECUTE FUNCTION count_dead_letter();

INSERT INTO dead_letter_counts (shard, emails) SELECT 0, count(*) FROM email_outbox WHERE dead_at IS NOT NULL;
