//! Rows of the outbox as the model's types, and the few statements that every verb shares.

use model::attempt::LostLease;
use model::company::KeyMode;
use model::email::LastFailure;
use model::privacy::Secret;
use model::{Address, Claim, Email, Event, Guard, Move, Status, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};
use store::StoreError;
use store::detail::Detail;

use crate::error::from_sqlite;
use crate::writer::Work;

/// What `email`, `claim` and `lost_lease` read, by name.
pub const COLUMNS: &str = "seq, id, company_id, status, version, fence, priority, due_at, expires_at, lease_until, \
    at_provider, unfinished_starts, outcome_unknown, attempts, attempts_before, mode, to_email, subject, created_at, \
    scheduled_at, sent_at, delivered_at, failed_at, dead_at, provider, provider_message_id, last_failure_code, \
    last_failure_category, last_failure_reason, last_failure_at, request_id, external_id, entity_id, recipient_id, \
    recipient_external_id, size_bytes, detail";

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

fn damaged(what: &str) -> StoreError {
    StoreError::Broken(format!("{what} of an email cannot be read"))
}

fn mode(row: &Row<'_>) -> Result<KeyMode, StoreError> {
    KeyMode::parse(&get::<String>(row, "mode")?).ok_or_else(|| damaged("mode"))
}

/// The detail, with the id under which acceptance knows the recipient.
fn detail(row: &Row<'_>) -> Result<Detail, StoreError> {
    let mut detail = Detail::decode(&get::<String>(row, "detail")?).ok_or_else(|| damaged("detail"))?;
    if let (Some(recipient), Some(id)) = (&mut detail.recipient, get::<Option<String>>(row, "recipient_id")?)
    {
        recipient.id = Some(id.parse().map_err(|_| damaged("recipient_id"))?);
    }
    Ok(detail)
}

pub fn status(row: &Row<'_>) -> Result<Status, StoreError> {
    parsed(row, "status")
}

pub fn guard(row: &Row<'_>) -> Result<Guard, StoreError> {
    Ok(Guard { id: parsed(row, "id")?, fence: get(row, "fence")?, version: get(row, "version")? })
}

pub fn email(row: &Row<'_>) -> Result<Email, StoreError> {
    let detail = detail(row)?;
    let guard = guard(row)?;
    Ok(Email {
        id: guard.id,
        company: parsed(row, "company_id")?,
        request_id: get(row, "request_id")?,
        mode: mode(row)?,
        status: status(row)?,
        version: guard.version,
        fence: guard.fence,
        envelope: detail.envelope(Address::trusted(get(row, "to_email")?), Secret::new(get(row, "subject")?)),
        external_id: get(row, "external_id")?,
        entity: detail.entity(get(row, "entity_id")?),
        recipient: detail.recipient,
        priority: get(row, "priority")?,
        attempts: get(row, "attempts")?,
        created_at: moment(row, "created_at")?,
        due_at: optional_moment(row, "due_at")?,
        scheduled_at: optional_moment(row, "scheduled_at")?,
        expires_at: moment(row, "expires_at")?,
        sent_at: optional_moment(row, "sent_at")?,
        delivered_at: optional_moment(row, "delivered_at")?,
        failed_at: optional_moment(row, "failed_at")?,
        dead_at: optional_moment(row, "dead_at")?,
        wishes: detail.wishes,
        provider: get(row, "provider")?,
        provider_message_id: get(row, "provider_message_id")?,
        last_failure: last_failure(row)?,
        outcome_unknown: get(row, "outcome_unknown")?,
        size_bytes: get(row, "size_bytes")?,
    })
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

/// The claim, still without its content.
pub fn claim(row: &Row<'_>, now: Timestamp) -> Result<Claim, StoreError> {
    let detail = detail(row)?;
    let attempts: u32 = get(row, "attempts")?;
    Ok(Claim {
        guard: guard(row)?,
        company: parsed(row, "company_id")?,
        request_id: get(row, "request_id")?,
        mode: mode(row)?,
        attempt: attempts,
        attempt_in_series: attempts.saturating_sub(get(row, "attempts_before")?),
        // The start that is this claim may yet finish.
        unfinished_starts: get::<u32>(row, "unfinished_starts")?.saturating_sub(1),
        created_at: moment(row, "created_at")?,
        claimed_at: now,
        lease_until: moment(row, "lease_until")?,
        expires_at: moment(row, "expires_at")?,
        envelope: detail.envelope(Address::trusted(get(row, "to_email")?), Secret::new(get(row, "subject")?)),
        external_id: get(row, "external_id")?,
        entity: detail.entity(get(row, "entity_id")?),
        recipient: detail.recipient,
        wishes: detail.wishes,
        content: None,
    })
}

pub fn lost_lease(row: &Row<'_>) -> Result<LostLease, StoreError> {
    let attempts: u32 = get(row, "attempts")?;
    Ok(LostLease {
        guard: guard(row)?,
        company: parsed(row, "company_id")?,
        request_id: get(row, "request_id")?,
        attempt: attempts,
        attempt_in_series: attempts.saturating_sub(get(row, "attempts_before")?),
        unfinished_starts: get(row, "unfinished_starts")?,
        at_provider: get(row, "at_provider")?,
        provider: get(row, "provider")?,
        lease_until: moment(row, "lease_until")?,
        expires_at: moment(row, "expires_at")?,
        wishes: detail(row)?.wishes,
    })
}

/// The status a move leads to, by the model's table; keeps the counts.
pub fn moved(work: &mut Work<'_>, from: Status, step: Move) -> Result<Status, StoreError> {
    let to = from.after(step).map_err(|illegal| StoreError::Broken(illegal.to_string()))?;
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
    }
    Ok(())
}
