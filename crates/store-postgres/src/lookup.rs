//! Reading emails back. A list looks at a bounded number of rows per call, along the index that fits its most
//! telling filter, so that it answers quickly however many emails there are.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use model::{CompanyId, Content, Email, EmailId, Event, Status, Timestamp};
use sqlx::postgres::{PgArguments, PgPool, PgRow, Postgres};
use sqlx::query::Query as SqlQuery;
use sqlx::{AssertSqlSafe, Row as _};
use store::record::damaged;
use store::{Cursor, EmailFilter, KeptAnswer, Lookup, Page, StoreError, content_codec};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::{self, at, clean, trouble};

/// How many rows one page may cost when a filter matches few of them: some fifty milliseconds.
const ROWS_LOOKED_AT_MAX: i64 = 10_000;

#[async_trait]
impl Lookup for PostgresStore {
    async fn email(&self, company: CompanyId, id: EmailId) -> Result<Option<Email>, StoreError> {
        self.read(email(&self.pool, company, id)).await
    }

    async fn kept_answer(
        &self,
        company: CompanyId,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        self.read(kept_answer(&self.pool, company, key, now)).await
    }

    async fn emails(
        &self,
        company: CompanyId,
        filter: &EmailFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let query = Query::of(company, filter, after);
        self.read(async { query.led_by_waiting(&self.pool).await?.page(&self.pool, limit).await }).await
    }

    async fn events(&self, company: CompanyId, id: EmailId) -> Result<Option<Vec<Event>>, StoreError> {
        self.read(events(&self.pool, company, id)).await
    }

    async fn content(&self, company: CompanyId, id: EmailId) -> Result<Option<Content>, StoreError> {
        self.read(content(&self.pool, company, id)).await
    }

    async fn company_of(&self, id: EmailId) -> Result<Option<CompanyId>, StoreError> {
        self.read(async {
            let sql = "SELECT company_id FROM email_outbox WHERE id = $1";
            let row = sqlx::query(sql).bind(id.uuid()).fetch_optional(&self.pool).await?;
            Ok(row.map(|row| row::company_id(&row, "company_id")).transpose()?)
        })
        .await
    }
}

async fn email(pool: &PgPool, company: CompanyId, id: EmailId) -> Result<Option<Email>, Fault> {
    let sql = format!(
        "SELECT {}, q.due_at, q.lease_until FROM email_outbox o LEFT JOIN email_queue q ON q.email_id = o.id
         WHERE o.id = $1 AND o.company_id = $2",
        row::COLUMNS
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(id.uuid()).bind(company.uuid());
    let row = query.fetch_optional(pool).await?;
    Ok(row.map(|row| row::record(&row)).transpose()?.map(store::record::Record::email))
}

async fn kept_answer(
    pool: &PgPool,
    company: CompanyId,
    key: &str,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, Fault> {
    let sql = "SELECT body_hash, answer FROM idempotency_keys WHERE company_id = $1 AND key = $2 AND keep_until > $3";
    let row = sqlx::query(sql).bind(company.uuid()).bind(key).bind(now.millis()).fetch_optional(pool).await?;
    let kept = |row: PgRow| Ok(KeptAnswer { body_hash: row.try_get(0)?, answer: row.try_get(1)? });
    row.map(kept).transpose()
}

/// In one statement: an email that is deleted meanwhile is there with its history or not at all.
async fn events(pool: &PgPool, company: CompanyId, id: EmailId) -> Result<Option<Vec<Event>>, Fault> {
    let rows = sqlx::query(
        "SELECT e.type, e.created_at, e.metadata FROM email_outbox o LEFT JOIN events e ON e.email_id = o.id
         WHERE o.id = $1 AND o.company_id = $2 ORDER BY e.id",
    )
    .bind(id.uuid())
    .bind(company.uuid())
    .fetch_all(pool)
    .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        if let Some(kind) = row.try_get::<Option<&str>, _>("type")? {
            events.push(event(row, kind)?);
        }
    }
    Ok(Some(events))
}

fn event(row: &PgRow, kind: &str) -> Result<Event, Fault> {
    let mut event =
        Event::new(kind.parse().map_err(|_| damaged("an event"))?, row::moment(row, "created_at")?);
    match row.try_get::<Option<serde_json::Value>, _>("metadata")? {
        None => {}
        Some(serde_json::Value::Object(metadata)) => event.metadata = metadata,
        Some(_) => return Err(damaged("the metadata of an event").into()),
    }
    Ok(event)
}

async fn content(pool: &PgPool, company: CompanyId, id: EmailId) -> Result<Option<Content>, Fault> {
    let row = sqlx::query(
        "SELECT c.body FROM email_outbox o JOIN contents c ON c.email_id = o.id
         WHERE o.id = $1 AND o.company_id = $2",
    )
    .bind(id.uuid())
    .bind(company.uuid())
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let content = content_codec::decode(row.try_get("body")?);
    Ok(Some(content.map_err(|error| StoreError::Broken(error.to_string()))?))
}

/// Which rows a list is made of: `driving` picks them along one index, newest first, and `testing` leaves out those that
/// do not fit. The statement names all values, so that there are few different statements.
struct Query {
    driving: &'static str,
    testing: Vec<&'static str>,
    company: Uuid,
    before: Uuid,
    tag: Option<String>,
    external_id: Option<String>,
    entity: Option<String>,
    recipient: Option<String>,
    recipient_id: Option<Uuid>,
    to: Option<String>,
    code: Option<String>,
    status: Option<Status>,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    request_id: Option<String>,
    message_id: Option<String>,
    providers: Option<Vec<String>>,
    waiting: Option<Vec<Uuid>>,
}

/// The emails of a company that are ENQUEUED, by the index of claims, which begins with the route: from route to route.
const WAITING: &str = "WITH RECURSIVE routes AS (
         (SELECT route FROM email_queue WHERE due_at IS NOT NULL ORDER BY route LIMIT 1)
         UNION ALL
         SELECT (SELECT q.route FROM email_queue q WHERE q.due_at IS NOT NULL AND q.route > routes.route
                 ORDER BY q.route LIMIT 1)
         FROM routes WHERE routes.route IS NOT NULL
     )
     SELECT waiting.email_id FROM routes CROSS JOIN LATERAL (
         SELECT email_id FROM email_queue
         WHERE route = routes.route AND company_id = $1 AND due_at IS NOT NULL AND NOT retrying LIMIT $2
     ) AS waiting LIMIT $2";

/// The rows of a company, `{}` being one more condition, as ids.
macro_rules! ids_where {
    ($condition:literal) => {
        concat!(
            "SELECT id FROM email_outbox WHERE company_id = $1 AND id < $2 AND ",
            $condition,
            " ORDER BY id DESC LIMIT $13"
        )
    };
}

const BY_COMPANY: &str = ids_where!("true");
const BY_REQUEST: &str = ids_where!("request_id = $15");
/// An email that was sent again has several, and may have one twice.
const BY_MESSAGE: &str = "SELECT DISTINCT m.email_id AS id
     FROM (SELECT email_id FROM provider_messages WHERE message_id = $16 OFFSET 0) AS m
          JOIN email_outbox e ON e.id = ANY (ARRAY[m.email_id]) AND e.company_id = $1
     WHERE m.email_id < $2 ORDER BY 1 DESC LIMIT $13";
const BY_EXTERNAL_ID: &str = ids_where!("external_id = $4");
const BY_TAG: &str =
    "SELECT email_id AS id FROM email_tags WHERE company_id = $1 AND email_id < $2 AND tag = $3
     ORDER BY email_id DESC LIMIT $13";
const BY_TO: &str = ids_where!("lower(to_email) = lower($8 COLLATE \"C\")");
const BY_ENTITY: &str = ids_where!("entity_id = $5");
const BY_CODE: &str = ids_where!("last_failure_code = $9");
const BY_TROUBLE: &str = ids_where!("trouble = $10");
/// Those in flight, never more than the workers hold. `OFFSET 0` keeps the planner from walking through all that waits.
const BY_FLIGHT: &str = "SELECT email_id AS id FROM (
         SELECT email_id FROM email_queue WHERE company_id = $1 AND due_at IS NULL OFFSET 0
     ) AS in_flight WHERE email_id < $2 ORDER BY email_id DESC LIMIT $13";
/// Those that were found waiting just before.
const BY_WAITING: &str =
    "SELECT id FROM UNNEST($18::uuid[]) AS waiting (id) WHERE id < $2 ORDER BY id DESC LIMIT $13";
/// Those that name the person either way, each once.
const BY_RECIPIENT: &str = concat!(
    "SELECT id FROM ((",
    ids_where!("recipient_external_id = $6"),
    ") UNION (",
    ids_where!("recipient_id = $7"),
    ")) AS either ORDER BY id DESC LIMIT $13"
);

impl Query {
    fn of(company: CompanyId, filter: &EmailFilter, after: Option<&Cursor>) -> Self {
        let text = |value: &Option<String>| value.as_deref().map(|text| clean(text).into_owned());
        // In the order of how few rows they leave; the first that is wanted drives.
        let conditions = [
            (
                filter.message_id.is_some(),
                Some(BY_MESSAGE),
                "EXISTS (SELECT 1 FROM provider_messages m WHERE m.email_id = o.id AND m.message_id = $16)",
            ),
            (filter.request_id.is_some(), Some(BY_REQUEST), "o.request_id = $15"),
            (filter.external_id.is_some(), Some(BY_EXTERNAL_ID), "o.external_id = $4"),
            (
                filter.tag.is_some(),
                Some(BY_TAG),
                "EXISTS (SELECT 1 FROM email_tags t WHERE t.company_id = $1 AND t.tag = $3 AND t.email_id = o.id)",
            ),
            (filter.to.is_some(), Some(BY_TO), "lower(o.to_email) = lower($8 COLLATE \"C\")"),
            (filter.entity.is_some(), Some(BY_ENTITY), "o.entity_id = $5"),
            (filter.code.is_some(), Some(BY_CODE), "o.last_failure_code = $9"),
            (
                filter.recipient.is_some(),
                Some(BY_RECIPIENT),
                "(o.recipient_external_id = $6 OR o.recipient_id = $7)",
            ),
            (filter.status.is_some(), filter.status.and_then(by_status), "o.status = $10"),
            (filter.since.is_some(), None, "o.created_at >= $11"),
            (filter.until.is_some(), None, "o.created_at < $12"),
            (filter.providers.is_some(), None, "o.provider = ANY($17)"),
        ];
        let mut driving = None;
        let mut testing = Vec::new();
        for (_, by_index, test) in conditions.into_iter().filter(|(wanted, _, _)| *wanted) {
            match by_index {
                Some(index) if driving.is_none() => driving = Some(index),
                _ => testing.push(test),
            }
        }
        Self {
            driving: driving.unwrap_or(BY_COMPANY),
            testing,
            company: company.uuid(),
            before: before(after),
            tag: text(&filter.tag),
            external_id: text(&filter.external_id),
            entity: text(&filter.entity),
            recipient_id: filter.recipient.as_deref().and_then(|text| text.parse().ok()),
            recipient: text(&filter.recipient),
            to: filter.to.as_ref().map(|to| clean(to.expose()).into_owned()),
            code: text(&filter.code),
            status: filter.status,
            since: filter.since.map(at),
            until: filter.until.map(at),
            request_id: text(&filter.request_id),
            message_id: text(&filter.message_id),
            providers: filter
                .providers
                .as_ref()
                .map(|names| names.iter().map(|name| clean(name).into_owned()).collect()),
            waiting: None,
        }
    }

    /// Those that wait are few among all emails, or they are the newest: if they are few, they are named.
    async fn led_by_waiting(mut self, pool: &PgPool) -> Result<Self, Fault> {
        if self.status != Some(Status::Enqueued) || self.driving != BY_COMPANY {
            return Ok(self);
        }
        let query = sqlx::query_scalar(WAITING).bind(self.company).bind(ROWS_LOOKED_AT_MAX);
        let waiting: Vec<Uuid> = query.fetch_all(pool).await?;
        if (waiting.len() as i64) < ROWS_LOOKED_AT_MAX {
            self.driving = BY_WAITING;
            self.waiting = Some(waiting);
        }
        Ok(self)
    }

    /// `OFFSET 0` keeps the planner from another order than this one: find, look, test, until there are enough.
    fn statement(&self) -> String {
        let testing = if self.testing.is_empty() { "true".to_owned() } else { self.testing.join(" AND ") };
        format!(
            "SELECT {columns}, q.due_at, q.lease_until
             FROM ({driving}) AS found
                  CROSS JOIN LATERAL (SELECT * FROM email_outbox WHERE id = found.id OFFSET 0) AS o
                  LEFT JOIN LATERAL (SELECT due_at, lease_until FROM email_queue WHERE email_id = o.id) AS q ON true
             WHERE {testing} ORDER BY found.id DESC LIMIT $14",
            columns = row::COLUMNS,
            driving = self.driving,
        )
    }

    /// Where the look stopped, if it stopped before the end.
    fn statement_of_end(&self) -> String {
        format!("SELECT id FROM ({}) AS found ORDER BY id DESC LIMIT $14 OFFSET $13 - 1", self.driving)
    }

    fn bind<'q>(&self, sql: String, limit: i64) -> SqlQuery<'q, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(sql))
            .bind(self.company)
            .bind(self.before)
            .bind(self.tag.clone())
            .bind(self.external_id.clone())
            .bind(self.entity.clone())
            .bind(self.recipient.clone())
            .bind(self.recipient_id)
            .bind(self.to.clone())
            .bind(self.code.clone())
            .bind(self.status.map(Status::as_str))
            .bind(self.since)
            .bind(self.until)
            .bind(ROWS_LOOKED_AT_MAX)
            .bind(limit)
            .bind(self.request_id.clone())
            .bind(self.message_id.clone())
            .bind(self.providers.clone())
            .bind(self.waiting.clone())
    }

    async fn page(self, pool: &PgPool, limit: u32) -> Result<Page<Email>, Fault> {
        let rows = self.bind(self.statement(), i64::from(limit) + 1).fetch_all(pool).await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in rows.iter().take(limit as usize) {
            items.push(row::record(row)?.email());
        }
        let next = if rows.len() > limit as usize {
            items.last().map(|email| email.id.uuid())
        } else if self.testing.is_empty() {
            None
        } else {
            let end = self.bind(self.statement_of_end(), 1).fetch_optional(pool).await?;
            end.map(|row| row.try_get("id")).transpose()?
        };
        Ok(Page { items, next: next.map(cursor) })
    }
}

/// How a status is found that has an index.
fn by_status(status: Status) -> Option<&'static str> {
    match status {
        Status::Processing => Some(BY_FLIGHT),
        status => trouble(status).map(|_| BY_TROUBLE),
    }
}

pub fn cursor(id: Uuid) -> Cursor {
    Cursor(id.to_string())
}

/// Emails below this are still to come. A cursor that is none of ours ends the list.
pub fn before(after: Option<&Cursor>) -> Uuid {
    after.map_or(Uuid::max(), |cursor| cursor.0.parse().unwrap_or(Uuid::nil()))
}

#[cfg(test)]
mod tests;
