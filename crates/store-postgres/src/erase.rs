//! Forgetting a person: every email that names them loses what says who they are, and keeps its counts.

use std::collections::HashSet;

use model::{Address, CompanyId, Content, EmailId, Event, EventKind, Status, Timestamp};
use sqlx::{PgConnection, Row as _};
use store::consequence::subject_of;
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT, LOOKED_AT, Reached};
use store::record::damaged;
use store::{Cursor, Erased, content_codec};
use uuid::Uuid;

use crate::counts::Counts;
use crate::error::Fault;
use crate::outbox::cancel_row;
use crate::row::{self, at};
use crate::tallies;

/// Who is to be forgotten, and by whom.
pub struct Person {
    pub company: CompanyId,
    pub address: Address,
}

pub async fn erase(
    connection: &mut PgConnection,
    person: &Person,
    reached: &Reached,
    now: Timestamp,
    limit: u32,
) -> Result<Erased, Fault> {
    let (ids, next) = find(connection, person, reached, limit).await?;
    let mut erased = Erased { next, ..Erased::default() };
    let mut counts = Counts::default();
    for email in &lock(connection, &ids, &person.address).await? {
        if email.status == Status::Processing {
            erased.pending += 1;
            continue;
        }
        if email.is_to && !email.status.is_final() {
            let event = Event::new(EventKind::Cancelled, now).with("reason", "erased");
            cancel_row(connection, &mut counts, email.id, email.status, event).await?;
        }
        erase_email(connection, email, &person.address).await?;
        erased.emails += 1;
    }
    if erased.next.is_none() {
        erased.recipients = erase_recipients(connection, person, now).await?;
        erase_traces(connection, person.company, &subject_of(&person.address)).await?;
    }
    counts.flush(connection).await?;
    Ok(erased)
}

/// The next emails that name the person, and where to go on.
async fn find(
    connection: &mut PgConnection,
    person: &Person,
    reached: &Reached,
    limit: u32,
) -> Result<(Vec<Uuid>, Option<Cursor>), Fault> {
    let place = |place: &Option<String>| {
        place.as_ref().and_then(|place| Uuid::parse_str(place).ok()).unwrap_or_default()
    };
    let mut found = Vec::new();
    let start = match reached {
        Reached::All(after) => place(after),
        Reached::To(after) => {
            found = emails_to(connection, person, place(after), limit).await?;
            if let Some(last) = found.last().filter(|_| found.len() == limit as usize) {
                let next = Reached::to(last);
                return Ok((found, Some(next)));
            }
            Uuid::nil()
        }
    };
    let end = end_of_look(connection, person, start).await?;
    let room = limit as usize - found.len();
    let seeming = seem_to_copy(connection, person, start, end, room).await?;
    let next = match seeming.last() {
        Some((last, _)) if seeming.len() == room => Some(Reached::all(last)),
        _ => end.map(Reached::all),
    };
    let names = |(_, detail): &&(Uuid, Detail)| erasure::names(detail, &person.address);
    found.extend(seeming.iter().filter(names).map(|(id, _)| id));
    Ok((found, next))
}

async fn emails_to(
    connection: &mut PgConnection,
    person: &Person,
    after: Uuid,
    limit: u32,
) -> Result<Vec<Uuid>, Fault> {
    let rows = sqlx::query(
        "SELECT id FROM email_outbox WHERE company_id = $1 AND lower(to_email) = $2 AND id > $3 ORDER BY id LIMIT $4",
    )
    .bind(person.company.uuid())
    .bind(subject_of(&person.address))
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The last email that this step looks at, if there are more behind it.
async fn end_of_look(
    connection: &mut PgConnection,
    person: &Person,
    start: Uuid,
) -> Result<Option<Uuid>, Fault> {
    let row = sqlx::query(
        "SELECT id FROM email_outbox WHERE company_id = $1 AND id > $2 ORDER BY id LIMIT 1 OFFSET $3",
    )
    .bind(person.company.uuid())
    .bind(start)
    .bind(i64::from(LOOKED_AT) - 1)
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Emails to others whose detail holds the address somewhere.
async fn seem_to_copy(
    connection: &mut PgConnection,
    person: &Person,
    start: Uuid,
    end: Option<Uuid>,
    limit: usize,
) -> Result<Vec<(Uuid, Detail)>, Fault> {
    let rows = sqlx::query(
        "SELECT id, detail FROM email_outbox
         WHERE company_id = $1 AND id > $2 AND id <= $3 AND position($4 IN lower(detail COLLATE \"C\")) > 0
           AND lower(to_email) <> $5
         ORDER BY id LIMIT $6",
    )
    .bind(person.company.uuid())
    .bind(start)
    .bind(end.unwrap_or(Uuid::max()))
    .bind(erasure::in_text(&person.address))
    .bind(subject_of(&person.address))
    .bind(limit as i64)
    .fetch_all(connection)
    .await?;
    let mut seeming = Vec::with_capacity(rows.len());
    for row in &rows {
        let detail = Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?;
        seeming.push((row.try_get("id")?, detail));
    }
    Ok(seeming)
}

async fn erase_recipients(
    connection: &mut PgConnection,
    person: &Person,
    now: Timestamp,
) -> Result<u64, Fault> {
    let changed = sqlx::query(
        "UPDATE recipients SET email = $3, name = NULL, legal_name = NULL, document_sealed = NULL,
             document_hmac = NULL, deleted_at = coalesce(deleted_at, $4)
         WHERE company_id = $1 AND lower(email) = $2",
    )
    .bind(person.company.uuid())
    .bind(subject_of(&person.address))
    .bind(ERASED_ADDRESS)
    .bind(at(now))
    .execute(connection)
    .await?;
    Ok(changed.rows_affected())
}

/// What is kept by address besides the emails, in lower case. That somebody is not to be written to stays known.
async fn erase_traces(connection: &mut PgConnection, company: CompanyId, address: &str) -> Result<(), Fault> {
    for sql in [
        "DELETE FROM address_failures WHERE company_id = $1 AND address = $2",
        "DELETE FROM problems WHERE company_id = $1 AND lower(address) = $2",
        "DELETE FROM alerts WHERE company_id = $1 AND (subject = $2 OR lower(address) = $2)",
    ] {
        sqlx::query(sql).bind(company.uuid()).bind(address).execute(&mut *connection).await?;
    }
    tallies::forget(connection, company, address).await
}

struct Found {
    id: EmailId,
    status: Status,
    is_to: bool,
    detail: Detail,
}

/// Locks them as everybody does, and reads them as they are now.
async fn lock(connection: &mut PgConnection, ids: &[Uuid], address: &Address) -> Result<Vec<Found>, Fault> {
    let waiting = sqlx::query(
        "SELECT email_id FROM email_queue WHERE email_id = ANY($1) AND due_at IS NOT NULL
         ORDER BY email_id FOR UPDATE",
    )
    .bind(ids)
    .fetch_all(&mut *connection)
    .await?;
    let waiting: HashSet<Uuid> =
        waiting.iter().map(|row| row.try_get(0)).collect::<Result<_, sqlx::Error>>()?;
    let rows = sqlx::query(
        "SELECT id, status, to_email, detail FROM email_outbox WHERE id = ANY($1) ORDER BY id FOR UPDATE",
    )
    .bind(ids)
    .fetch_all(connection)
    .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let (id, status) = (row::email_id(row, "id")?, row::status(row)?);
        if status.is_waiting() && !waiting.contains(&id.uuid()) {
            return Err(Fault::Changed);
        }
        let to: &str = row.try_get("to_email")?;
        found.push(Found {
            id,
            status,
            is_to: to.eq_ignore_ascii_case(address.expose()),
            detail: Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?,
        });
    }
    Ok(found)
}

/// An email to the person loses everything but its counts; one that only copied them, or sent answers to them, loses
/// their address. It has another version then: an intake that read it before must not write the address back.
async fn erase_email(connection: &mut PgConnection, email: &Found, address: &Address) -> Result<(), Fault> {
    let detail = erasure::without(&email.detail, address, email.is_to);
    let id = email.id.uuid();
    if email.is_to {
        sqlx::query(
            "UPDATE email_outbox SET to_email = $2, subject = $3, recipient_external_id = NULL, detail = $4
             WHERE id = $1",
        )
        .bind(id)
        .bind(ERASED_ADDRESS)
        .bind(ERASED_SUBJECT)
        .bind(detail.encode())
        .execute(&mut *connection)
        .await?;
    } else {
        sqlx::query("UPDATE email_outbox SET detail = $2, version = version + 1 WHERE id = $1")
            .bind(id)
            .bind(detail.encode())
            .execute(&mut *connection)
            .await?;
    }
    // An .eml names its copies inside.
    if email.is_to || is_raw(connection, id).await? {
        sqlx::query("DELETE FROM contents WHERE email_id = $1").bind(id).execute(&mut *connection).await?;
    }
    // The providers' words name the person.
    sqlx::query("UPDATE reports SET payload = '' WHERE email_id = $1")
        .bind(id)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM recipient_states WHERE email_id = $1 AND lower(address) = $2")
        .bind(id)
        .bind(subject_of(address))
        .execute(connection)
        .await?;
    Ok(())
}

async fn is_raw(connection: &mut PgConnection, id: Uuid) -> Result<bool, Fault> {
    let row = sqlx::query("SELECT body FROM contents WHERE email_id = $1")
        .bind(id)
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(false) };
    Ok(matches!(content_codec::decode(row.try_get(0)?), Ok(Content::Raw(_))))
}
