//! Emails in ACCEPTED: handing them out to be checked, and recording what the check found.

use model::{EmailId, Envelope, Event, Failure, Move, Status, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::detail::Detail;
use store::{INTAKE_LEASE, IntakeItem, IntakeVerdict, StoreError};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{outbox, row};

pub fn awaiting(connection: &Connection, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT id, company_id, version, unfinished_starts FROM email_outbox INDEXED BY outbox_intake
             WHERE status = 'ACCEPTED' AND (unfinished_starts = 0 OR updated_at <= ?1 OR updated_at >= ?2)
             ORDER BY seq LIMIT ?3",
        )
        .map_err(from_sqlite)?;
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(String, String, u64, u32)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    };
    let bound = (now.minus(INTAKE_LEASE).millis(), now.plus(INTAKE_LEASE).millis(), limit);
    let rows = statement.query_map(bound, read).map_err(from_sqlite)?;
    let mut items = Vec::new();
    for row in rows {
        let (id, company, version, unfinished_starts) = row.map_err(from_sqlite)?;
        items.push(IntakeItem {
            id: id.parse().map_err(|_| unreadable("an email's id"))?,
            company: company.parse().map_err(|_| unreadable("a company's id"))?,
            version,
            unfinished_starts,
        });
    }
    Ok(items)
}

/// The new version and the content as it is kept: it is read when the start is on disk.
pub type Begun = (u64, Option<Vec<u8>>);

pub fn begin(
    work: &mut Work<'_>,
    (id, version): (EmailId, u64),
    now: Timestamp,
) -> Result<Option<Begun>, StoreError> {
    let seq: Option<i64> = work
        .connection
        .prepare_cached(
            "UPDATE email_outbox SET version = version + 1, unfinished_starts = unfinished_starts + 1, updated_at = ?3
             WHERE id = ?1 AND status = 'ACCEPTED' AND version = ?2 RETURNING seq",
        )
        .and_then(|mut statement| {
            statement.query_row((id.to_string(), version, now.millis()), |row| row.get(0)).optional()
        })
        .map_err(from_sqlite)?;
    let Some(seq) = seq else { return Ok(None) };
    let block = work
        .connection
        .prepare_cached("SELECT body FROM contents WHERE email_seq = ?1")
        .and_then(|mut statement| statement.query_row([seq], |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    Ok(Some((version + 1, block)))
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
                 unfinished_starts = 0, to_email = ?4, subject = ?5, detail = ?6, updated_at = ?7
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
