-- What happens after sending: reports, what became of each recipient, suppressions, failures, alerts, templates, tallies.

-- Reports that bring no id of ours name the email by the provider's.
CREATE INDEX outbox_by_message ON email_outbox (provider_message_id) WHERE provider_message_id IS NOT NULL;

CREATE INDEX recipients_by_company ON recipients (company_id) WHERE deleted_at IS NULL;

-- A company whose emails would harm everybody's standing is paused until a person resumes it.
ALTER TABLE companies ADD COLUMN paused_at INTEGER;
ALTER TABLE companies ADD COLUMN pause_reason TEXT;
ALTER TABLE companies ADD COLUMN resumed_at INTEGER;

-- Every report once, as it came. `report` is what was read of it, as long as its email is not found.
CREATE TABLE reports (
    id          TEXT PRIMARY KEY,
    provider    TEXT NOT NULL,
    email_seq   INTEGER,
    received_at INTEGER NOT NULL,
    payload     BLOB NOT NULL,
    report      TEXT
) WITHOUT ROWID;
CREATE INDEX reports_by_email ON reports (email_seq) WHERE email_seq IS NOT NULL;
CREATE INDEX reports_by_provider ON reports (provider, received_at);
CREATE INDEX reports_unmatched ON reports (received_at) WHERE report IS NOT NULL;

-- What was reported of each recipient of an email that went to several.
CREATE TABLE recipient_states (
    email_seq INTEGER NOT NULL,
    address   TEXT NOT NULL COLLATE NOCASE,
    status    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (email_seq, address)
) WITHOUT ROWID;

CREATE TABLE suppressions (
    seq        INTEGER PRIMARY KEY,
    company_id TEXT NOT NULL,
    address    TEXT NOT NULL COLLATE NOCASE,
    reason     TEXT NOT NULL,
    source     TEXT NOT NULL,
    email_id   TEXT,
    created_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX suppressions_by_address ON suppressions (company_id, address);

-- Emails that failed for good, by address; kept as long as they count.
CREATE TABLE address_failures (
    company_id TEXT NOT NULL,
    address    TEXT NOT NULL COLLATE NOCASE,
    at         INTEGER NOT NULL,
    email_id   TEXT NOT NULL,
    PRIMARY KEY (company_id, address, at, email_id)
) WITHOUT ROWID;
CREATE INDEX address_failures_by_time ON address_failures (at);

-- Addresses that keep failing.
CREATE TABLE problems (
    seq               INTEGER PRIMARY KEY,
    company_id        TEXT NOT NULL,
    address           TEXT NOT NULL COLLATE NOCASE,
    failures          INTEGER NOT NULL,
    since             INTEGER NOT NULL,
    last_failure_at   INTEGER NOT NULL,
    last_failure_code TEXT NOT NULL
);
CREATE UNIQUE INDEX problems_by_address ON problems (company_id, address);

-- One alert per company, kind, mode, subject and window. It is pending while `outcome` is not set.
CREATE TABLE alerts (
    seq          INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    company_id   TEXT NOT NULL,
    kind         TEXT NOT NULL,
    mode         TEXT NOT NULL,
    subject      TEXT NOT NULL,
    window       INTEGER NOT NULL,
    email_id     TEXT NOT NULL,
    address      TEXT NOT NULL,
    reason       TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    repeats      INTEGER NOT NULL DEFAULT 0,
    -- The id of the email it was sent as, or why nobody was told.
    sent_as      TEXT,
    shown        TEXT
);
CREATE UNIQUE INDEX alerts_by_subject ON alerts (company_id, kind, mode, subject, window);
CREATE INDEX alerts_pending ON alerts (seq) WHERE sent_as IS NULL AND shown IS NULL;

CREATE TABLE templates (
    company_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    source     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (company_id, name, version)
) WITHOUT ROWID;
-- The last version a name has had, also of those deleted.
CREATE TABLE template_names (
    company_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (company_id, name)
) WITHOUT ROWID;

-- How often each event happened, by day (since 1970, UTC), added up as it happens.
CREATE TABLE day_tallies (
    company_id TEXT NOT NULL,
    mode       TEXT NOT NULL,
    day        INTEGER NOT NULL,
    type       TEXT NOT NULL,
    total      INTEGER NOT NULL,
    PRIMARY KEY (company_id, mode, day, type)
) WITHOUT ROWID;
CREATE INDEX day_tallies_by_day ON day_tallies (day);
CREATE TABLE entity_tallies (
    company_id TEXT NOT NULL,
    entity_id  TEXT NOT NULL,
    day        INTEGER NOT NULL,
    type       TEXT NOT NULL,
    total      INTEGER NOT NULL,
    PRIMARY KEY (company_id, entity_id, day, type)
) WITHOUT ROWID;
CREATE INDEX entity_tallies_by_day ON entity_tallies (company_id, day);
-- When an event last happened to a recipient: those since a day are the unique recipients since that day.
CREATE TABLE entity_recipients (
    company_id TEXT NOT NULL,
    entity_id  TEXT NOT NULL,
    type       TEXT NOT NULL,
    address    TEXT NOT NULL COLLATE NOCASE,
    last_day   INTEGER NOT NULL,
    PRIMARY KEY (company_id, entity_id, type, address)
) WITHOUT ROWID;
CREATE INDEX entity_recipients_by_day ON entity_recipients (company_id, entity_id, type, last_day);
