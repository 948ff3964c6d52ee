//! FAILED emails at hand for seven days: listed, replayed, dropped.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use model::{CompanyId, Email, EmailId, Event, EventKind, Timestamp};
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::{Cursor, DeadLetterFilter, DeadLetters, Page, ReplayCount, StoreError};
use uuid::Uuid;

use crate::PostgresStore;
use crate::counts::any_shard;
use crate::error::Fault;
use crate::lookup::{before, cursor};
use crate::row::{self, History, at, clean};

/// Every filter is a value or NULL; the company's dead letters are few enough to test one by one.
macro_rules! matching {
    () => {
        "o.company_id = $1 AND o.dead_at IS NOT NULL AND o.id < $2
         AND ($3::uuid[] IS NULL OR o.id = ANY($3))
         AND ($4::text IS NULL OR o.last_failure_code = $4)
         AND ($5::text IS NULL OR o.last_failure_category = $5)
         AND ($6::text IS NULL OR lower(o.to_email) = lower($6 COLLATE \"C\"))
         AND ($7::text IS NULL OR o.recipient_external_id = $7 OR o.recipient_id = $8)
         AND ($9::timestamptz IS NULL OR o.failed_at >= $9)
         AND ($10::timestamptz IS NULL OR o.failed_at < $10)
         AND ($11::text IS NULL OR o.mode = $11)"
    };
}

const COUNT: &str = concat!("SELECT count(*) FROM email_outbox o WHERE ", matching!());

/// Nothing is in email_queue for them, so there is nothing to lock there. They are chosen once: chosen anew for each row
/// of the outbox, as a plan may have it, each time others would come within the limit.
const REPLAY: &str = concat!(
    "WITH dead AS MATERIALIZED (
         SELECT o.id FROM email_outbox o WHERE ",
    matching!(),
    " AND o.status = 'FAILED' ORDER BY o.id LIMIT $12 FOR UPDATE
     ), replayed AS (
         UPDATE email_outbox o
         SET status = 'ENQUEUED', trouble = NULL, version = o.version + 1, expires_at = $13 + o.ttl_ms,
             dead_at = NULL, failed_at = NULL, attempts_before = o.attempts,
             series = CASE WHEN o.outcome_unknown THEN o.series ELSE o.attempts END, unfinished_starts = 0,
             updated_at = $14
         FROM dead WHERE o.id = ANY (ARRAY[dead.id])
         RETURNING o.id, o.route, o.company_id, o.priority, o.expires_at, o.size_bytes, o.fence, o.attempts
     ), queue AS (
         INSERT INTO email_queue (email_id, route, company_id, priority, due_at, expires_at, size_bytes, fence)
         SELECT id, route, company_id, priority, $13, expires_at, size_bytes, fence FROM replayed
     ), history AS (
         INSERT INTO events (email_id, type, created_at, metadata)
         SELECT id, 'REPLAYED', $14, jsonb_build_object('attemptsBefore', attempts) FROM replayed
     ), counts AS (
         INSERT INTO status_counts (status, shard, emails)
         SELECT status, $15, sum(change) FROM (
             SELECT 'ENQUEUED' AS status, 1 AS change FROM replayed UNION ALL SELECT 'FAILED', -1 FROM replayed
         ) AS change GROUP BY status ORDER BY status
         ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails
     )
     SELECT count(*) FROM replayed"
);

#[async_trait]
impl DeadLetters for PostgresStore {
    async fn dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let values = Values::of(company, filter, before(after));
        self.read(self.list(values, limit)).await
    }

    async fn count_dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
    ) -> Result<u64, StoreError> {
        let values = Values::of(company, filter, Uuid::max());
        self.read(async {
            let row = values.bind(sqlx::query(COUNT)).fetch_one(&self.pool).await?;
            Ok(u64::try_from(row.try_get::<i64, _>(0)?).unwrap_or(0))
        })
        .await
    }

    async fn replay(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        now: Timestamp,
        limit: u32,
    ) -> Result<ReplayCount, StoreError> {
        let values = Values::of(company, filter, Uuid::max());
        let count = self
            .write((values, now, limit), |c, (values, now, limit)| Box::pin(replay(c, values, *now, *limit)))
            .await?;
        if count > 0 {
            self.wake.made_due();
        }
        Ok(ReplayCount { matched: count, replayed: count })
    }

    async fn drop_dead_letter(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.write((company, id, now), |c, &(company, id, now)| Box::pin(drop_one(c, company, id, now))).await
    }
}

impl PostgresStore {
    async fn list(&self, values: Values, limit: u32) -> Result<Page<Email>, Fault> {
        let sql = format!(
            concat!(
                "SELECT {columns}, NULL::bigint AS due_at, NULL::bigint AS lease_until FROM email_outbox o WHERE ",
                matching!(),
                " ORDER BY o.id DESC LIMIT $12"
            ),
            columns = row::COLUMNS
        );
        let query = values.bind(sqlx::query(AssertSqlSafe(sql))).bind(i64::from(limit) + 1);
        let rows = query.fetch_all(&self.pool).await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in rows.iter().take(limit as usize) {
            items.push(row::record(row)?.email());
        }
        let is_more = rows.len() > limit as usize;
        let next = items.last().filter(|_| is_more).map(|email: &Email| cursor(email.id.uuid()));
        Ok(Page { items, next })
    }
}

/// The filter as values to bind, `$1` to `$11`.
struct Values {
    company: Uuid,
    before: Uuid,
    ids: Option<Vec<Uuid>>,
    code: Option<String>,
    category: Option<&'static str>,
    to: Option<String>,
    recipient: Option<String>,
    recipient_id: Option<Uuid>,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    mode: Option<&'static str>,
}

impl Values {
    fn of(company: CompanyId, filter: &DeadLetterFilter, before: Uuid) -> Self {
        let text = |value: &Option<String>| value.as_deref().map(|text| clean(text).into_owned());
        Self {
            company: company.uuid(),
            before,
            ids: filter.ids.as_ref().map(|ids| ids.iter().map(|id| id.uuid()).collect()),
            code: text(&filter.code),
            category: filter.category.map(|category| category.as_str()),
            to: filter.to.as_ref().map(|to| clean(to.expose()).into_owned()),
            recipient: text(&filter.recipient),
            recipient_id: filter.recipient.as_deref().and_then(|text| text.parse().ok()),
            since: filter.since.map(at),
            until: filter.until.map(at),
            mode: filter.mode.map(|mode| mode.as_str()),
        }
    }

    fn bind<'q>(&self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(self.company)
            .bind(self.before)
            .bind(self.ids.clone())
            .bind(self.code.clone())
            .bind(self.category)
            .bind(self.to.clone())
            .bind(self.recipient.clone())
            .bind(self.recipient_id)
            .bind(self.since)
            .bind(self.until)
            .bind(self.mode)
    }
}

async fn replay(
    connection: &mut PgConnection,
    values: &Values,
    now: Timestamp,
    limit: u32,
) -> Result<u64, Fault> {
    let count: i64 = values
        .bind(sqlx::query(REPLAY))
        .bind(i64::from(limit))
        .bind(now.millis())
        .bind(at(now))
        .bind(any_shard())
        .fetch_one(connection)
        .await?
        .try_get(0)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

async fn drop_one(
    connection: &mut PgConnection,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<bool, Fault> {
    let dropped = sqlx::query(
        "UPDATE email_outbox SET dead_at = NULL, version = version + 1
         WHERE id = $1 AND company_id = $2 AND dead_at IS NOT NULL",
    )
    .bind(id.uuid())
    .bind(company.uuid())
    .execute(&mut *connection)
    .await?;
    if dropped.rows_affected() == 0 {
        return Ok(false);
    }
    History::of_email(id, &[Event::new(EventKind::DeadLetterDropped, now)]).write(connection).await?;
    Ok(true)
}
