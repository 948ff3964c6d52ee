//! Forgetting a person: every email that names them loses what says who they are, and keeps its counts.

use model::{Address, CompanyId, Content, EmailId, Event, EventKind, Status, Timestamp};
use sqlx::{MySqlConnection, Row as _};
use store::consequence::subject_of;
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT, LOOKED_AT, Reached};
use store::record::damaged;
use store::{Cursor, Erased, content_codec};

use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, get, parsed};
use crate::{outbox, tallies};

/// Behind every id.
const END_OF_IDS: &str = "g";

/// Who is to be forgotten, by whom and when.
pub struct Person {
    pub company: CompanyId,
    pub address: Address,
    pub now: Timestamp,
}

pub async fn erase(lane: &mut Lane, person: &Person, reached: &Reached, limit: u32) -> Result<Erased, Fault> {
    let (found, next) = find(&mut lane.connection, person, reached, limit).await?;
    let mut erased = Erased { next, ..Erased::default() };
    for id in found {
        match erase_from(lane, person, id).await? {
            Forgot::Them => erased.emails += 1,
            Forgot::NotYet => erased.pending += 1,
            Forgot::Nobody => {}
        }
    }
    if erased.next.is_none() {
        erased.recipients = erase_recipients(&mut lane.connection, person).await?;
        erase_traces(&mut lane.connection, person).await?;
    }
    Ok(erased)
}

/// The next emails that name the person, and where to go on.
async fn find(
    connection: &mut MySqlConnection,
    person: &Person,
    reached: &Reached,
    limit: u32,
) -> Result<(Vec<EmailId>, Option<Cursor>), Fault> {
    let mut found = Vec::new();
    let start = match reached {
        Reached::All(after) => after.as_deref().unwrap_or_default(),
        Reached::To(after) => {
            found = emails_to(connection, person, after.as_deref().unwrap_or_default(), limit).await?;
            if let Some(last) = found.last().filter(|_| found.len() == limit as usize) {
                let next = Reached::to(last);
                return Ok((found, Some(next)));
            }
            ""
        }
    };
    let end = end_of_look(connection, person, start).await?;
    let room = limit as usize - found.len();
    let seeming = seem_to_copy(connection, person, start, end.as_deref(), room).await?;
    let next = match seeming.last() {
        Some((last, _)) if seeming.len() == room => Some(Reached::all(last)),
        _ => end.map(Reached::all),
    };
    let names = |(_, detail): &&(EmailId, Detail)| erasure::names(detail, &person.address);
    found.extend(seeming.iter().filter(names).map(|(id, _)| id));
    Ok((found, next))
}

async fn emails_to(
    connection: &mut MySqlConnection,
    person: &Person,
    after: &str,
    limit: u32,
) -> Result<Vec<EmailId>, Fault> {
    let sql = "SELECT id FROM email_outbox FORCE INDEX (outbox_by_to)
               WHERE company_id = ? AND to_email = ? AND id > ? ORDER BY id LIMIT ?";
    let query = sqlx::query(sql).bind(person.company.to_string()).bind(person.address.expose());
    let rows = query.bind(after).bind(limit).fetch_all(connection).await?;
    Ok(rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?)
}

/// The last email that this step looks at, if there are more behind it.
async fn end_of_look(
    connection: &mut MySqlConnection,
    person: &Person,
    start: &str,
) -> Result<Option<String>, Fault> {
    let sql = "SELECT id FROM email_outbox FORCE INDEX (outbox_by_company)
               WHERE company_id = ? AND id > ? ORDER BY id LIMIT 1 OFFSET ?";
    let query = sqlx::query(sql).bind(person.company.to_string()).bind(start).bind(LOOKED_AT - 1);
    Ok(query.fetch_optional(connection).await?.map(|row| get(&row, "id")).transpose()?)
}

/// Emails to others whose detail holds the address somewhere.
async fn seem_to_copy(
    connection: &mut MySqlConnection,
    person: &Person,
    start: &str,
    end: Option<&str>,
    limit: usize,
) -> Result<Vec<(EmailId, Detail)>, Fault> {
    let sql = "SELECT id, detail FROM email_outbox FORCE INDEX (outbox_by_company)
               WHERE company_id = ? AND id > ? AND id <= ? AND INSTR(LOWER(detail), ?) > 0 AND to_email <> ?
               ORDER BY id LIMIT ?";
    let query = sqlx::query(sql)
        .bind(person.company.to_string())
        .bind(start)
        .bind(end.unwrap_or(END_OF_IDS))
        .bind(erasure::in_text(&person.address))
        .bind(person.address.expose())
        .bind(limit as u64);
    let rows = query.fetch_all(connection).await?;
    let mut seeming = Vec::with_capacity(rows.len());
    for row in &rows {
        let detail = Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?;
        seeming.push((parsed(row, "id")?, detail));
    }
    Ok(seeming)
}

async fn erase_recipients(connection: &mut MySqlConnection, person: &Person) -> Result<u64, Fault> {
    let changed = sqlx::query(
        "UPDATE recipients SET email = ?, name = NULL, legal_name = NULL, document_sealed = NULL, document_hmac = NULL,
             deleted_at = COALESCE(deleted_at, ?)
         WHERE company_id = ? AND email = ?",
    )
    .bind(ERASED_ADDRESS)
    .bind(at(person.now))
    .bind(person.company.to_string())
    .bind(person.address.expose())
    .execute(connection)
    .await?;
    Ok(changed.rows_affected())
}

/// What is kept by address besides the emails. That somebody is not to be written to stays known.
async fn erase_traces(connection: &mut MySqlConnection, person: &Person) -> Result<(), Fault> {
    let (company, address) = (person.company.to_string(), subject_of(&person.address));
    for sql in [
        "DELETE FROM address_failures WHERE company_id = ? AND address = ?",
        "DELETE FROM problems WHERE company_id = ? AND address = ?",
    ] {
        sqlx::query(sql).bind(&company).bind(&address).execute(&mut *connection).await?;
    }
    let sql = "DELETE FROM alerts WHERE company_id = ? AND (subject = ? OR address = ?)";
    let query = sqlx::query(sql).bind(&company).bind(&address).bind(&address);
    query.execute(&mut *connection).await?;
    tallies::forget(connection, person.company, &address).await
}

/// What came of an email that was found.
enum Forgot {
    Them,
    /// It is in flight.
    NotYet,
    /// It is gone.
    Nobody,
}

/// An email to the person is withdrawn if it waits and loses everything but its counts; one that only copied them, or
/// sent answers to them, loses their address. It has another version then: an intake that read it before must not write the
/// address back.
async fn erase_from(lane: &mut Lane, person: &Person, id: EmailId) -> Result<Forgot, Fault> {
    let sql = "SELECT email_id FROM email_queue WHERE email_id = ? FOR UPDATE";
    sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut lane.connection).await?;
    let sql = "SELECT status, to_email, detail FROM email_outbox WHERE id = ? FOR UPDATE";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut lane.connection).await?;
    // Retention may have been first.
    let Some(row) = row else { return Ok(Forgot::Nobody) };
    let status = row::status(&row)?;
    if status == Status::Processing {
        return Ok(Forgot::NotYet);
    }
    let is_to = Address::trusted(get(&row, "to_email")?).same_mailbox(&person.address);
    let detail = Detail::decode(get(&row, "detail")?).ok_or_else(|| damaged("detail"))?;
    if is_to && !status.is_final() {
        let event = Event::new(EventKind::Cancelled, person.now).with("reason", "erased");
        outbox::cancel_email(lane, id, status, event).await?;
    }
    let connection = &mut lane.connection;
    if is_to {
        let sql =
            "UPDATE email_outbox SET to_email = ?, subject = ?, recipient_external_id = NULL WHERE id = ?";
        let query = sqlx::query(sql).bind(ERASED_ADDRESS).bind(ERASED_SUBJECT).bind(id.to_string());
        query.execute(&mut *connection).await?;
    }
    // An .eml names its copies inside.
    if is_to || is_raw(connection, id).await? {
        let sql = "DELETE FROM contents WHERE email_id = ?";
        sqlx::query(sql).bind(id.to_string()).execute(&mut *connection).await?;
    }
    // The providers' words name the person.
    let sql = "UPDATE reports SET payload = '' WHERE email_id = ?";
    sqlx::query(sql).bind(id.to_string()).execute(&mut *connection).await?;
    let sql = "DELETE FROM recipient_states WHERE email_id = ? AND address = ?";
    let query = sqlx::query(sql).bind(id.to_string()).bind(person.address.expose());
    query.execute(&mut *connection).await?;
    let detail = erasure::without(&detail, &person.address, is_to).encode();
    let sql = "UPDATE email_outbox SET detail = ?, version = version + 1 WHERE id = ?";
    sqlx::query(sql).bind(detail).bind(id.to_string()).execute(connection).await?;
    Ok(Forgot::Them)
}

async fn is_raw(connection: &mut MySqlConnection, id: EmailId) -> Result<bool, Fault> {
    let sql = "SELECT body FROM contents WHERE email_id = ?";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(false) };
    Ok(matches!(content_codec::decode(get(&row, "body")?), Ok(Content::Raw(_))))
}
