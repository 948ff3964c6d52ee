//! FAILED emails at hand for seven days: listed, replayed, dropped. They are found along the index of the company's
//! FAILED emails, newest first, most of which they are.

use async_trait::async_trait;
use model::{CompanyId, Email, EmailId, Event, EventKind, Move, RecipientId, Status, Timestamp};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::change::moved;
use store::{Cursor, DeadLetterFilter, DeadLetters, Page, ReplayCount, StoreError};

use crate::MysqlStore;
use crate::accept::{self, Waiting};
use crate::error::Fault;
use crate::lane::Lane;
use crate::lookup::{before, page_of};
use crate::row::{self, at, get, ids, parsed, push_list, until};

#[async_trait]
impl DeadLetters for MysqlStore {
    async fn dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let Some(before) = before(after) else { return Ok(Page { items: Vec::new(), next: None }) };
        let matching = Matching { company, filter: filter.clone(), before, limit };
        self.read(matching, |connection, matching| Box::pin(list(connection, matching))).await
    }

    async fn count_dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
    ) -> Result<u64, StoreError> {
        let matching = Matching::all(company, filter, 0);
        let count = self.read(matching, |connection, matching| {
            Box::pin(async move {
                let mut sql = matching.select("COUNT(*) AS emails");
                let row = sql.build().persistent(false).fetch_one(connection).await?;
                Ok(u64::try_from(get::<i64>(&row, "emails")?).unwrap_or(0))
            })
        });
        count.await
    }

    async fn replay(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        now: Timestamp,
        limit: u32,
    ) -> Result<ReplayCount, StoreError> {
        let matching = Matching::all(company, filter, limit);
        self.write((matching, now), |lane, (matching, now)| Box::pin(replay(lane, matching, *now))).await
    }

    async fn drop_dead_letter(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let drop = self.write((company, id, now), |lane, &(company, id, now)| {
            Box::pin(drop_one(lane, company, id, now))
        });
        drop.await
    }
}

/// Which dead letters, and how many of them.
struct Matching {
    company: CompanyId,
    filter: DeadLetterFilter,
    /// Ids below this.
    before: String,
    limit: u32,
}

impl Matching {
    fn all(company: CompanyId, filter: &DeadLetterFilter, limit: u32) -> Self {
        let before = before(None).unwrap_or_default();
        Self { company, filter: filter.clone(), before, limit }
    }

    fn select(&self, columns: &str) -> QueryBuilder<MySql> {
        let filter = &self.filter;
        let mut sql = QueryBuilder::<MySql>::new(format!(
            "SELECT {columns} FROM email_outbox o FORCE INDEX (outbox_troubled)
             WHERE o.trouble = 'FAILED' AND o.dead_at IS NOT NULL AND o.company_id = "
        ));
        sql.push_bind(self.company.to_string()).push(" AND o.id < ").push_bind(&self.before);
        if let Some(emails) = &filter.ids {
            match emails.is_empty() {
                true => drop(sql.push(" AND FALSE")),
                false => {
                    sql.push(" AND o.id IN ");
                    push_list(&mut sql, ids(emails));
                }
            }
        }
        let mut equal = |column: &str, value: Option<&str>| {
            if let Some(value) = value {
                sql.push(format_args!(" AND o.{column} = ")).push_bind(value);
            }
        };
        equal("last_failure_code", filter.code.as_deref());
        equal("last_failure_category", filter.category.map(model::Category::as_str));
        equal("mode", filter.mode.map(model::KeyMode::as_str));
        equal("to_email", filter.to.as_ref().map(model::Address::expose));
        if let Some(recipient) = &filter.recipient {
            sql.push(" AND (o.recipient_external_id = ").push_bind(recipient);
            if let Ok(id) = recipient.parse::<RecipientId>() {
                sql.push(" OR o.recipient_id = ").push_bind(id.to_string());
            }
            sql.push(")");
        }
        if let Some(since) = filter.since {
            sql.push(" AND o.failed_at >= ").push_bind(at(since));
        }
        if let Some(until) = filter.until {
            sql.push(" AND o.failed_at < ").push_bind(at(until));
        }
        sql
    }
}

async fn list(connection: &mut MySqlConnection, matching: &Matching) -> Result<Page<Email>, Fault> {
    let columns =
        format!("{}, CAST(NULL AS SIGNED) AS due_at, CAST(NULL AS SIGNED) AS lease_until", row::COLUMNS);
    let mut sql = matching.select(&columns);
    sql.push(" ORDER BY o.id DESC LIMIT ").push_bind(u64::from(matching.limit) + 1);
    let rows = sql.build().persistent(false).fetch_all(connection).await?;
    let (items, next) = page_of(&rows, matching.limit)?;
    Ok(Page { items, next })
}

/// A dead letter that goes back into the queue.
struct Replayed {
    waiting: Waiting,
    id: EmailId,
    attempts: u32,
}

async fn replay(lane: &mut Lane, matching: &Matching, now: Timestamp) -> Result<ReplayCount, Fault> {
    let mut sql = matching.select("o.id");
    sql.push(" ORDER BY o.id LIMIT ").push_bind(matching.limit);
    let rows = sql.build().fetch_all(&mut lane.connection).await?;
    let found: Vec<EmailId> = rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Ok(ReplayCount::default());
    }
    let locked = lock_dead(&mut lane.connection, &found, now).await?;
    if locked.is_empty() {
        // Another replay took them all; there may be more.
        return Err(Fault::Overtaken);
    }
    put_back(lane, &locked, now).await?;
    let count = locked.len() as u64;
    Ok(ReplayCount { matched: count, replayed: count })
}

/// Those that are still dead letters under the lock.
async fn lock_dead(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
    now: Timestamp,
) -> Result<Vec<Replayed>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT id, route, company_id, priority, attempts, ttl_ms, size_bytes
         FROM email_outbox FORCE INDEX (PRIMARY) WHERE status = 'FAILED' AND dead_at IS NOT NULL AND id IN ",
    );
    push_list(&mut sql, ids(emails));
    sql.push(" ORDER BY id FOR UPDATE");
    let mut locked = Vec::new();
    for row in sql.build().fetch_all(connection).await? {
        let ttl_ms: i64 = get(&row, "ttl_ms")?;
        let waiting = Waiting {
            id: get(&row, "id")?,
            route: get(&row, "route")?,
            company: get(&row, "company_id")?,
            priority: get(&row, "priority")?,
            due_at: now,
            expires_at: Timestamp::from_millis(now.millis().saturating_add(ttl_ms)).min(Timestamp::NEVER),
            size_bytes: get(&row, "size_bytes")?,
        };
        locked.push(Replayed { waiting, id: parsed(&row, "id")?, attempts: get(&row, "attempts")? });
    }
    Ok(locked)
}

async fn put_back(lane: &mut Lane, replayed: &[Replayed], now: Timestamp) -> Result<(), Fault> {
    let to = moved(Status::Failed, Move::Replay)?;
    let connection = &mut lane.connection;
    let mut events = Vec::with_capacity(replayed.len());
    for email in replayed {
        sqlx::query(
            "UPDATE email_outbox SET status = ?, trouble = ?, version = version + 1, expires_at = ?, dead_at = NULL,
                 failed_at = NULL, attempts_before = attempts, series = IF(outcome_unknown, series, attempts),
                 unfinished_starts = 0, updated_at = ?
             WHERE id = ?",
        )
        .bind(to.as_str())
        .bind(row::trouble(to))
        .bind(until(email.waiting.expires_at))
        .bind(at(now))
        .bind(&email.waiting.id)
        .execute(&mut *connection)
        .await?;
        events.push((email.id, Event::new(EventKind::Replayed, now).with("attemptsBefore", email.attempts)));
        lane.counts.moved(Status::Failed, to);
        lane.counts.dead_letters(-1);
    }
    let waiting: Vec<Waiting> = replayed.iter().map(|email| email.waiting.clone()).collect();
    accept::enqueue(connection, &waiting).await?;
    row::add_events(connection, events.iter().map(|(id, event)| (*id, event))).await
}

async fn drop_one(lane: &mut Lane, company: CompanyId, id: EmailId, now: Timestamp) -> Result<bool, Fault> {
    let sql = "UPDATE email_outbox SET dead_at = NULL, version = version + 1
               WHERE id = ? AND company_id = ? AND dead_at IS NOT NULL";
    let query = sqlx::query(sql).bind(id.to_string()).bind(company.to_string());
    let is_dropped = query.execute(&mut lane.connection).await?.rows_affected() > 0;
    if is_dropped {
        lane.counts.dead_letters(-1);
        let event = Event::new(EventKind::DeadLetterDropped, now);
        row::add_event_to_each(&mut lane.connection, &[id], &event).await?;
    }
    Ok(is_dropped)
}
