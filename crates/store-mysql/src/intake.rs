//! Emails in ACCEPTED: handing them out to be checked, and recording what the check found.

use model::{CompanyId, EmailId, Envelope, Event, Failure, Move, Status, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row as _};
use store::change::moved;
use store::detail::Detail;
use store::record::damaged;
use store::{INTAKE_LEASE, IntakeItem, IntakeVerdict, StoreError};

use crate::accept::{self, Waiting};
use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, get, moment, optional_millis, parsed};

pub async fn awaiting(
    connection: &mut MySqlConnection,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<IntakeItem>, Fault> {
    let rows = sqlx::query(
        "SELECT o.id, o.company_id, o.version, o.unfinished_starts
         FROM email_intake i STRAIGHT_JOIN email_outbox o ON o.id = i.email_id
         WHERE o.status = 'ACCEPTED' AND (o.unfinished_starts = 0 OR o.updated_at <= ? OR o.updated_at >= ?)
         ORDER BY i.email_id LIMIT ?",
    )
    .bind(at(now.minus(INTAKE_LEASE)))
    .bind(at(now.plus(INTAKE_LEASE)))
    .bind(limit)
    .fetch_all(connection)
    .await?;
    let item = |row: &MySqlRow| -> Result<IntakeItem, StoreError> {
        Ok(IntakeItem {
            id: parsed(row, "id")?,
            company: parsed(row, "company_id")?,
            version: get(row, "version")?,
            unfinished_starts: get(row, "unfinished_starts")?,
        })
    };
    Ok(rows.iter().map(item).collect::<Result<_, _>>()?)
}

/// The new version and the content as it is kept: it is read when the start is on disk.
pub type Begun = (u64, Option<Vec<u8>>);

pub async fn begin(
    lane: &mut Lane,
    (id, version): (EmailId, u64),
    now: Timestamp,
) -> Result<Option<Begun>, Fault> {
    let counted = sqlx::query(
        "UPDATE email_outbox SET version = version + 1, unfinished_starts = unfinished_starts + 1, updated_at = ?
         WHERE id = ? AND status = 'ACCEPTED' AND version = ?",
    )
    .bind(at(now))
    .bind(id.to_string())
    .bind(version)
    .execute(&mut lane.connection)
    .await?;
    if counted.rows_affected() == 0 {
        return Ok(None);
    }
    let sql = "SELECT body FROM contents WHERE email_id = ?";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut lane.connection).await?;
    let block = row.map(|row| get(&row, "body")).transpose()?;
    Ok(Some((version + 1, block)))
}

pub async fn settle(
    lane: &mut Lane,
    (id, version): (EmailId, u64),
    verdict: &IntakeVerdict,
    events: &[Event],
    now: Timestamp,
) -> Result<bool, Fault> {
    let Some(unchecked) = find(&mut lane.connection, id, version).await? else { return Ok(false) };
    let sql = "DELETE FROM email_intake WHERE email_id = ?";
    sqlx::query(sql).bind(id.to_string()).execute(&mut lane.connection).await?;
    match verdict {
        IntakeVerdict::Passed { envelope } => pass(lane, &unchecked, envelope, now).await?,
        IntakeVerdict::Refused { failure } => refuse(lane, &unchecked, failure, now).await?,
    }
    row::add_events(&mut lane.connection, events.iter().map(|event| (id, event))).await?;
    Ok(true)
}

struct Unchecked {
    id: EmailId,
    route: String,
    company: CompanyId,
    priority: u8,
    size_bytes: u64,
    expires_at: Timestamp,
    due_at: Timestamp,
    detail: Detail,
}

async fn find(
    connection: &mut MySqlConnection,
    id: EmailId,
    version: u64,
) -> Result<Option<Unchecked>, Fault> {
    let row = sqlx::query(
        "SELECT route, company_id, priority, size_bytes, expires_at, due_after_intake, created_at, detail
         FROM email_outbox WHERE id = ? AND status = 'ACCEPTED' AND version = ? FOR UPDATE",
    )
    .bind(id.to_string())
    .bind(version)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Unchecked {
        id,
        route: get(&row, "route")?,
        company: parsed(&row, "company_id")?,
        priority: get(&row, "priority")?,
        size_bytes: get(&row, "size_bytes")?,
        expires_at: moment(&row, "expires_at")?,
        due_at: optional_millis(&row, "due_after_intake")?.map_or_else(|| moment(&row, "created_at"), Ok)?,
        detail: Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?,
    }))
}

/// The email enters the queue under the envelope that was read from it.
async fn pass(
    lane: &mut Lane,
    unchecked: &Unchecked,
    envelope: &Envelope,
    now: Timestamp,
) -> Result<(), Fault> {
    let to = moved(Status::Accepted, Move::IntakePassed)?;
    lane.counts.moved(Status::Accepted, to);
    let connection = &mut lane.connection;
    let id = unchecked.id.to_string();
    sqlx::query(
        "UPDATE email_outbox SET status = ?, version = version + 1, due_after_intake = NULL, unfinished_starts = 0,
             to_email = ?, subject = ?, detail = ?, updated_at = ?
         WHERE id = ? AND status = 'ACCEPTED'",
    )
    .bind(to.as_str())
    .bind(envelope.to.expose())
    .bind(envelope.subject.expose())
    .bind(unchecked.detail.clone().with_envelope(envelope).encode())
    .bind(at(now))
    .bind(&id)
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM email_tags WHERE email_id = ?").bind(&id).execute(&mut *connection).await?;
    let tags = std::iter::once((unchecked.company, unchecked.id, &envelope.tags[..]));
    accept::add_tags(connection, tags).await?;
    let waiting = Waiting {
        id,
        route: unchecked.route.clone(),
        company: unchecked.company.to_string(),
        priority: unchecked.priority,
        due_at: unchecked.due_at,
        expires_at: unchecked.expires_at,
        size_bytes: unchecked.size_bytes,
    };
    accept::enqueue(connection, &[waiting]).await
}

async fn refuse(
    lane: &mut Lane,
    unchecked: &Unchecked,
    failure: &Failure,
    now: Timestamp,
) -> Result<(), Fault> {
    let to = moved(Status::Accepted, Move::IntakeFailed)?;
    lane.counts.moved(Status::Accepted, to);
    sqlx::query(
        "UPDATE email_outbox SET status = ?, trouble = ?, version = version + 1, due_after_intake = NULL, failed_at = ?,
             updated_at = ?, last_failure_code = ?, last_failure_category = ?, last_failure_reason = ?,
             last_failure_at = ?
         WHERE id = ? AND status = 'ACCEPTED'",
    )
    .bind(to.as_str())
    .bind(row::trouble(to))
    .bind(at(now))
    .bind(at(now))
    .bind(failure.code.as_str())
    .bind(failure.category.as_str())
    .bind(&failure.message)
    .bind(at(now))
    .bind(unchecked.id.to_string())
    .execute(&mut lane.connection)
    .await?;
    Ok(())
}
