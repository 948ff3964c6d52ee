//! Forgetting a person: every email that names them loses what says who they are, and keeps its counts.

use std::collections::HashSet;

use model::{Address, CompanyId, Content, EmailId, Event, EventKind, Status, Timestamp};
use sqlx::{PgConnection, Row as _};
use store::consequence::subject_of;
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT};
use store::record::damaged;
use store::{Erased, content_codec};
use uuid::Uuid;

use crate::counts::Counts;
use crate::error::Fault;
use crate::outbox::cancel_row;
use crate::row::{self, at};
use crate::tallies;

/// Emails to the address along their index, then those that name it among their copies or as where answers go. The
/// second search reads all emails of the company, hence the cheap look before the exact one.
const FIND: &str = "(SELECT id FROM email_outbox
      WHERE company_id = $1 AND lower(to_email) = $2 LIMIT $4)
     UNION ALL
     (SELECT id FROM email_outbox
      WHERE company_id = $1 AND lower(to_email) <> $2
        AND CASE WHEN position($3 IN lower(detail COLLATE \"C\")) = 0 THEN false
            ELSE EXISTS (SELECT 1 FROM json_array_elements_text(detail::json -> 'cc') AS copy
                         WHERE lower(copy COLLATE \"C\") = $2)
              OR EXISTS (SELECT 1 FROM json_array_elements_text(detail::json -> 'bcc') AS copy
                         WHERE lower(copy COLLATE \"C\") = $2)
              OR lower((detail::json ->> 'replyTo') COLLATE \"C\") = $2
              OR position('<' || $2 || '>' IN lower(coalesce(detail::json ->> 'replyTo', '') COLLATE \"C\")) > 0
            END
      LIMIT $4)
     LIMIT $4";

pub async fn erase(
    connection: &mut PgConnection,
    company: CompanyId,
    address: &Address,
    now: Timestamp,
    limit: u32,
) -> Result<Erased, Fault> {
    sqlx::query("SET LOCAL statement_timeout = '10min'").execute(&mut *connection).await?;
    let ids = find(connection, company, address, limit).await?;
    let found = lock(connection, &ids, address).await?;
    let mut erased = Erased { more: found.len() == limit as usize, ..Erased::default() };
    let mut counts = Counts::default();
    for email in &found {
        if email.status == Status::Processing {
            continue;
        }
        if email.is_to && !email.status.is_final() {
            let event = Event::new(EventKind::Cancelled, now).with("reason", "erased");
            cancel_row(connection, &mut counts, email.id, email.status, event).await?;
        }
        erase_email(connection, email, address).await?;
        erased.emails += 1;
    }
    erased.pending = found.len() as u64 - erased.emails;
    // Those in flight would be found again and again.
    erased.more &= erased.emails > 0;
    let recipients = sqlx::query(
        "UPDATE recipients SET email = $3, name = NULL, legal_name = NULL, document_sealed = NULL,
             document_hmac = NULL, deleted_at = coalesce(deleted_at, $4)
         WHERE company_id = $1 AND lower(email) = $2",
    )
    .bind(company.uuid())
    .bind(address.expose().to_ascii_lowercase())
    .bind(ERASED_ADDRESS)
    .bind(at(now))
    .execute(&mut *connection)
    .await?;
    erased.recipients = recipients.rows_affected();
    erase_traces(connection, company, &subject_of(address)).await?;
    counts.flush(connection).await?;
    Ok(erased)
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

async fn find(
    connection: &mut PgConnection,
    company: CompanyId,
    address: &Address,
    limit: u32,
) -> Result<Vec<Uuid>, Fault> {
    let lower = address.expose().to_ascii_lowercase();
    // As it stands in JSON, without the quotes around it.
    let in_json = serde_json::Value::from(lower.as_str()).to_string();
    let rows = sqlx::query(FIND)
        .bind(company.uuid())
        .bind(&lower)
        .bind(in_json.trim_matches('"'))
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
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
/// their address.
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
        sqlx::query("UPDATE email_outbox SET detail = $2 WHERE id = $1")
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
