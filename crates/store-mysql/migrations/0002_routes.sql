-- Emails wait by route, the list of their providers: those of a provider in trouble wait apart and cost the others
-- nothing. What was accepted before waits without one, until the first claim puts it right.
--
-- A table is changed by one statement, as a whole or not at all: if the column is there already, all of it was done.
-- Routes are names of providers, which are ASCII; the longest still fits into an index of a server with small pages.

-- As in email_queue, for when an email enters the queue again. At the end, so that no row has to be written anew.
ALTER TABLE email_outbox
    ADD COLUMN route VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';

-- The index keeps its name: a program of the version before asks for it by name while it still runs.
ALTER TABLE email_queue
    ADD COLUMN route VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    DROP INDEX queue_waiting,
    ADD INDEX queue_waiting (route, company_id, priority, due_at, email_id);

-- What all processes know of a provider (version 0: nothing yet), and the starts of calls to it within the last second.
CREATE TABLE IF NOT EXISTS provider_notes (
    provider VARCHAR(255) NOT NULL PRIMARY KEY,
    version  BIGINT UNSIGNED NOT NULL,
    note     MEDIUMTEXT NOT NULL,
    starts   TEXT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};
