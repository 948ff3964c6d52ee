-- What happens after sending: reports, what became of each recipient, suppressions, failures, alerts, templates, tallies.
-- Addresses that people read stand as they were written and are compared without regard to case; those that only the
-- program reads are in lower case.

CREATE INDEX recipients_by_company ON recipients (company_id, id) WHERE deleted_at IS NULL;

-- A company whose emails would harm everybody's standing is paused until a person resumes it.
ALTER TABLE companies ADD COLUMN paused_at timestamptz;
ALTER TABLE companies ADD COLUMN pause_reason text;
ALTER TABLE companies ADD COLUMN resumed_at timestamptz;

-- Reports that bring no id of ours name the email by the provider's. A table of its own: an index of email_outbox over
-- provider_message_id would make every SENT touch all indexes of that table. An email that was sent again has several.
-- Not unique, since nothing is lost by a line that is there twice, and looking for it first would double the cost.
CREATE TABLE provider_messages (
    message_id text COLLATE "C" NOT NULL,
    email_id   uuid NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
CREATE INDEX provider_messages_by_id ON provider_messages (message_id);
CREATE INDEX provider_messages_by_email ON provider_messages (email_id);
INSERT INTO provider_messages (message_id, email_id)
    SELECT provider_message_id, id FROM email_outbox
    WHERE provider_message_id IS NOT NULL AND octet_length(provider_message_id) <= 1000;

-- Every report once, as it came. `report` is what was read of it, as long as its email is not found.
CREATE TABLE reports (
    id          text COLLATE "C" PRIMARY KEY,
    provider    text COLLATE "C" NOT NULL,
    email_id    uuid,
    received_at timestamptz NOT NULL,
    payload     bytea NOT NULL,
    report      text
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
CREATE INDEX reports_by_email ON reports (email_id) WHERE email_id IS NOT NULL;
CREATE INDEX reports_by_provider ON reports (provider, received_at);
CREATE INDEX reports_unmatched ON reports (received_at) WHERE report IS NOT NULL;

-- What was reported of each recipient of an email that went to several.
CREATE TABLE recipient_states (
    email_id uuid NOT NULL,
    address  text COLLATE "C" NOT NULL,
    status   text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL
);
CREATE UNIQUE INDEX recipient_states_by_address ON recipient_states (email_id, lower(address));

CREATE TABLE suppressions (
    company_id uuid NOT NULL,
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    address    text COLLATE "C" NOT NULL,
    reason     text NOT NULL,
    source     text COLLATE "C" NOT NULL,
    email_id   uuid,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (company_id, seq)
);
CREATE UNIQUE INDEX suppressions_by_address ON suppressions (company_id, lower(address));

-- Emails that failed for good, by address; kept as long as they count.
CREATE TABLE address_failures (
    company_id uuid NOT NULL,
    address    text COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    email_id   uuid NOT NULL,
    PRIMARY KEY (company_id, address, at, email_id)
);
CREATE INDEX address_failures_by_time ON address_failures (at);

-- Addresses that keep failing.
CREATE TABLE problems (
    company_id        uuid NOT NULL,
    seq               bigint GENERATED ALWAYS AS IDENTITY,
    address           text COLLATE "C" NOT NULL,
    failures          bigint NOT NULL,
    since             timestamptz NOT NULL,
    last_failure_at   timestamptz NOT NULL,
    last_failure_code text COLLATE "C" NOT NULL,
    PRIMARY KEY (company_id, seq)
);
CREATE UNIQUE INDEX problems_by_address ON problems (company_id, lower(address));

-- One alert per company, kind, mode, subject and window. It is pending while neither `sent_as` nor `shown` is set.
CREATE TABLE alerts (
    company_id  uuid NOT NULL,
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    id          uuid NOT NULL UNIQUE,
    kind        text COLLATE "C" NOT NULL,
    mode        text COLLATE "C" NOT NULL,
    subject     text COLLATE "C" NOT NULL,
    -- Counted from 1970.
    time_window bigint NOT NULL,
    email_id    uuid NOT NULL,
    address     text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL,
    repeats     bigint NOT NULL DEFAULT 0,
    -- The id of the email it was sent as, or why nobody was told.
    sent_as     uuid,
    shown       text,
    PRIMARY KEY (company_id, seq)
);
CREATE UNIQUE INDEX alerts_by_subject ON alerts (company_id, kind, mode, subject, time_window);
CREATE INDEX alerts_pending ON alerts (seq) WHERE sent_as IS NULL AND shown IS NULL;
CREATE INDEX alerts_by_time ON alerts (created_at);

CREATE TABLE templates (
    company_id uuid NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    source     text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (company_id, name, version)
);
-- The last version a name has had, also of those deleted.
CREATE TABLE template_names (
    company_id uuid NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    PRIMARY KEY (company_id, name)
);

-- How often each event happened, by day (since 1970, UTC).
CREATE TABLE day_tallies (
    company_id uuid NOT NULL,
    mode       text COLLATE "C" NOT NULL,
    day        bigint NOT NULL,
    type       text COLLATE "C" NOT NULL,
    total      bigint NOT NULL,
    PRIMARY KEY (company_id, mode, day, type)
) WITH (fillfactor = 50);
CREATE INDEX day_tallies_by_day ON day_tallies (day);
CREATE TABLE entity_tallies (
    company_id uuid NOT NULL,
    entity_id  text COLLATE "C" NOT NULL,
    day        bigint NOT NULL,
    type       text COLLATE "C" NOT NULL,
    total      bigint NOT NULL,
    PRIMARY KEY (company_id, entity_id, day, type)
) WITH (fillfactor = 70);
CREATE INDEX entity_tallies_by_day ON entity_tallies (company_id, day);
-- When an event last happened to a recipient: those since a day are the unique recipients since that day.
CREATE TABLE entity_recipients (
    company_id uuid NOT NULL,
    entity_id  text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    address    text COLLATE "C" NOT NULL,
    last_day   bigint NOT NULL,
    PRIMARY KEY (company_id, entity_id, type, address)
);
CREATE INDEX entity_recipients_by_day ON entity_recipients (company_id, entity_id, type, last_day);
CREATE INDEX entity_recipients_by_address ON entity_recipients (company_id, address);

-- What is still to be added to the tallies: only ever appended to, so that nobody who writes events waits for another who
-- does. No index: it is read from the beginning, by one at a time, and empty most of the time.
CREATE TABLE tally_notes (
    company_id uuid NOT NULL,
    day        bigint NOT NULL,
    total      bigint NOT NULL,
    mode       text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    -- Of emails about an entity, with the recipient's address.
    entity_id  text COLLATE "C",
    address    text COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1
);

-- The kinds that are counted are those of the program's list. SENT is noted by the statement that settles, many emails at
-- a time; the others are few, and come by many ways.
CREATE FUNCTION note_tally() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tally_notes (company_id, mode, entity_id, address, day, type, total)
        SELECT company_id, mode, entity_id, CASE WHEN entity_id IS NOT NULL THEN lower(to_email) END,
               floor(extract(epoch FROM NEW.created_at) / 86400)::bigint, NEW.type, 1
        FROM email_outbox WHERE id = NEW.email_id;
    RETURN NULL;
END;
$$;
CREATE TRIGGER note_tally AFTER INSERT ON events FOR EACH ROW
    WHEN (NEW.type IN ('DELIVERED', 'DELIVERY_DELAYED', 'BOUNCED', 'SOFT_BOUNCED', 'COMPLAINED', 'OPENED', 'CLICKED',
                       'FAILED', 'INVALID', 'EXPIRED', 'CANCELLED'))
    EXECUTE FUNCTION note_tally();

-- Without a policy nobody but the owner sees a row: so it stays with the raw reports and what only the program reads.
ALTER TABLE provider_messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE reports ENABLE ROW LEVEL SECURITY;
ALTER TABLE recipient_states ENABLE ROW LEVEL SECURITY;
ALTER TABLE suppressions ENABLE ROW LEVEL SECURITY;
ALTER TABLE address_failures ENABLE ROW LEVEL SECURITY;
ALTER TABLE problems ENABLE ROW LEVEL SECURITY;
ALTER TABLE alerts ENABLE ROW LEVEL SECURITY;
ALTER TABLE templates ENABLE ROW LEVEL SECURITY;
ALTER TABLE template_names ENABLE ROW LEVEL SECURITY;
ALTER TABLE day_tallies ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_tallies ENABLE ROW LEVEL SECURITY;
ALTER TABLE entity_recipients ENABLE ROW LEVEL SECURITY;
ALTER TABLE tally_notes ENABLE ROW LEVEL SECURITY;

CREATE POLICY own_companies ON suppressions FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON problems FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON alerts FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON day_tallies FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON entity_tallies FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
CREATE POLICY own_companies ON entity_recipients FOR SELECT
    USING (company_id IN (SELECT company_id FROM reporting_roles WHERE role_name = current_user));
-- As with events.
CREATE POLICY own_companies ON recipient_states FOR SELECT
    USING (EXISTS (SELECT 1 FROM email_outbox WHERE email_outbox.id = recipient_states.email_id));
