//! Emails in ACCEPTED: handing them out to be checked, and recording what the check found.

use model::{EmailId, Envelope, Event, Failure, Move, Status, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::detail::Detail;
use store::{IntakeItem, IntakeVerdict, StoreError, content_codec};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{outbox, row};

pub fn awaiting(connection: &Connection, limit: u32) -> Result<Vec<IntakeItem>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT id, company_id, version, (SELECT body FROM contents WHERE email_seq = seq) AS body
             FROM email_outbox INDEXED BY outbox_intake WHERE status = 'ACCEPTED' ORDER BY seq LIMIT ?1",
        )
        .map_err(from_sqlite)?;
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(String, String, u64, Option<Vec<u8>>)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    };
    let rows = statement.query_map([limit], read).map_err(from_sqlite)?;
    let mut items = Vec::new();
    for row in rows {
        let (id, company, version, block) = row.map_err(from_sqlite)?;
        items.push(IntakeItem {
            id: id.parse().map_err(|_| unreadable("an email's id"))?,
            company: company.parse().map_err(|_| unreadable("a company's id"))?,
            version,
            content: block.and_then(|block| content_codec::decode(&block).ok()),
        });
    }
    Ok(items)
}

pub fn settle(
    work: &mut Work<'_>,
    (id, version): (EmailId, u64),
    verdict: &IntakeVerdict,
    events: &[Event],
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(unchecked) = find(work.connection, id, version)? else { return Ok(false) };
    match verdict {
        IntakeVerdict::Passed { envelope } => pass(work, &unchecked, envelope, now)?,
        IntakeVerdict::Refused { failure } => refuse(work, &unchecked, failure, now)?,
    }
    row::add_events(work.connection, unchecked.seq, events)?;
    Ok(true)
}

struct Unchecked {
    seq: i64,
    company: String,
    detail: String,
    due_at: i64,
}

fn find(connection: &Connection, id: EmailId, version: u64) -> Result<Option<Unchecked>, StoreError> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Unchecked { seq: row.get(0)?, company: row.get(1)?, detail: row.get(2)?, due_at: row.get(3)? })
    };
    connection
        .prepare_cached(
            "SELECT seq, company_id, detail, coalesce(due_after_intake, created_at) FROM email_outbox
             WHERE id = ?1 AND status = 'ACCEPTED' AND version = ?2",
        )
        .and_then(|mut statement| statement.query_row((id.to_string(), version), read).optional())
        .map_err(from_sqlite)
}

/// The email enters the queue under the envelope that was read from it.
fn pass(
    work: &mut Work<'_>,
    unchecked: &Unchecked,
    envelope: &Envelope,
    now: Timestamp,
) -> Result<(), StoreError> {
    let to = row::moved(work, Status::Accepted, Move::IntakePassed)?;
    let detail = Detail::decode(&unchecked.detail)
        .ok_or_else(|| unreadable("detail of an email"))?
        .with_envelope(envelope);
    let connection = work.connection;
    connection
        .prepare_cached(
            "UPDATE email_outbox SET status = ?2, version = version + 1, due_at = ?3, due_after_intake = NULL,
                 to_email = ?4, subject = ?5, detail = ?6, updated_at = ?7
             WHERE seq = ?1 AND status = 'ACCEPTED'",
        )
        .and_then(|mut statement| {
            statement.execute((
                unchecked.seq,
                to.as_str(),
                unchecked.due_at,
                envelope.to.expose(),
                envelope.subject.expose(),
                detail.encode(),
                now.millis(),
            ))
        })
        .map_err(from_sqlite)?;
    connection
        .prepare_cached("DELETE FROM email_tags WHERE email_seq = ?1")
        .and_then(|mut statement| statement.execute([unchecked.seq]))
        .map_err(from_sqlite)?;
    outbox::add_tags(connection, &unchecked.company, unchecked.seq, &envelope.tags)
}

fn refuse(
    work: &mut Work<'_>,
    unchecked: &Unchecked,
    failure: &Failure,
    now: Timestamp,
) -> Result<(), StoreError> {
    let to = row::moved(work, Status::Accepted, Move::IntakeFailed)?;
    work.connection
        .prepare_cached(
            "UPDATE email_outbox SET status = ?2, version = version + 1, failed_at = ?3, updated_at = ?3,
                 last_failure_code = ?4, last_failure_category = ?5, last_failure_reason = ?6, last_failure_at = ?3
             WHERE seq = ?1 AND status = 'ACCEPTED'",
        )
        .and_then(|mut statement| {
            statement.execute((
                unchecked.seq,
                to.as_str(),
                now.millis(),
                failure.code.as_str(),
                failure.category.as_str(),
                &failure.message,
            ))
        })
        .map_err(from_sqlite)?;
    Ok(())
}

fn unreadable(what: &str) -> StoreError {
    StoreError::Broken(format!("{what} cannot be read"))
}
