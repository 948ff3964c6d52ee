//! Forgetting a person: every email that names them loses what says who they are, and keeps its counts. They are looked
//! for beside the writer, which then looks again at the few that were found.

use model::{Address, CompanyId, Content, Event, EventKind, Status, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::consequence::subject_of;
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT, LOOKED_AT, Reached};
use store::record::damaged;
use store::{Cursor, Erased, StoreError, content_codec};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{SqliteStore, outbox, row};

/// Who is to be forgotten, and by whom.
#[derive(Clone)]
pub struct Person {
    pub company: CompanyId,
    pub address: Address,
}

pub async fn erase(
    store: &SqliteStore,
    person: Person,
    after: Option<&Cursor>,
    now: Timestamp,
    limit: u32,
) -> Result<Erased, StoreError> {
    let (reached, sought) = (Reached::of(after), person.clone());
    let (found, next) = store.reader.run(move |connection| find(connection, &sought, reached, limit)).await?;
    store.writer.run(move |work| erase_found(work, &person, &found, next.clone(), now)).await
}

/// The next emails that name the person, and where to go on.
fn find(
    connection: &Connection,
    person: &Person,
    reached: Reached,
    limit: u32,
) -> Result<(Vec<i64>, Option<Cursor>), StoreError> {
    let place = |place: Option<String>| place.and_then(|place| place.parse().ok()).unwrap_or(0);
    let mut found = Vec::new();
    let start = match reached {
        Reached::All(after) => place(after),
        Reached::To(after) => {
            found = emails_to(connection, person, place(after), limit).map_err(from_sqlite)?;
            if let Some(last) = found.last().filter(|_| found.len() == limit as usize) {
                let next = Reached::to(last);
                return Ok((found, Some(next)));
            }
            0
        }
    };
    let end = end_of_look(connection, person, start).map_err(from_sqlite)?;
    let room = limit as usize - found.len();
    let seeming = seem_to_copy(connection, person, start, end, room)?;
    let next = match seeming.last() {
        Some((last, _)) if seeming.len() == room => Some(Reached::all(last)),
        _ => end.map(Reached::all),
    };
    let names = |(_, detail): &&(i64, Detail)| erasure::names(detail, &person.address);
    found.extend(seeming.iter().filter(names).map(|(seq, _)| seq));
    Ok((found, next))
}

fn emails_to(connection: &Connection, person: &Person, after: i64, limit: u32) -> rusqlite::Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT seq FROM email_outbox INDEXED BY outbox_by_to
         WHERE company_id = ?1 AND to_email = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4",
    )?;
    let values = (person.company.to_string(), person.address.expose(), after, limit);
    statement.query_map(values, |row| row.get(0))?.collect()
}

/// The last email that this step looks at, if there are more behind it.
fn end_of_look(connection: &Connection, person: &Person, start: i64) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT seq FROM email_outbox INDEXED BY outbox_by_company
             WHERE company_id = ?1 AND seq > ?2 ORDER BY seq LIMIT 1 OFFSET ?3",
        )?
        .query_row((person.company.to_string(), start, LOOKED_AT - 1), |row| row.get(0))
        .optional()
}

/// Emails to others whose detail holds the address somewhere.
fn seem_to_copy(
    connection: &Connection,
    person: &Person,
    start: i64,
    end: Option<i64>,
    limit: usize,
) -> Result<Vec<(i64, Detail)>, StoreError> {
    let sql = "SELECT seq, detail FROM email_outbox INDEXED BY outbox_by_company
               WHERE company_id = ?1 AND seq > ?2 AND seq <= ?3 AND instr(lower(detail), ?4) > 0 AND to_email <> ?5
               ORDER BY seq LIMIT ?6";
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let values = (
        person.company.to_string(),
        start,
        end.unwrap_or(i64::MAX),
        erasure::in_text(&person.address),
        person.address.expose(),
        limit as i64,
    );
    let mut rows = statement.query(values).map_err(from_sqlite)?;
    let mut seeming = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let detail: String = row.get(1).map_err(from_sqlite)?;
        let detail = Detail::decode(&detail).ok_or_else(|| damaged("detail"))?;
        seeming.push((row.get(0).map_err(from_sqlite)?, detail));
    }
    Ok(seeming)
}

fn erase_found(
    work: &mut Work<'_>,
    person: &Person,
    found: &[i64],
    next: Option<Cursor>,
    now: Timestamp,
) -> Result<Erased, StoreError> {
    let mut erased = Erased { next, ..Erased::default() };
    for &seq in found {
        // Retention may have been first.
        let Some(email) = read(work.connection, person, seq)? else { continue };
        if email.status == Status::Processing {
            erased.pending += 1;
            continue;
        }
        if email.is_to && !email.status.is_final() {
            let event = Event::new(EventKind::Cancelled, now).with("reason", "erased");
            outbox::cancel_row(work, seq, email.status, event)?;
        }
        erase_email(work.connection, seq, &email, &person.address)?;
        erased.emails += 1;
    }
    if erased.next.is_none() {
        erased.recipients = erase_recipients(work.connection, person, now).map_err(from_sqlite)?;
        erase_traces(work.connection, person).map_err(from_sqlite)?;
    }
    Ok(erased)
}

struct Found {
    status: Status,
    is_to: bool,
    detail: Detail,
}

/// The email as it is now.
fn read(connection: &Connection, person: &Person, seq: i64) -> Result<Option<Found>, StoreError> {
    let sql = "SELECT status, to_email = ?2 AS is_to, detail FROM email_outbox WHERE seq = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let mut rows = statement.query((seq, person.address.expose())).map_err(from_sqlite)?;
    let Some(row) = rows.next().map_err(from_sqlite)? else { return Ok(None) };
    let detail: String = row.get("detail").map_err(from_sqlite)?;
    Ok(Some(Found {
        status: row::status(row)?,
        is_to: row.get("is_to").map_err(from_sqlite)?,
        detail: Detail::decode(&detail).ok_or_else(|| damaged("detail"))?,
    }))
}

/// An email to the person loses everything but its counts; one that only copied them, or sent answers to them, loses
/// their address. It has another version then: an intake that read it before must not write the address back.
fn erase_email(
    connection: &Connection,
    seq: i64,
    email: &Found,
    address: &Address,
) -> Result<(), StoreError> {
    let detail = erasure::without(&email.detail, address, email.is_to);
    if email.is_to {
        connection
            .execute(
                "UPDATE email_outbox SET to_email = ?2, subject = ?3, recipient_external_id = NULL WHERE seq = ?1",
                (seq, ERASED_ADDRESS, ERASED_SUBJECT),
            )
            .map_err(from_sqlite)?;
    }
    // An .eml names its copies inside.
    if email.is_to || is_raw(connection, seq)? {
        connection.execute("DELETE FROM contents WHERE email_seq = ?1", [seq]).map_err(from_sqlite)?;
    }
    // The providers' words name the person.
    connection
        .execute("UPDATE reports SET payload = x'' WHERE email_seq = ?1", [seq])
        .map_err(from_sqlite)?;
    connection
        .execute(
            "DELETE FROM recipient_states WHERE email_seq = ?1 AND address = ?2",
            (seq, address.expose()),
        )
        .map_err(from_sqlite)?;
    connection
        .execute(
            "UPDATE email_outbox SET detail = ?2, version = version + 1 WHERE seq = ?1",
            (seq, detail.encode()),
        )
        .map_err(from_sqlite)?;
    Ok(())
}

fn is_raw(connection: &Connection, seq: i64) -> Result<bool, StoreError> {
    let block: Option<Vec<u8>> = connection
        .query_row("SELECT body FROM contents WHERE email_seq = ?1", [seq], |row| row.get(0))
        .optional()
        .map_err(from_sqlite)?;
    Ok(block.is_some_and(|block| matches!(content_codec::decode(&block), Ok(Content::Raw(_)))))
}

fn erase_recipients(connection: &Connection, person: &Person, now: Timestamp) -> rusqlite::Result<u64> {
    let changed = connection.execute(
        "UPDATE recipients SET email = ?3, name = NULL, legal_name = NULL, document_sealed = NULL,
             document_hmac = NULL, deleted_at = coalesce(deleted_at, ?4)
         WHERE company_id = ?1 AND email = ?2",
        (person.company.to_string(), person.address.expose(), ERASED_ADDRESS, now.millis()),
    )?;
    Ok(changed as u64)
}

/// What is kept by address besides the emails. Counts stay: where the address stood there is one of nobody.
fn erase_traces(connection: &Connection, person: &Person) -> rusqlite::Result<()> {
    let (company, address) = (person.company.to_string(), subject_of(&person.address));
    for sql in [
        "DELETE FROM address_failures WHERE company_id = ?1 AND address = ?2",
        "DELETE FROM problems WHERE company_id = ?1 AND address = ?2",
        "DELETE FROM alerts WHERE company_id = ?1 AND (subject = ?2 OR lower(address) = ?2)",
        "UPDATE entity_recipients SET address = 'erased:' || hex(randomblob(16))
         WHERE company_id = ?1 AND address = ?2",
    ] {
        connection.execute(sql, (&company, &address))?;
    }
    Ok(())
}
