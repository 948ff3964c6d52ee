-- The first schema. What operators read is timestamptz; what only the program reads is milliseconds since 1970 UTC.
-- Texts are ordered by their bytes (COLLATE "C"): faster, and an upgrade of the system's locales cannot damage an index.
-- No foreign keys between the tables of emails: each would cost every email a lookup and a lock, and the verbs that
-- write these tables write them together.

CREATE TABLE meta (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE companies (
    id              uuid PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE,
    settings        text NOT NULL,
    -- What a claim needs of the settings, as columns.
    weight          bigint NOT NULL,
    concurrency_max bigint,
    rate_per_sec    bigint,
    created_at      timestamptz NOT NULL,
    disabled_at     timestamptz
);

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    company_id   uuid NOT NULL REFERENCES companies (id),
    mode         text NOT NULL,
    scopes       text NOT NULL,
    label        text,
    hash         bytea NOT NULL UNIQUE,
    prefix       text NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_by_company ON api_keys (company_id);

CREATE TABLE recipients (
    id              uuid PRIMARY KEY,
    company_id      uuid NOT NULL,
    external_id     text COLLATE "C",
    document_hmac   text COLLATE "C",
    document_sealed bytea,
    email           text COLLATE "C" NOT NULL,
    name            text,
    legal_name      text,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    deleted_at      timestamptz
);
CREATE UNIQUE INDEX recipients_by_external_id ON recipients (company_id, external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX recipients_by_document ON recipients (company_id, document_hmac) WHERE document_hmac IS NOT NULL;
CREATE INDEX recipients_by_email ON recipients (company_id, lower(email));

-- One row per email. Its id is a UUIDv7, so the order of ids is the order of acceptance.
--
-- No index may hold or depend on a column that changes on the way ENQUEUED -> PROCESSING -> SENT, not even in its
-- WHERE: then all three updates of that way are "heap only" and touch no index. So `status` is in no index; `trouble`
-- is, a copy of it for the statuses a person searches for. What a claim looks for is in email_queue.
CREATE TABLE email_outbox (
    id                    uuid PRIMARY KEY,
    company_id            uuid NOT NULL,
    status                text COLLATE "C" NOT NULL,
    version               bigint NOT NULL DEFAULT 1,
    fence                 bigint NOT NULL DEFAULT 0,
    expires_at            bigint NOT NULL,
    ttl_ms                bigint NOT NULL,
    size_bytes            bigint NOT NULL,
    duration_ms           bigint,
    -- Set while the email is still to be checked: when it will be due.
    due_after_intake      bigint,
    created_at            timestamptz NOT NULL,
    updated_at            timestamptz NOT NULL,
    scheduled_at          timestamptz,
    sent_at               timestamptz,
    delivered_at          timestamptz,
    failed_at             timestamptz,
    last_failure_at       timestamptz,
    -- Set while the email is among the dead letters.
    dead_at               timestamptz,
    attempts              integer NOT NULL DEFAULT 0,
    -- Where `attempts` stood at the last replay.
    attempts_before       integer NOT NULL DEFAULT 0,
    -- Claims in a row that no worker ended.
    unfinished_starts     integer NOT NULL DEFAULT 0,
    priority              smallint NOT NULL CHECK (priority BETWEEN 1 AND 10),
    -- The provider is about to be called, or was, under this lease.
    at_provider           boolean NOT NULL DEFAULT false,
    outcome_unknown       boolean NOT NULL DEFAULT false,
    recipient_id          uuid,
    mode                  text COLLATE "C" NOT NULL,
    to_email              text COLLATE "C" NOT NULL,
    subject               text NOT NULL,
    trouble               text COLLATE "C",
    provider              text COLLATE "C",
    provider_message_id   text COLLATE "C",
    ses_message_id        text COLLATE "C",
    last_failure_code     text COLLATE "C",
    last_failure_category text COLLATE "C",
    last_failure_reason   text,
    request_id            text COLLATE "C" NOT NULL,
    external_id           text COLLATE "C",
    entity_id             text COLLATE "C",
    recipient_external_id text COLLATE "C",
    -- As in email_queue, for when it enters the queue again.
    route                 text COLLATE "C" NOT NULL,
    -- Where the content is: 'db:' is the table `contents`.
    content_ref           text COLLATE "C" NOT NULL,
    -- What no query looks at, as JSON.
    detail                text NOT NULL
) WITH (
    -- Room in every page for the next version of its rows, so that updates stay heap only.
    fillfactor = 60,
    -- Versions are cleaned up page by page as rows are updated; vacuum is for what is deleted, and for the visibility
    -- map that index-only scans and later vacuums live on. At the default 20 % a table of 10 million rows would wait
    -- for 2 million.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);
CREATE INDEX outbox_by_company ON email_outbox (company_id, id);
-- A mailbox is the same however it is spelled.
CREATE INDEX outbox_by_to ON email_outbox (company_id, lower(to_email), id);
CREATE INDEX outbox_intake ON email_outbox (id) WHERE due_after_intake IS NOT NULL;
CREATE INDEX outbox_dead ON email_outbox (company_id, id) WHERE dead_at IS NOT NULL;
CREATE INDEX outbox_dead_since ON email_outbox (dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX outbox_troubled ON email_outbox (company_id, trouble, id) WHERE trouble IS NOT NULL;
CREATE INDEX outbox_by_external_id ON email_outbox (company_id, external_id, id) WHERE external_id IS NOT NULL;
CREATE INDEX outbox_by_entity ON email_outbox (company_id, entity_id, id) WHERE entity_id IS NOT NULL;
CREATE INDEX outbox_by_recipient ON email_outbox (company_id, recipient_external_id, id)
    WHERE recipient_external_id IS NOT NULL;
CREATE INDEX outbox_by_recipient_id ON email_outbox (company_id, recipient_id, id) WHERE recipient_id IS NOT NULL;
CREATE INDEX outbox_by_code ON email_outbox (company_id, last_failure_code, id) WHERE last_failure_code IS NOT NULL;

-- One narrow row per email that waits or is in flight. It waits if and only if `due_at` is set; one that is held is due
-- never (the year 9999).
--
-- Who locks both rows of a waiting email locks this one first, who locks both rows of one in flight locks the one in
-- email_outbox first: so claims, settlements and people never wait for each other in a circle.
CREATE TABLE email_queue (
    email_id    uuid PRIMARY KEY,
    company_id  uuid NOT NULL,
    lease_owner uuid,
    due_at      bigint,
    expires_at  bigint NOT NULL,
    lease_until bigint,
    size_bytes  bigint NOT NULL,
    -- That of the last claim, as in email_outbox.
    fence       bigint NOT NULL DEFAULT 0,
    priority    smallint NOT NULL,
    -- RETRY_SCHEDULED, not ENQUEUED.
    retrying    boolean NOT NULL DEFAULT false,
    -- The list of its providers: those of a provider in trouble wait apart and cost the others nothing.
    route       text COLLATE "C" NOT NULL
) WITH (
    -- Every row is updated once and deleted soon: the table is as small as the backlog only if vacuum comes often, and
    -- claims read its dead index entries until then. It costs little, since there is little to read.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000
);
CREATE INDEX queue_waiting ON email_queue (route, company_id, priority, due_at, email_id) WHERE due_at IS NOT NULL;
CREATE INDEX queue_expiring ON email_queue (expires_at) WHERE due_at IS NOT NULL;
-- Without the end of the lease, so that renewing one touches no index: in flight is never more than the workers hold.
CREATE INDEX queue_in_flight ON email_queue (company_id) WHERE due_at IS NULL;

CREATE TABLE email_tags (
    company_id uuid NOT NULL,
    tag        text COLLATE "C" NOT NULL,
    email_id   uuid NOT NULL,
    PRIMARY KEY (company_id, tag, email_id)
);
CREATE INDEX email_tags_by_email ON email_tags (email_id);

-- Inserted once, deleted by retention, never updated.
CREATE TABLE contents (
    email_id uuid PRIMARY KEY,
    body     bytea NOT NULL
) WITH (
    -- Up to two to a page a body stays in the row; only larger ones are cut into pieces elsewhere.
    toast_tuple_target = 4080,
    -- After the deletions of retention, and seldom for what was only inserted: so that the freezing of old rows, which
    -- must happen some day, comes in small portions.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_insert_scale_factor = 0.1
);
-- It is compressed already.
ALTER TABLE contents ALTER COLUMN body SET STORAGE EXTERNAL;

-- The history: inserted once, deleted with its email. `id` is the order in which it was written.
CREATE TABLE events (
    email_id   uuid NOT NULL,
    id         bigint GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL,
    type       text COLLATE "C" NOT NULL,
    metadata   jsonb,
    PRIMARY KEY (email_id, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1
);

CREATE TABLE idempotency_keys (
    company_id uuid NOT NULL,
    key        text COLLATE "C" NOT NULL,
    body_hash  bytea NOT NULL,
    answer     text NOT NULL,
    created_at bigint NOT NULL,
    keep_until bigint NOT NULL,
    PRIMARY KEY (company_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX idempotency_keys_by_end ON idempotency_keys (keep_until);

-- How many emails a company with a daily limit handed in on a day (days since 1970).
CREATE TABLE company_days (
    company_id uuid NOT NULL,
    day        bigint NOT NULL,
    accepted   bigint NOT NULL,
    PRIMARY KEY (company_id, day)
) WITH (fillfactor = 50);

-- What a company with a rate limit started within the last second: steps of 10 ms and counts.
CREATE TABLE company_rates (
    company_id uuid PRIMARY KEY,
    starts     text NOT NULL
) WITH (fillfactor = 50);

-- What all processes know of a provider (version 0: nothing yet), and the starts of calls to it within the last second.
CREATE TABLE provider_notes (
    provider text COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL DEFAULT 0,
    note     text NOT NULL DEFAULT '',
    starts   text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- How many emails have each status, kept by every write: asking costs the same at any size. Several rows per status, so
-- that transactions side by side seldom want the same one; the last thing a transaction writes, in the order of the
-- statuses, so that they never wait for each other in a circle.
CREATE TABLE status_counts (
    status text COLLATE "C" NOT NULL,
    shard  smallint NOT NULL,
    emails bigint NOT NULL,
    PRIMARY KEY (status, shard)
) WITH (
    -- A few rows, updated thousands of times per second.
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Who may report on which company: a role that is named here and was granted SELECT on the tables and views sees the
-- rows of these companies and no others. The owner of the tables, which is the program, sees everything.
CREATE TABLE reporting_roles (
    role_name  name NOT NULL,
    company_id uuid NOT NULL,
    PRIMARY KEY (role_name, company_id)
);

-- The names operators know from the other stores. They show each reader what the reader may see.
CREATE VIEW email_events WITH (security_invoker = true) AS
    SELECT events.id, email_outbox.id AS email_log_id, events.type, events.metadata, email_outbox.to_email,
           email_outbox.entity_id, events.created_at
    FROM events JOIN email_outbox ON email_outbox.id = events.email_id;

CREATE VIEW email_logs WITH (security_invoker = true) AS
    SELECT id AS outbox_id, company_id, recipient_id, to_email, subject, status, provider, provider_message_id,
           ses_message_id, last_failure_code AS error_code, last_failure_reason AS error_reason, attempts,
           duration_ms, request_id, created_at, sent_at, failed_at
    FROM email_outbox;

-- On every table: without a policy nobody but the owner sees a row, even where SELECT was granted by mistake.
ALTER TABLE meta ENABLE ROW LEVEL SECURITY;
ALTER TABLE companies ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE recipients ENABLE ROW LEVEL SECURITY;
ALTER TABLE email_outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE email_queue ENABLE ROW LEVEL SECURITY;
ALTER TABLE email_tags ENABLE ROW LEVEL SECURITY;
ALTER TABLE contents ENABLE ROW LEVEL SECURITY;
ALTER TABLE events ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE company_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE company_rates ENABLE ROW LEVEL SECURITY;
ALTER TABLE provider_notes ENABLE ROW LEVEL SECURITY;
ALTER TABLE status_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE reporting_roles ENABLE ROW LEVEL SECURITY;

-- The policies below read this table as the reporting role, hence the grant: a role sees the lines about itself.
GRANT SELECT ON reporting_roles TO PUBLIC;
CREATE POLICY own_lines ON reporting_roles FOR SELECT USING (role_name = current_user);
CREATE POLICY own_companies ON companies FOR SELECT
    USING (id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON recipients FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON email_outbox FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON email_queue FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON email_tags FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
-- An event belongs to whom its email belongs to; what the role may not see of email_outbox hides the events as well.
CREATE POLICY own_companies ON events FOR SELECT
    USING (EXISTS (SELECT 1 FROM email_outbox WHERE email_outbox.id = events.email_id));
