-- The first schema. Times are milliseconds since 1970 UTC, ids are UUIDs as text.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE companies (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    settings        TEXT NOT NULL,
    -- What a claim needs of the settings, as columns.
    weight          INTEGER NOT NULL,
    concurrency_max INTEGER,
    rate_per_sec    INTEGER,
    created_at      INTEGER NOT NULL,
    disabled_at     INTEGER
) WITHOUT ROWID;

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    company_id   TEXT NOT NULL REFERENCES companies (id),
    mode         TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    label        TEXT,
    hash         BLOB NOT NULL UNIQUE,
    prefix       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) WITHOUT ROWID;
CREATE INDEX api_keys_by_company ON api_keys (company_id);

CREATE TABLE recipients (
    id              TEXT PRIMARY KEY,
    company_id      TEXT NOT NULL,
    external_id     TEXT,
    document_hmac   TEXT,
    document_sealed BLOB,
    email           TEXT NOT NULL COLLATE NOCASE,
    name            TEXT,
    legal_name      TEXT,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    deleted_at      INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX recipients_by_external_id ON recipients (company_id, external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX recipients_by_document ON recipients (company_id, document_hmac) WHERE document_hmac IS NOT NULL;
CREATE INDEX recipients_by_email ON recipients (company_id, email);

-- The outbox is the queue. `seq` is the order of acceptance; every index carries it instead of the long id.
-- An email waits if and only if `due_at` is set, so the partial indexes hold the waiting ones alone and a claim
-- costs the same however many emails are finished.
CREATE TABLE email_outbox (
    seq                   INTEGER PRIMARY KEY,
    id                    TEXT NOT NULL,
    company_id            TEXT NOT NULL,
    status                TEXT NOT NULL,
    version               INTEGER NOT NULL DEFAULT 1,
    fence                 INTEGER NOT NULL DEFAULT 0,
    priority              INTEGER NOT NULL,
    due_at                INTEGER,
    -- When an email that is still to be checked will be due.
    due_after_intake      INTEGER,
    expires_at            INTEGER NOT NULL,
    lease_until           INTEGER,
    lease_owner           TEXT,
    -- The provider is about to be called, or was, under this lease.
    at_provider           INTEGER NOT NULL DEFAULT 0,
    -- Claims in a row that no worker ended.
    unfinished_starts     INTEGER NOT NULL DEFAULT 0,
    outcome_unknown       INTEGER NOT NULL DEFAULT 0,
    attempts              INTEGER NOT NULL DEFAULT 0,
    -- Where `attempts` stood at the last replay.
    attempts_before       INTEGER NOT NULL DEFAULT 0,
    mode                  TEXT NOT NULL,
    -- A mailbox is the same however it is spelled.
    to_email              TEXT NOT NULL COLLATE NOCASE,
    subject               TEXT NOT NULL,
    created_at            INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    scheduled_at          INTEGER,
    sent_at               INTEGER,
    delivered_at          INTEGER,
    failed_at             INTEGER,
    -- Set while the email is among the dead letters.
    dead_at               INTEGER,
    ttl_ms                INTEGER NOT NULL,
    duration_ms           INTEGER,
    provider              TEXT,
    provider_message_id   TEXT,
    ses_message_id        TEXT,
    last_failure_code     TEXT,
    last_failure_category TEXT,
    last_failure_reason   TEXT,
    last_failure_at       INTEGER,
    request_id            TEXT NOT NULL,
    external_id           TEXT,
    entity_id             TEXT,
    recipient_id          TEXT,
    recipient_external_id TEXT,
    size_bytes            INTEGER NOT NULL,
    -- Where the content is: 'db:' is the table below.
    content_ref           TEXT NOT NULL,
    -- What no query looks at, as JSON.
    detail                TEXT NOT NULL
);
CREATE UNIQUE INDEX outbox_by_id ON email_outbox (id);
CREATE INDEX outbox_by_company ON email_outbox (company_id);
CREATE INDEX outbox_by_to ON email_outbox (company_id, to_email);
CREATE INDEX outbox_due ON email_outbox (company_id, priority, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_expiring ON email_outbox (expires_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_in_flight ON email_outbox (company_id) WHERE status = 'PROCESSING';
CREATE INDEX outbox_intake ON email_outbox (status) WHERE status = 'ACCEPTED';
CREATE INDEX outbox_dead ON email_outbox (company_id, dead_at) WHERE dead_at IS NOT NULL;
-- Statuses a person searches for; the others are found near the top of the company's list. Written with OR, since
-- SQLite sees only then that a query for one of them is covered.
CREATE INDEX outbox_troubled ON email_outbox (company_id, status)
    WHERE status = 'RETRY_SCHEDULED' OR status = 'FAILED' OR status = 'INVALID' OR status = 'EXPIRED'
       OR status = 'CANCELLED' OR status = 'BOUNCED' OR status = 'COMPLAINED';
CREATE INDEX outbox_by_external_id ON email_outbox (company_id, external_id) WHERE external_id IS NOT NULL;
CREATE INDEX outbox_by_entity ON email_outbox (company_id, entity_id) WHERE entity_id IS NOT NULL;
CREATE INDEX outbox_by_recipient ON email_outbox (company_id, recipient_external_id)
    WHERE recipient_external_id IS NOT NULL;
CREATE INDEX outbox_by_recipient_id ON email_outbox (company_id, recipient_id) WHERE recipient_id IS NOT NULL;
CREATE INDEX outbox_by_code ON email_outbox (company_id, last_failure_code) WHERE last_failure_code IS NOT NULL;

CREATE TABLE email_tags (
    company_id TEXT NOT NULL,
    tag        TEXT NOT NULL,
    email_seq  INTEGER NOT NULL,
    PRIMARY KEY (company_id, tag, email_seq)
) WITHOUT ROWID;
CREATE INDEX email_tags_by_email ON email_tags (email_seq);

CREATE TABLE contents (
    email_seq INTEGER PRIMARY KEY,
    body      BLOB NOT NULL
);

CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    email_seq  INTEGER NOT NULL,
    type       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    metadata   TEXT
);
CREATE INDEX events_by_email ON events (email_seq);

CREATE TABLE idempotency_keys (
    company_id TEXT NOT NULL,
    key        TEXT NOT NULL,
    body_hash  BLOB NOT NULL,
    answer     TEXT NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (company_id, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_end ON idempotency_keys (keep_until);

-- How many emails a company with a daily limit handed in on a day (days since 1970).
CREATE TABLE company_days (
    company_id TEXT NOT NULL,
    day        INTEGER NOT NULL,
    accepted   INTEGER NOT NULL,
    PRIMARY KEY (company_id, day)
) WITHOUT ROWID;

-- What a company with a rate limit started within the last second: steps of 10 ms and counts.
CREATE TABLE company_rates (
    company_id TEXT PRIMARY KEY,
    starts     TEXT NOT NULL
) WITHOUT ROWID;

-- How many emails have each status, kept by every write: asking costs the same at any size.
CREATE TABLE status_counts (
    status TEXT PRIMARY KEY,
    emails INTEGER NOT NULL
) WITHOUT ROWID;

-- The names operators know from the other stores.
CREATE VIEW email_events AS
    SELECT events.id, email_outbox.id AS email_log_id, events.type, events.metadata, email_outbox.to_email,
           email_outbox.entity_id, events.created_at
    FROM events JOIN email_outbox ON email_outbox.seq = events.email_seq;

CREATE VIEW email_logs AS
    SELECT id AS outbox_id, company_id, recipient_id, to_email, subject, status, provider, provider_message_id,
           ses_message_id, last_failure_code AS error_code, last_failure_reason AS error_reason, attempts,
           duration_ms, request_id, created_at, sent_at, failed_at
    FROM email_outbox;
