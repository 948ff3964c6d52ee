-- Emails wait by route, the list of their providers: those of a provider in trouble wait apart and cost the others
-- nothing. What was accepted before waits without one, until the first claim puts it right.

-- As in email_queue, for when an email enters the queue again.
ALTER TABLE email_outbox ADD COLUMN route text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE email_queue ADD COLUMN route text COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX queue_waiting;
CREATE INDEX queue_waiting ON email_queue (route, company_id, priority, due_at, email_id) WHERE due_at IS NOT NULL;

-- What all processes know of a provider (version 0: nothing yet), and the starts of calls to it within the last second.
CREATE TABLE provider_notes (
    provider text COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL DEFAULT 0,
    note     text NOT NULL DEFAULT '',
    starts   text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
ALTER TABLE provider_notes ENABLE ROW LEVEL SECURITY;
