-- What happens after sending: reports, what became of each recipient, suppressions, failures, alerts, templates, tallies.
-- Each statement can be run again: one that changes a table is done as a whole or not at all, and a column or index that
-- is there already says that it was done.
--
-- There are no triggers: with a binary log, which is the default, creating one takes rights that few users have.

-- Reports that bring no id of ours name the email by the provider's. No other index holds a column that SENT changes, and
-- this is all of it that SENT has to write. A prefix, since an id has no length; the whole is compared in the row.
ALTER TABLE email_outbox
    ADD INDEX outbox_by_message (provider_message_id(100));

ALTER TABLE recipients
    ADD INDEX recipients_by_company (company_id, deleted_at, id);

-- A company whose emails would harm everybody's standing is paused until a person resumes it.
ALTER TABLE companies
    ADD COLUMN paused_at DATETIME(3),
    ADD COLUMN pause_reason TEXT,
    ADD COLUMN resumed_at DATETIME(3);

-- Every report once, as it came. As long as its email is not found, `unmatched_since` is when it came, and `report` is
-- what was read of it.
CREATE TABLE IF NOT EXISTS reports (
    id              VARCHAR(255) NOT NULL PRIMARY KEY,
    provider        VARCHAR(255) NOT NULL,
    email_id        CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    received_at     DATETIME(3) NOT NULL,
    unmatched_since DATETIME(3),
    report          MEDIUMTEXT,
    payload         LONGBLOB NOT NULL,
    KEY reports_by_email (email_id),
    KEY reports_by_provider (provider, received_at),
    KEY reports_unmatched (unmatched_since)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- What was reported of each recipient of an email that went to several.
CREATE TABLE IF NOT EXISTS recipient_states (
    email_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address  VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    status   VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at       DATETIME(3) NOT NULL,
    PRIMARY KEY (email_id, address)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS suppressions (
    seq        BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address    VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    reason     TEXT NOT NULL,
    source     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    email_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    created_at DATETIME(3) NOT NULL,
    UNIQUE KEY suppressions_by_address (company_id, address),
    KEY suppressions_by_company (company_id, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- Emails that failed for good, by address and time (milliseconds since 1970); kept as long as they count.
CREATE TABLE IF NOT EXISTS address_failures (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address    VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    at         BIGINT NOT NULL,
    email_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (company_id, address, at, email_id),
    KEY address_failures_by_time (at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- Who counts the failures of an address holds the lock of its slot until the commit. Otherwise two who add one each at
-- the same time would not see each other's, and the third failure might be nobody's third.
CREATE TABLE IF NOT EXISTS failure_locks (
    slot INT UNSIGNED NOT NULL PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- Addresses that keep failing.
CREATE TABLE IF NOT EXISTS problems (
    seq               BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    company_id        CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address           VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    failures          INT UNSIGNED NOT NULL,
    since             DATETIME(3) NOT NULL,
    last_failure_at   DATETIME(3) NOT NULL,
    last_failure_code VARCHAR(191) NOT NULL,
    UNIQUE KEY problems_by_address (company_id, address),
    KEY problems_by_company (company_id, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- One alert per company, kind, mode, subject and window of time (counted from 1970).
CREATE TABLE IF NOT EXISTS alerts (
    seq         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id          CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    company_id  CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- An entity, or an address in lower case.
    subject     VARCHAR(320) NOT NULL,
    time_window BIGINT NOT NULL,
    email_id    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address     VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    reason      MEDIUMTEXT NOT NULL,
    created_at  DATETIME(3) NOT NULL,
    repeats     INT UNSIGNED NOT NULL DEFAULT 0,
    -- While nobody has seen to it.
    pending     BOOLEAN NOT NULL DEFAULT TRUE,
    -- The id of the email it was sent as, or why nobody was told.
    sent_as     CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    shown       TEXT,
    UNIQUE KEY alerts_by_id (id),
    UNIQUE KEY alerts_by_subject (company_id, kind, mode, subject, time_window),
    KEY alerts_by_company (company_id, seq),
    KEY alerts_pending (pending, seq),
    KEY alerts_by_time (created_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS templates (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name       VARCHAR(255) NOT NULL,
    version    INT UNSIGNED NOT NULL,
    source     LONGTEXT NOT NULL,
    created_at DATETIME(3) NOT NULL,
    PRIMARY KEY (company_id, name, version)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- The last version a name has had, also of those deleted.
CREATE TABLE IF NOT EXISTS template_names (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name       VARCHAR(255) NOT NULL,
    version    INT UNSIGNED NOT NULL,
    PRIMARY KEY (company_id, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- How often each event happened, by day (since 1970, UTC).
CREATE TABLE IF NOT EXISTS day_tallies (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode       VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day        BIGINT NOT NULL,
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    total      BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (company_id, mode, day, type),
    KEY day_tallies_by_day (day)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS entity_tallies (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    entity_id  VARCHAR(255) NOT NULL,
    day        BIGINT NOT NULL,
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    total      BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (company_id, entity_id, day, type)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- When an event last happened to a recipient: those since a day are the unique recipients since that day.
CREATE TABLE IF NOT EXISTS entity_recipients (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    entity_id  VARCHAR(255) NOT NULL,
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address    VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    last_day   BIGINT NOT NULL,
    PRIMARY KEY (company_id, entity_id, type, address),
    KEY entity_recipients_by_day (company_id, entity_id, type, last_day),
    KEY entity_recipients_by_address (company_id, address)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- What is still to be added to the tallies: only ever appended to, so that nobody who writes events waits for another who
-- does. Empty most of the time.
CREATE TABLE IF NOT EXISTS tally_notes (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode       VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day        BIGINT NOT NULL,
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Of emails about an entity, with the recipient's address.
    entity_id  VARCHAR(255),
    address    VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci,
    total      BIGINT UNSIGNED NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};
