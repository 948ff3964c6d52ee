-- The first schema. MySQL commits every statement by itself, so each can be run again after an interruption.
-- Statements end with a semicolon at the end of a line. {exact} is the server's collation that tells apart all that
-- differs, trailing spaces too: MySQL and MariaDB have no common name for it.
--
-- Ids are UUIDs as text, so that they can be typed in a query. Times that people read are DATETIME(3) in UTC, the
-- others milliseconds since 1970.

CREATE TABLE IF NOT EXISTS posthaste_schema (
    version    INT UNSIGNED NOT NULL PRIMARY KEY,
    applied_at DATETIME(3) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS meta (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS companies (
    id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    name            VARCHAR(255) NOT NULL,
    settings        MEDIUMTEXT NOT NULL,
    -- What a claim needs of the settings, as columns.
    weight          INT UNSIGNED NOT NULL,
    concurrency_max INT UNSIGNED,
    rate_per_sec    INT UNSIGNED,
    created_at      DATETIME(3) NOT NULL,
    disabled_at     DATETIME(3),
    UNIQUE KEY companies_by_name (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS api_keys (
    id           CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    company_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode         VARCHAR(8) NOT NULL,
    scopes       VARCHAR(255) NOT NULL,
    label        TEXT,
    hash         BINARY(32) NOT NULL,
    prefix       VARCHAR(255) NOT NULL,
    created_at   DATETIME(3) NOT NULL,
    expires_at   DATETIME(3),
    revoked_at   DATETIME(3),
    last_used_at DATETIME(3),
    UNIQUE KEY api_keys_by_hash (hash),
    KEY api_keys_by_company (company_id),
    CONSTRAINT api_keys_of_company FOREIGN KEY (company_id) REFERENCES companies (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS recipients (
    id              CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    company_id      CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    external_id     VARCHAR(255),
    document_hmac   VARCHAR(255),
    document_sealed BLOB,
    -- Addresses are ASCII; a mailbox is the same however it is spelled.
    email           VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    name            TEXT,
    legal_name      TEXT,
    created_at      DATETIME(3) NOT NULL,
    updated_at      DATETIME(3) NOT NULL,
    deleted_at      DATETIME(3),
    UNIQUE KEY recipients_by_external_id (company_id, external_id),
    UNIQUE KEY recipients_by_document (company_id, document_hmac),
    KEY recipients_by_email (company_id, email)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- No index holds a column that the way ENQUEUED, PROCESSING, SENT changes: those updates touch the row alone. Texts
-- that no index needs have no length that could be too short for what a provider answers.
CREATE TABLE IF NOT EXISTS email_outbox (
    id                    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    company_id            CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status                VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- The status while it is one that people search for: RETRY_SCHEDULED and every bad end.
    trouble               VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin,
    version               BIGINT UNSIGNED NOT NULL DEFAULT 1,
    fence                 BIGINT UNSIGNED NOT NULL DEFAULT 0,
    priority              TINYINT UNSIGNED NOT NULL,
    -- When an email that is still to be checked will be due.
    due_after_intake      BIGINT,
    expires_at            DATETIME(3) NOT NULL,
    -- The provider is about to be called, or was, under this lease.
    at_provider           BOOLEAN NOT NULL DEFAULT FALSE,
    -- Claims in a row that no worker ended.
    unfinished_starts     INT UNSIGNED NOT NULL DEFAULT 0,
    outcome_unknown       BOOLEAN NOT NULL DEFAULT FALSE,
    attempts              INT UNSIGNED NOT NULL DEFAULT 0,
    -- Where `attempts` stood at the last replay.
    attempts_before       INT UNSIGNED NOT NULL DEFAULT 0,
    mode                  VARCHAR(8) NOT NULL,
    to_email              VARCHAR(320) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
    subject               TEXT NOT NULL,
    created_at            DATETIME(3) NOT NULL,
    updated_at            DATETIME(3) NOT NULL,
    scheduled_at          DATETIME(3),
    sent_at               DATETIME(3),
    delivered_at          DATETIME(3),
    failed_at             DATETIME(3),
    -- Set while the email is among the dead letters.
    dead_at               DATETIME(3),
    ttl_ms                BIGINT NOT NULL,
    duration_ms           BIGINT UNSIGNED,
    provider              TEXT,
    provider_message_id   TEXT,
    ses_message_id        TEXT,
    last_failure_code     VARCHAR(191),
    last_failure_category VARCHAR(64),
    last_failure_reason   MEDIUMTEXT,
    last_failure_at       DATETIME(3),
    request_id            TEXT NOT NULL,
    external_id           VARCHAR(255),
    entity_id             VARCHAR(255),
    recipient_id          CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    recipient_external_id VARCHAR(255),
    size_bytes            BIGINT UNSIGNED NOT NULL,
    -- Where the content is: 'db:' is the table below.
    content_ref           TEXT NOT NULL,
    -- What no query looks at, as JSON.
    detail                MEDIUMTEXT NOT NULL,
    KEY outbox_by_company (company_id, id),
    KEY outbox_by_to (company_id, to_email, id),
    KEY outbox_by_external_id (company_id, external_id, id),
    KEY outbox_by_entity (company_id, entity_id, id),
    KEY outbox_by_recipient (company_id, recipient_external_id, id),
    KEY outbox_by_recipient_id (company_id, recipient_id, id),
    KEY outbox_by_code (company_id, last_failure_code, id),
    KEY outbox_troubled (company_id, trouble, id),
    KEY outbox_dead (dead_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- One narrow row for each email that waits (`due_at` is set) or is leased (`lease_until` is set), and none for others.
CREATE TABLE IF NOT EXISTS email_queue (
    email_id    CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    company_id  CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    priority    TINYINT UNSIGNED NOT NULL,
    due_at      BIGINT,
    expires_at  BIGINT NOT NULL,
    size_bytes  BIGINT UNSIGNED NOT NULL,
    lease_until BIGINT,
    lease_owner CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    KEY queue_waiting (company_id, priority, due_at, email_id),
    KEY queue_due (due_at),
    KEY queue_expiring (expires_at),
    KEY queue_leased (lease_until, company_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- The emails in ACCEPTED: what is still to be checked.
CREATE TABLE IF NOT EXISTS email_intake (
    email_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS email_tags (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tag        VARCHAR(255) NOT NULL,
    email_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (company_id, tag, email_id),
    KEY email_tags_by_email (email_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS contents (
    email_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    body     LONGBLOB NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS events (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    email_id   CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at DATETIME(3) NOT NULL,
    metadata   MEDIUMTEXT,
    KEY events_by_email (email_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

CREATE TABLE IF NOT EXISTS idempotency_keys (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key`      VARCHAR(256) NOT NULL,
    body_hash  BINARY(32) NOT NULL,
    answer     MEDIUMTEXT NOT NULL,
    keep_until BIGINT NOT NULL,
    PRIMARY KEY (company_id, `key`),
    KEY idempotency_keys_by_end (keep_until)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- How many emails a company with a daily limit handed in on a day (days since 1970).
CREATE TABLE IF NOT EXISTS company_days (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day        BIGINT NOT NULL,
    accepted   BIGINT NOT NULL,
    PRIMARY KEY (company_id, day)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- What a company with a rate limit started within the last second: steps of 10 ms and counts.
CREATE TABLE IF NOT EXISTS company_rates (
    company_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    starts     TEXT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- How many emails have each status, kept by every write: asking costs the same at any size. The count of a status is
-- the sum of its shards, so that transactions do not queue behind one row. DEAD_LETTER counts the dead letters.
CREATE TABLE IF NOT EXISTS status_counts (
    status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard  TINYINT UNSIGNED NOT NULL,
    emails BIGINT NOT NULL,
    PRIMARY KEY (status, shard)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={exact};

-- The names operators know from the other stores.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW email_events AS
    SELECT events.id, events.email_id AS email_log_id, events.type, events.metadata, email_outbox.to_email,
           email_outbox.entity_id, events.created_at
    FROM events JOIN email_outbox ON email_outbox.id = events.email_id;

CREATE OR REPLACE SQL SECURITY INVOKER VIEW email_logs AS
    SELECT id AS outbox_id, company_id, recipient_id, to_email, subject, status, provider, provider_message_id,
           ses_message_id, last_failure_code AS error_code, last_failure_reason AS error_reason, attempts,
           duration_ms, request_id, created_at, sent_at, failed_at
    FROM email_outbox;
