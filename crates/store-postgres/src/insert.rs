//! The statement that stores new emails: rows of every table from arrays, in one round trip. And the idempotency keys
//! that go with them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use model::{NewEmail, RecipientId, Status, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use store::{Acceptance, IdempotencyKey, KeptAnswer};
use uuid::Uuid;

use crate::accept::Prepared;
use crate::error::Fault;
use crate::lane::Lane;
use crate::people::{People, known_columns, known_people, write_people};
use crate::row::{at, clean, signed};

/// A new email with all that its rows are made of.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub email: &'a NewEmail,
    pub prepared: &'a Prepared,
    pub key: Option<&'a str>,
}

/// The rows of an email, from `email` and `body`, in the common part of both statements. The counts come from the rows
/// inserted, so they are written after them.
macro_rules! inserts {
    ($counted:literal) => {
        concat!("outbox AS (
             INSERT INTO email_outbox
                 (id, company_id, status, priority, expires_at, mode, to_email, subject, created_at, updated_at,
                  scheduled_at, ttl_ms, request_id, external_id, entity_id, recipient_id, recipient_external_id,
                  size_bytes, content_ref, detail, due_after_intake, route)
             SELECT id, company_id, status, priority, expires_at, mode, to_email, subject, created_at, created_at,
                    scheduled_at, ttl_ms, request_id, external_id, entity_id, recipient_id, recipient_external_id,
                    size_bytes, 'db:', detail, due_after_intake, route
             FROM email
             RETURNING status
         ), queue AS (
             INSERT INTO email_queue (email_id, route, company_id, priority, due_at, expires_at, size_bytes)
             SELECT id, route, company_id, priority, due_at, expires_at, size_bytes FROM email WHERE due_at IS NOT NULL
         ), history AS (
             INSERT INTO events (email_id, type, created_at) SELECT id, status, created_at FROM email
         ), content AS (
             INSERT INTO contents (email_id, body) SELECT email_id, body FROM body
         ), tags AS (
             INSERT INTO email_tags (company_id, tag, email_id) SELECT company_id, tag, email_id FROM tag
         ), counts AS (
             INSERT INTO status_counts (status, shard, emails)
             SELECT status, $26, count(*) FROM outbox WHERE ", $counted, " GROUP BY status ORDER BY status
             ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails
         )")
    };
}

/// What the arrays hold, an email to a row. Unnested in the list of a SELECT, here and in other statements of the hot path:
/// `FROM UNNEST($1, $2, …)` reads the same, but then the server first writes each array into a table of its own.
macro_rules! given {
    ($($more:literal)?) => {
        concat!(
            "(SELECT unnest($1::uuid[]) AS id, unnest($2::uuid[]) AS company_id, unnest($3::text[]) AS status,
                     unnest($4::smallint[]) AS priority, unnest($5::bigint[]) AS due_at,
                     unnest($6::bigint[]) AS expires_at, unnest($7::text[]) AS mode, unnest($8::text[]) AS to_email,
                     unnest($9::text[]) AS subject, unnest($10::timestamptz[]) AS created_at,
                     unnest($11::timestamptz[]) AS scheduled_at, unnest($12::bigint[]) AS ttl_ms,
                     unnest($13::text[]) AS request_id, unnest($14::text[]) AS external_id,
                     unnest($15::text[]) AS entity_id, unnest($16::uuid[]) AS recipient_id,
                     unnest($17::text[]) AS recipient_external_id, unnest($18::bigint[]) AS size_bytes,
                     unnest($19::text[]) AS detail, unnest($20::bigint[]) AS due_after_intake,
                     unnest($21::text[]) AS route",
            $($more,)?
            ") AS given "
        )
    };
}

/// A key whose time is over goes to the next who names it.
macro_rules! unless_kept {
    () => {
        "ON CONFLICT (company_id, key) DO UPDATE
             SET body_hash = excluded.body_hash, answer = excluded.answer, created_at = excluded.created_at,
                 keep_until = excluded.keep_until
             WHERE idempotency_keys.keep_until <= excluded.created_at
         RETURNING company_id, key"
    };
}

/// Bodies are unnested apart and row by row: they would not fit into the memory that a join may use.
const INSERT: &str = concat!(
    "WITH email AS (SELECT * FROM ",
    given!(),
    "), body AS NOT MATERIALIZED (
         SELECT unnest($1::uuid[]) AS email_id, unnest($22::bytea[]) AS body
     ), tag AS (
         SELECT unnest($23::uuid[]) AS company_id, unnest($24::text[]) AS tag, unnest($25::uuid[]) AS email_id
     ), ",
    inserts!("true"),
    " SELECT 1"
);

/// The same for emails that name people or come under keys: the statement decides about both.
///
/// The key of a request is taken if it is free or its time is over; emails whose key was not taken are left out, and what
/// they say of people with them. The counts wait for the people: whoever waits for a person must not hold a row of theirs.
/// Keys are taken in one order by everybody, so that two groups never wait for each other in a circle. `IS TRUE` keeps
/// the planner from making a loop of what is a look into a hash table.
///
/// A key that nobody has used, which is most of them, is inserted without `ON CONFLICT`: that costs a lock and a line of the
/// log more. If somebody takes it in the same moment, all is done again (`Fault::is_collision`).
const INSERT_DECIDING: &str = concat!(
    "WITH named AS (
         SELECT given.*, kept.key IS NOT NULL AS is_used
         FROM (SELECT unnest($33::uuid[]) AS company_id, unnest($34::text[]) AS key, unnest($35::bytea[]) AS body_hash,
                      unnest($36::text[]) AS answer, unnest($37::bigint[]) AS created_at,
                      unnest($38::bigint[]) AS keep_until) AS given
              LEFT JOIN LATERAL (
                  SELECT key FROM idempotency_keys
                  WHERE idempotency_keys.company_id = given.company_id AND idempotency_keys.key = given.key
                  OFFSET 0
              ) AS kept ON true
         ORDER BY given.company_id, given.key
     ), unused AS (
         INSERT INTO idempotency_keys (company_id, key, body_hash, answer, created_at, keep_until)
         SELECT company_id, key, body_hash, answer, created_at, keep_until FROM named WHERE NOT is_used
         RETURNING company_id, key
     ), outlived AS (
         INSERT INTO idempotency_keys (company_id, key, body_hash, answer, created_at, keep_until)
         SELECT company_id, key, body_hash, answer, created_at, keep_until FROM named WHERE is_used ",
    unless_kept!(),
    "), gained AS (
         SELECT company_id, key FROM unused UNION ALL SELECT company_id, key FROM outlived
     ), email AS (
         SELECT given.id, given.company_id, given.status, given.priority, given.due_at, given.expires_at, given.mode,
                given.to_email, given.subject, given.created_at, given.scheduled_at, given.ttl_ms, given.request_id,
                given.external_id, given.entity_id, given.recipient_external_id, given.size_bytes, given.detail,
                given.due_after_intake, given.route, ",
    known_columns!(),
    " FROM ",
    given!(
        ", unnest($27::uuid[]) AS person_id, unnest($28::text[]) AS document_hmac,
           unnest($29::bytea[]) AS document_sealed, unnest($30::text[]) AS name, unnest($31::text[]) AS legal_name,
           unnest($32::boolean[]) AS speaks, unnest($39::text[]) AS key"
    ),
    known_people!(),
    " WHERE key IS NULL OR (given.company_id, key) IN (SELECT company_id, key FROM gained)
     ), body AS NOT MATERIALIZED (
         SELECT email_id, body FROM (SELECT unnest($1::uuid[]) AS email_id, unnest($22::bytea[]) AS body) AS given
         WHERE (email_id IN (SELECT id FROM email)) IS TRUE
     ), tag AS (
         SELECT * FROM (SELECT unnest($23::uuid[]) AS company_id, unnest($24::text[]) AS tag,
                               unnest($25::uuid[]) AS email_id) AS given
         WHERE (email_id IN (SELECT id FROM email)) IS TRUE
     ), ",
    write_people!(),
    ", ",
    inserts!("(SELECT count(*) FROM people) >= 0"),
    " SELECT company_id, key FROM gained"
);

/// Emails whose keys, if they have any, are theirs already.
pub async fn insert(lane: &mut Lane, entries: &[Entry<'_>], people: &People<'_>) -> Result<(), Fault> {
    if people.are_named() {
        let keyless: Vec<Entry<'_>> = entries.iter().map(|entry| Entry { key: None, ..*entry }).collect();
        insert_deciding(lane, &keyless, people, &Keys::none()).await?;
    } else {
        let query = Columns::of(entries).bind(sqlx::query(INSERT), lane.shard);
        query.execute(&mut lane.connection).await?;
    }
    Ok(())
}

/// Gives back the keys that were gained.
pub async fn insert_deciding(
    lane: &mut Lane,
    entries: &[Entry<'_>],
    people: &People<'_>,
    keys: &Keys<'_>,
) -> Result<HashSet<(Uuid, String)>, Fault> {
    let key_of_each: Vec<Option<&str>> = entries.iter().map(|entry| entry.key).collect();
    let query = Columns::of(entries).bind(sqlx::query(INSERT_DECIDING), lane.shard);
    let query = keys.bind(people.bind(query)).bind(key_of_each);
    read_keys(query.fetch_all(&mut lane.connection).await?)
}

fn read_keys(rows: Vec<sqlx::postgres::PgRow>) -> Result<HashSet<(Uuid, String)>, Fault> {
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Values of the same kind side by side, as the statement wants them.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<Uuid>,
    companies: Vec<Uuid>,
    statuses: Vec<&'static str>,
    priorities: Vec<i16>,
    due_at: Vec<Option<i64>>,
    expires_at: Vec<i64>,
    modes: Vec<&'static str>,
    to_emails: Vec<Cow<'a, str>>,
    subjects: Vec<Cow<'a, str>>,
    created_at: Vec<chrono::DateTime<chrono::Utc>>,
    scheduled_at: Vec<Option<chrono::DateTime<chrono::Utc>>>,
    ttl_ms: Vec<i64>,
    request_ids: Vec<Cow<'a, str>>,
    external_ids: Vec<Option<Cow<'a, str>>>,
    entity_ids: Vec<Option<Cow<'a, str>>>,
    recipient_ids: Vec<Option<Uuid>>,
    recipient_external_ids: Vec<Option<Cow<'a, str>>>,
    sizes: Vec<i64>,
    details: Vec<&'a str>,
    due_after_intake: Vec<Option<i64>>,
    routes: Vec<Cow<'a, str>>,
    bodies: Vec<&'a [u8]>,
    tag_companies: Vec<Uuid>,
    tags: Vec<Cow<'a, str>>,
    tag_emails: Vec<Uuid>,
}

impl<'a> Columns<'a> {
    fn of(entries: &[Entry<'a>]) -> Self {
        let mut columns = Self::default();
        for entry in entries {
            columns.add(entry);
        }
        columns
    }

    fn add(&mut self, entry: &Entry<'a>) {
        let email = entry.email;
        let waits = email.status == Status::Enqueued;
        let ttl = email.expires_at.since(email.scheduled_at.unwrap_or(email.created_at));
        let recipient_external_id = email.recipient.as_ref().and_then(|person| person.external_id.as_deref());
        self.ids.push(email.id.uuid());
        self.companies.push(email.company.uuid());
        self.statuses.push(email.status.as_str());
        self.priorities.push(i16::from(email.priority));
        self.due_at.push(waits.then_some(email.due_at.millis()));
        self.expires_at.push(email.expires_at.millis());
        self.modes.push(email.mode.as_str());
        self.to_emails.push(clean(email.envelope.to.expose()));
        self.subjects.push(clean(email.envelope.subject.expose()));
        self.created_at.push(at(email.created_at));
        self.scheduled_at.push(email.scheduled_at.map(at));
        self.ttl_ms.push(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
        self.request_ids.push(clean(&email.request_id));
        self.external_ids.push(email.external_id.as_deref().map(clean));
        self.entity_ids.push(email.entity.as_ref().map(|entity| clean(&entity.id)));
        self.recipient_ids.push(email.recipient.as_ref().and_then(|person| person.id).map(RecipientId::uuid));
        self.recipient_external_ids.push(recipient_external_id.map(clean));
        self.sizes.push(signed(u64::try_from(entry.prepared.size_bytes).unwrap_or(u64::MAX)));
        self.details.push(&entry.prepared.detail);
        self.due_after_intake.push((!waits).then_some(email.due_at.millis()));
        self.routes.push(clean(&email.route));
        self.bodies.push(&entry.prepared.block);
        for tag in different_tags(&email.envelope.tags) {
            self.tag_companies.push(email.company.uuid());
            self.tags.push(tag);
            self.tag_emails.push(email.id.uuid());
        }
    }

    fn bind<'q>(self, query: Query<'q, Postgres, PgArguments>, shard: i16) -> Query<'q, Postgres, PgArguments>
    where
        'a: 'q,
    {
        query
            .bind(self.ids)
            .bind(self.companies)
            .bind(self.statuses)
            .bind(self.priorities)
            .bind(self.due_at)
            .bind(self.expires_at)
            .bind(self.modes)
            .bind(self.to_emails)
            .bind(self.subjects)
            .bind(self.created_at)
            .bind(self.scheduled_at)
            .bind(self.ttl_ms)
            .bind(self.request_ids)
            .bind(self.external_ids)
            .bind(self.entity_ids)
            .bind(self.recipient_ids)
            .bind(self.recipient_external_ids)
            .bind(self.sizes)
            .bind(self.details)
            .bind(self.due_after_intake)
            .bind(self.routes)
            .bind(self.bodies)
            .bind(self.tag_companies)
            .bind(self.tags)
            .bind(self.tag_emails)
            .bind(shard)
    }
}

/// The tags of an email as they are stored, each once.
pub fn different_tags(tags: &[String]) -> BTreeSet<Cow<'_, str>> {
    tags.iter().map(|tag| clean(tag)).collect()
}

/// Idempotency keys, each once, with what is to be remembered of the request.
pub struct Keys<'a>(Vec<(Uuid, &'a IdempotencyKey, Timestamp)>);

impl<'a> Keys<'a> {
    pub fn of(acceptances: impl Iterator<Item = &'a Acceptance>) -> Self {
        let key = |acceptance: &'a Acceptance| {
            Some((acceptance.company.uuid(), acceptance.key.as_ref()?, acceptance.now))
        };
        Self(acceptances.filter_map(key).collect())
    }

    fn none() -> Self {
        Self(Vec::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bind<'q>(&self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments>
    where
        'a: 'q,
    {
        query
            .bind(self.0.iter().map(|(company, _, _)| *company).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, key, _)| key.key.as_str()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, key, _)| &key.body_hash[..]).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, key, _)| clean(&key.answer)).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, _, now)| now.millis()).collect::<Vec<_>>())
            .bind(self.0.iter().map(|(_, key, _)| key.keep_until.millis()).collect::<Vec<_>>())
    }

    /// Takes those that are free or whose time is over, and gives them back. The others are locked all the same.
    pub async fn gain(&self, connection: &mut PgConnection) -> Result<HashSet<(Uuid, String)>, Fault> {
        let query = sqlx::query(concat!(
            "INSERT INTO idempotency_keys (company_id, key, body_hash, answer, created_at, keep_until)
             SELECT * FROM UNNEST($1::uuid[], $2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::bigint[])
                 AS given (company_id, key, body_hash, answer, created_at, keep_until)
             ORDER BY company_id, key ",
            unless_kept!()
        ));
        read_keys(self.bind(query).fetch_all(connection).await?)
    }

    /// What they stand for.
    pub async fn read(
        &self,
        connection: &mut PgConnection,
    ) -> Result<HashMap<(Uuid, String), KeptAnswer>, Fault> {
        let rows = sqlx::query(
            "SELECT company_id, key, body_hash, answer
             FROM UNNEST($1::uuid[], $2::text[]) AS given (company_id, key)
                  JOIN idempotency_keys USING (company_id, key)",
        )
        .bind(self.0.iter().map(|(company, _, _)| *company).collect::<Vec<_>>())
        .bind(self.0.iter().map(|(_, key, _)| key.key.as_str()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
        let read = |row: &sqlx::postgres::PgRow| {
            let taken = KeptAnswer { body_hash: row.try_get(2)?, answer: row.try_get(3)? };
            Ok(((row.try_get(0)?, row.try_get(1)?), taken))
        };
        rows.iter().map(read).collect()
    }
}
