//! Rows of the outbox as the model's types, and the few statements that every verb shares.

use model::company::KeyMode;
use model::email::LastFailure;
use model::{Event, Move, Status, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};
use store::detail::Detail;
use store::record::{Record, damaged};
use store::{StoreError, change};

use crate::error::from_sqlite;
use crate::tallies;
use crate::writer::Work;

/// What `record` reads, by name.
pub const COLUMNS: &str = "seq, id, company_id, status, version, fence, priority, due_at, expires_at, lease_until, \
    at_provider, unfinished_starts, outcome_unknown, attempts, attempts_before, mode, to_email, subject, created_at, \
    scheduled_at, sent_at, delivered_at, failed_at, dead_at, provider, provider_message_id, last_failure_code, \
    last_failure_category, last_failure_reason, last_failure_at, request_id, external_id, entity_id, recipient_id, \
    size_bytes, route, detail";

fn get<T: FromSql>(row: &Row<'_>, name: &str) -> Result<T, StoreError> {
    row.get(name).map_err(from_sqlite)
}

fn moment(row: &Row<'_>, name: &str) -> Result<Timestamp, StoreError> {
    get(row, name).map(Timestamp::from_millis)
}

fn optional_moment(row: &Row<'_>, name: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, name)?.map(Timestamp::from_millis))
}

/// Reads text that the store itself wrote; anything else means the file was changed behind its back.
fn parsed<T: std::str::FromStr>(row: &Row<'_>, name: &str) -> Result<T, StoreError> {
    get::<String>(row, name)?.parse().map_err(|_| damaged(name))
}

pub fn status(row: &Row<'_>) -> Result<Status, StoreError> {
    parsed(row, "status")
}

pub fn record(row: &Row<'_>) -> Result<Record, StoreError> {
    let recipient_id: Option<String> = get(row, "recipient_id")?;
    Ok(Record {
        id: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        status: status(row)?,
        version: get(row, "version")?,
        fence: get(row, "fence")?,
        priority: get(row, "priority")?,
        due_at: optional_moment(row, "due_at")?,
        expires_at: moment(row, "expires_at")?,
        lease_until: optional_moment(row, "lease_until")?,
        at_provider: get(row, "at_provider")?,
        unfinished_starts: get(row, "unfinished_starts")?,
        outcome_unknown: get(row, "outcome_unknown")?,
        attempts: get(row, "attempts")?,
        attempts_before: get(row, "attempts_before")?,
        mode: KeyMode::parse(&get::<String>(row, "mode")?).ok_or_else(|| damaged("mode"))?,
        to_email: get(row, "to_email")?,
        subject: get(row, "subject")?,
        created_at: moment(row, "created_at")?,
        scheduled_at: optional_moment(row, "scheduled_at")?,
        sent_at: optional_moment(row, "sent_at")?,
        delivered_at: optional_moment(row, "delivered_at")?,
        failed_at: optional_moment(row, "failed_at")?,
        dead_at: optional_moment(row, "dead_at")?,
        route: get(row, "route")?,
        provider: get(row, "provider")?,
        provider_message_id: get(row, "provider_message_id")?,
        last_failure: last_failure(row)?,
        request_id: get(row, "request_id")?,
        external_id: get(row, "external_id")?,
        entity_id: get(row, "entity_id")?,
        recipient_id: recipient_id
            .map(|text| text.parse().map_err(|_| damaged("recipient_id")))
            .transpose()?,
        size_bytes: get(row, "size_bytes")?,
        detail: Detail::decode(&get::<String>(row, "detail")?).ok_or_else(|| damaged("detail"))?,
    })
}

/// The row that must be there.
pub fn at(connection: &Connection, seq: i64) -> Result<Record, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM email_outbox WHERE seq = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut rows = statement.query([seq]).map_err(from_sqlite)?;
    rows.next().map_err(from_sqlite)?.map_or_else(|| Err(damaged("row")), record)
}

fn last_failure(row: &Row<'_>) -> Result<Option<LastFailure>, StoreError> {
    let Some(code) = get::<Option<String>>(row, "last_failure_code")? else {
        return Ok(None);
    };
    Ok(Some(LastFailure {
        code,
        category: get(row, "last_failure_category")?,
        reason: get(row, "last_failure_reason")?,
        at: moment(row, "last_failure_at")?,
    }))
}

/// The status a move leads to, by the model's table; keeps the counts.
pub fn moved(work: &mut Work<'_>, from: Status, step: Move) -> Result<Status, StoreError> {
    let to = change::moved(from, step)?;
    work.counts.moved(from, to);
    Ok(to)
}

pub fn add_events(connection: &Connection, seq: i64, events: &[Event]) -> Result<(), StoreError> {
    let mut statement = connection
        .prepare_cached("INSERT INTO events (email_seq, type, created_at, metadata) VALUES (?1, ?2, ?3, ?4)")
        .map_err(from_sqlite)?;
    for event in events {
        let metadata = (!event.metadata.is_empty())
            .then(|| serde_json::to_string(&event.metadata).expect("a JSON object can be written"));
        statement.execute((seq, event.kind.as_str(), event.at.millis(), metadata)).map_err(from_sqlite)?;
        tallies::count(connection, seq, event).map_err(from_sqlite)?;
    }
    Ok(())
}
