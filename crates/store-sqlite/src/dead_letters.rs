//! FAILED emails at hand for seven days: listed, replayed, dropped.

use async_trait::async_trait;
use model::{CompanyId, Email, EmailId, Event, EventKind, Move, Status, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use store::{Cursor, DeadLetterFilter, DeadLetters, Page, ReplayCount, StoreError};

use crate::error::from_sqlite;
use crate::lookup::{before, cursor};
use crate::writer::Work;
use crate::{SqliteStore, row};

/// Every filter is a value or NULL; the company's dead letters are few enough to test one by one.
const MATCHING: &str = "company_id = ?1 AND dead_at IS NOT NULL AND seq < ?2
    AND (?3 IS NULL OR id IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR last_failure_code = ?4)
    AND (?5 IS NULL OR last_failure_category = ?5)
    AND (?6 IS NULL OR to_email = ?6)
    AND (?7 IS NULL OR recipient_external_id = ?7 OR recipient_id = ?7)
    AND (?8 IS NULL OR failed_at >= ?8)
    AND (?9 IS NULL OR failed_at < ?9)
    AND (?10 IS NULL OR mode = ?10)";

#[async_trait]
impl DeadLetters for SqliteStore {
    async fn dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let values = values(company, filter, before(after));
        self.reader.run(move |connection| list(connection, values, limit)).await
    }

    async fn count_dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
    ) -> Result<u64, StoreError> {
        let values = values(company, filter, i64::MAX);
        let count = move |connection: &Connection| {
            let sql = format!("SELECT count(*) FROM email_outbox INDEXED BY outbox_dead WHERE {MATCHING}");
            connection
                .prepare_cached(&sql)
                .and_then(|mut statement| statement.query_row(params_from_iter(values), |row| row.get(0)))
                .map_err(from_sqlite)
        };
        self.reader.run(count).await
    }

    async fn replay(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        now: Timestamp,
        limit: u32,
    ) -> Result<ReplayCount, StoreError> {
        let values = values(company, filter, i64::MAX);
        self.writer.run(move |work| replay(work, &values, now, limit)).await
    }

    async fn drop_dead_letter(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writer.run(move |work| drop_one(work, company, id, now)).await
    }
}

fn values(company: CompanyId, filter: &DeadLetterFilter, before: i64) -> Vec<Value> {
    let text = |value: Option<String>| value.map_or(Value::Null, Value::Text);
    let millis = |value: Option<Timestamp>| value.map_or(Value::Null, |at| Value::Integer(at.millis()));
    let ids = filter.ids.as_ref().map(|ids| {
        let ids: Vec<String> = ids.iter().map(EmailId::to_string).collect();
        serde_json::to_string(&ids).expect("a list of texts can be written")
    });
    vec![
        Value::Text(company.to_string()),
        Value::Integer(before),
        text(ids),
        text(filter.code.clone()),
        text(filter.category.map(|category| category.as_str().to_owned())),
        text(filter.to.as_ref().map(|to| to.expose().to_owned())),
        text(filter.recipient.clone()),
        millis(filter.since),
        millis(filter.until),
        text(filter.mode.map(|mode| mode.as_str().to_owned())),
    ]
}

/// First which ones, then all of them: after an outage there are tens of thousands to sort, and whole rows are wide.
fn list(connection: &Connection, values: Vec<Value>, limit: u32) -> Result<Page<Email>, StoreError> {
    let sql = format!(
        "SELECT {} FROM email_outbox WHERE seq IN (
             SELECT seq FROM email_outbox INDEXED BY outbox_dead WHERE {MATCHING} ORDER BY seq DESC LIMIT {}
         ) ORDER BY seq DESC",
        row::COLUMNS,
        u64::from(limit) + 1
    );
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(from_sqlite)?;
    let mut items = Vec::new();
    let mut last_seq = 0;
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        if items.len() == limit as usize {
            return Ok(Page { items, next: Some(cursor(last_seq)) });
        }
        last_seq = row.get("seq").map_err(from_sqlite)?;
        items.push(row::record(row)?.email());
    }
    Ok(Page { items, next: None })
}

fn replay(
    work: &mut Work<'_>,
    values: &[Value],
    now: Timestamp,
    limit: u32,
) -> Result<ReplayCount, StoreError> {
    let sql = format!(
        "SELECT seq, attempts FROM email_outbox INDEXED BY outbox_dead WHERE {MATCHING} ORDER BY seq LIMIT {limit}"
    );
    let mut statement = work.connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let matched: Vec<(i64, u32)> = statement
        .query_map(params_from_iter(values), |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(from_sqlite)?;
    for &(seq, attempts) in &matched {
        let to = row::moved(work, Status::Failed, Move::Replay)?;
        work.connection
            .prepare_cached(
                "UPDATE email_outbox
                 SET status = ?2, version = version + 1, due_at = ?3, expires_at = ?3 + ttl_ms, dead_at = NULL,
                     failed_at = NULL, attempts_before = attempts, series = iif(outcome_unknown, series, attempts),
                     unfinished_starts = 0, updated_at = ?3
                 WHERE seq = ?1 AND status = 'FAILED' AND dead_at IS NOT NULL",
            )
            .and_then(|mut statement| statement.execute((seq, to.as_str(), now.millis())))
            .map_err(from_sqlite)?;
        let event = Event::new(EventKind::Replayed, now).with("attemptsBefore", attempts);
        row::add_events(work.connection, seq, &[event])?;
    }
    let count = matched.len() as u64;
    Ok(ReplayCount { matched: count, replayed: count })
}

fn drop_one(
    work: &mut Work<'_>,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut statement = work
        .connection
        .prepare_cached(
            "UPDATE email_outbox SET dead_at = NULL, version = version + 1
             WHERE id = ?1 AND company_id = ?2 AND dead_at IS NOT NULL RETURNING seq",
        )
        .map_err(from_sqlite)?;
    let seqs: Vec<i64> = statement
        .query_map((id.to_string(), company.to_string()), |row| row.get(0))
        .and_then(Iterator::collect)
        .map_err(from_sqlite)?;
    for &seq in &seqs {
        row::add_events(work.connection, seq, &[Event::new(EventKind::DeadLetterDropped, now)])?;
    }
    Ok(!seqs.is_empty())
}
