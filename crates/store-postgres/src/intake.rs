//! Emails in ACCEPTED: handing them out to be checked, and recording what the check found.

use model::{EmailId, Envelope, Event, Failure, Move, Status, Timestamp};
use sqlx::{PgConnection, PgPool, Row as _};
use store::change::moved;
use store::detail::Detail;
use store::record::damaged;
use store::{INTAKE_LEASE, IntakeItem, IntakeVerdict};
use uuid::Uuid;

use crate::counts::Counts;
use crate::error::Fault;
use crate::insert::different_tags;
use crate::row::{self, History, at, clean, signed, trouble};

pub async fn awaiting(pool: &PgPool, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, Fault> {
    let rows = sqlx::query(
        "SELECT id, company_id, version, unfinished_starts FROM email_outbox
         WHERE due_after_intake IS NOT NULL AND status = 'ACCEPTED'
           AND (unfinished_starts = 0 OR updated_at <= $1 OR updated_at >= $2)
         ORDER BY id LIMIT $3",
    )
    .bind(at(now.minus(INTAKE_LEASE)))
    .bind(at(now.plus(INTAKE_LEASE)))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        let starts: i32 = row.try_get("unfinished_starts")?;
        items.push(IntakeItem {
            id: row::email_id(row, "id")?,
            company: row::company_id(row, "company_id")?,
            version: u64::try_from(row.try_get::<i64, _>("version")?).map_err(|_| damaged("version"))?,
            unfinished_starts: u32::try_from(starts).map_err(|_| damaged("unfinished_starts"))?,
        });
    }
    Ok(items)
}

/// The new version and the content as it is kept: it is read when the start is on disk.
pub type Begun = (u64, Option<Vec<u8>>);

pub async fn begin(
    connection: &mut PgConnection,
    (id, version): (EmailId, u64),
    now: Timestamp,
) -> Result<Option<Begun>, Fault> {
    let counted = sqlx::query(
        "UPDATE email_outbox SET version = version + 1, unfinished_starts = unfinished_starts + 1, updated_at = $3
         WHERE id = $1 AND status = 'ACCEPTED' AND version = $2",
    )
    .bind(id.uuid())
    .bind(signed(version))
    .bind(at(now))
    .execute(&mut *connection)
    .await?;
    if counted.rows_affected() == 0 {
        return Ok(None);
    }
    let sql = "SELECT body FROM contents WHERE email_id = $1";
    let row = sqlx::query(sql).bind(id.uuid()).fetch_optional(connection).await?;
    let block = row.map(|row| row.try_get("body")).transpose()?;
    Ok(Some((version + 1, block)))
}

pub async fn settle(
    connection: &mut PgConnection,
    (id, version): (EmailId, u64),
    verdict: &IntakeVerdict,
    events: &[Event],
    now: Timestamp,
) -> Result<bool, Fault> {
    let Some(unchecked) = find(connection, id, version).await? else { return Ok(false) };
    let to = match verdict {
        IntakeVerdict::Passed { envelope } => pass(connection, &unchecked, envelope, now).await?,
        IntakeVerdict::Refused { failure } => refuse(connection, &unchecked, failure, now).await?,
    };
    History::of_email(id, events).write(connection).await?;
    let mut counts = Counts::default();
    counts.moved(Status::Accepted, to);
    counts.flush(connection).await?;
    Ok(true)
}

struct Unchecked {
    id: Uuid,
    company: Uuid,
    detail: Detail,
}

/// Locks it, too.
async fn find(connection: &mut PgConnection, id: EmailId, version: u64) -> Result<Option<Unchecked>, Fault> {
    let row = sqlx::query(
        "SELECT id, company_id, detail FROM email_outbox
         WHERE id = $1 AND status = 'ACCEPTED' AND version = $2 FOR UPDATE",
    )
    .bind(id.uuid())
    .bind(signed(version))
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let detail = Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?;
    Ok(Some(Unchecked { id: row.try_get("id")?, company: row.try_get("company_id")?, detail }))
}

/// The email enters the queue under the envelope that was read from it.
async fn pass(
    connection: &mut PgConnection,
    unchecked: &Unchecked,
    envelope: &Envelope,
    now: Timestamp,
) -> Result<Status, Fault> {
    let to = moved(Status::Accepted, Move::IntakePassed)?;
    sqlx::query(
        "INSERT INTO email_queue (email_id, route, company_id, priority, due_at, expires_at, size_bytes, fence)
         SELECT id, route, company_id, priority,
                coalesce(due_after_intake, (extract(epoch FROM created_at) * 1000)::bigint), expires_at, size_bytes,
                fence
         FROM email_outbox WHERE id = $1",
    )
    .bind(unchecked.id)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "UPDATE email_outbox SET status = $2, trouble = $3, version = version + 1, due_after_intake = NULL,
             unfinished_starts = 0, to_email = $4, subject = $5, detail = $6, updated_at = $7
         WHERE id = $1",
    )
    .bind(unchecked.id)
    .bind(to.as_str())
    .bind(trouble(to))
    .bind(clean(envelope.to.expose()))
    .bind(clean(envelope.subject.expose()))
    .bind(unchecked.detail.clone().with_envelope(envelope).encode())
    .bind(at(now))
    .execute(&mut *connection)
    .await?;
    for (sql, tags) in [
        (
            "DELETE FROM email_tags WHERE company_id = $1 AND tag = ANY($2) AND email_id = $3",
            &unchecked.detail.tags,
        ),
        (
            "INSERT INTO email_tags (company_id, tag, email_id) SELECT $1, unnest($2::text[]), $3",
            &envelope.tags,
        ),
    ] {
        sqlx::query(sql)
            .bind(unchecked.company)
            .bind(different_tags(tags).into_iter().collect::<Vec<_>>())
            .bind(unchecked.id)
            .execute(&mut *connection)
            .await?;
    }
    Ok(to)
}

async fn refuse(
    connection: &mut PgConnection,
    unchecked: &Unchecked,
    failure: &Failure,
    now: Timestamp,
) -> Result<Status, Fault> {
    let to = moved(Status::Accepted, Move::IntakeFailed)?;
    sqlx::query(
        "UPDATE email_outbox SET status = $2, trouble = $3, version = version + 1, due_after_intake = NULL,
             failed_at = $4, updated_at = $4, last_failure_code = $5, last_failure_category = $6,
             last_failure_reason = $7, last_failure_at = $4
         WHERE id = $1",
    )
    .bind(unchecked.id)
    .bind(to.as_str())
    .bind(trouble(to))
    .bind(at(now))
    .bind(failure.code.as_str())
    .bind(failure.category.as_str())
    .bind(clean(&failure.message))
    .execute(connection)
    .await?;
    Ok(to)
}
