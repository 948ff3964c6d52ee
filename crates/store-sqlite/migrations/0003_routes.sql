-- Emails wait by route, the list of their providers, so that those of a provider in trouble cost nobody anything.
-- What was accepted before waits without one, until the first claim puts it right.

ALTER TABLE email_outbox ADD COLUMN route TEXT NOT NULL DEFAULT '';
DROP INDEX outbox_due;
CREATE INDEX outbox_due ON email_outbox (route, company_id, priority, due_at) WHERE due_at IS NOT NULL;

-- What all processes know of a provider, and the starts of calls to it within the last second.
CREATE TABLE provider_notes (
    provider TEXT PRIMARY KEY,
    version  INTEGER NOT NULL DEFAULT 0,
    note     TEXT NOT NULL DEFAULT '',
    starts   TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
