//! People known to a company, and forgetting them. How acceptance makes them known is in `people`.

use async_trait::async_trait;
use model::{Address, CompanyId, Content, EmailId, Event, EventKind, RecipientId, Status, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder, Row as _};
use store::consequence::subject_of;
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT};
use store::record::damaged;
use store::{Cursor, Erased, Page, RecipientRecord, Recipients, StoreError, content_codec};

use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, get, optional_moment, parsed};
use crate::{MysqlStore, outbox, tallies};

/// How many emails that seem to name a person are looked at with one statement.
const LOOKED_AT: u32 = 200;

/// Behind every id.
const END_OF_IDS: &str = "g";

#[async_trait]
impl Recipients for MysqlStore {
    async fn recipients_by_id(
        &self,
        company: CompanyId,
        ids: &[RecipientId],
    ) -> Result<Vec<RecipientRecord>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let asked = (company, ids.to_vec());
        self.read(asked, |connection, (company, ids)| Box::pin(by_id(connection, *company, ids))).await
    }

    async fn recipients(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<RecipientRecord>, StoreError> {
        let before = match after {
            None => END_OF_IDS.to_owned(),
            Some(cursor) => match cursor.0.parse::<RecipientId>() {
                Ok(id) => id.to_string(),
                // A cursor that is none of ours ends the list.
                Err(_) => return Ok(Page { items: Vec::new(), next: None }),
            },
        };
        let list = self.read((company, before, limit), |connection, (company, before, limit)| {
            Box::pin(list(connection, *company, before, *limit))
        });
        list.await
    }

    async fn erase(
        &self,
        company: CompanyId,
        address: &Address,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError> {
        let person = Person { company, address: address.clone(), now };
        self.write((person, limit), |lane, (person, limit)| Box::pin(erase(lane, person, *limit))).await
    }
}

async fn by_id(
    connection: &mut MySqlConnection,
    company: CompanyId,
    ids: &[RecipientId],
) -> Result<Vec<RecipientRecord>, Fault> {
    let mut query =
        QueryBuilder::<MySql>::new("SELECT id, email, external_id, deleted_at FROM recipients WHERE id IN (");
    let mut separated = query.separated(", ");
    for id in ids {
        separated.push_bind(id.to_string());
    }
    query.push(") AND company_id = ").push_bind(company.to_string());
    let rows = query.build().fetch_all(connection).await?;
    let record = |row: &MySqlRow| {
        Ok(RecipientRecord {
            id: parsed(row, "id")?,
            email: Address::trusted(get(row, "email")?),
            external_id: get(row, "external_id")?,
            deleted_at: optional_moment(row, "deleted_at")?,
        })
    };
    rows.iter().map(record).collect()
}

async fn list(
    connection: &mut MySqlConnection,
    company: CompanyId,
    before: &str,
    limit: u32,
) -> Result<Page<RecipientRecord>, Fault> {
    let sql = "SELECT id, email, external_id FROM recipients FORCE INDEX (recipients_by_company)
               WHERE company_id = ? AND deleted_at IS NULL AND id < ? ORDER BY id DESC LIMIT ?";
    let query = sqlx::query(sql).bind(company.to_string()).bind(before).bind(limit);
    let mut items = Vec::new();
    for row in query.fetch_all(connection).await? {
        items.push(RecipientRecord {
            id: parsed(&row, "id")?,
            email: Address::trusted(get(&row, "email")?),
            external_id: get(&row, "external_id")?,
            deleted_at: None,
        });
    }
    let last = items.last().filter(|_| items.len() == limit as usize);
    let next = last.map(|record| Cursor(record.id.to_string()));
    Ok(Page { items, next })
}

/// Who is to be forgotten, by whom and when.
struct Person {
    company: CompanyId,
    address: Address,
    now: Timestamp,
}

async fn erase(lane: &mut Lane, person: &Person, limit: u32) -> Result<Erased, Fault> {
    let found = emails_naming(&mut lane.connection, person, limit as usize).await?;
    let mut erased = Erased { more: found.len() == limit as usize, ..Erased::default() };
    for &id in &found {
        if erase_from(lane, person, id).await? {
            erased.emails += 1;
        }
    }
    erased.pending = found.len() as u64 - erased.emails;
    // Those in flight would be found again and again.
    erased.more &= erased.emails > 0;
    let changed = sqlx::query(
        "UPDATE recipients SET email = ?, name = NULL, legal_name = NULL, document_sealed = NULL, document_hmac = NULL,
             deleted_at = COALESCE(deleted_at, ?)
         WHERE company_id = ? AND email = ?",
    )
    .bind(ERASED_ADDRESS)
    .bind(at(person.now))
    .bind(person.company.to_string())
    .bind(person.address.expose())
    .execute(&mut lane.connection)
    .await?;
    erased.recipients = changed.rows_affected();
    erase_traces(&mut lane.connection, person).await?;
    Ok(erased)
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

/// Emails to the address, then those that name it among their copies or as where answers go.
async fn emails_naming(
    connection: &mut MySqlConnection,
    person: &Person,
    limit: usize,
) -> Result<Vec<EmailId>, Fault> {
    let sql = "SELECT id FROM email_outbox FORCE INDEX (outbox_by_to)
               WHERE company_id = ? AND to_email = ? ORDER BY id LIMIT ?";
    let query = sqlx::query(sql).bind(person.company.to_string()).bind(person.address.expose());
    let rows = query.bind(u64::try_from(limit).unwrap_or(u64::MAX)).fetch_all(&mut *connection).await?;
    let mut found: Vec<EmailId> = rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?;
    let mut last = String::new();
    while found.len() < limit {
        let seeming = seem_to_copy(connection, person, &last).await?;
        let Some((id, _)) = seeming.last() else { break };
        last = id.to_string();
        let names = |(_, detail): &&(EmailId, Detail)| names(detail, &person.address);
        found.extend(seeming.iter().filter(names).map(|(id, _)| *id).take(limit - found.len()));
    }
    Ok(found)
}

/// Emails to others whose detail holds the address somewhere, in the order of their ids.
async fn seem_to_copy(
    connection: &mut MySqlConnection,
    person: &Person,
    after: &str,
) -> Result<Vec<(EmailId, Detail)>, Fault> {
    let sql = "SELECT id, detail FROM email_outbox FORCE INDEX (outbox_by_company)
               WHERE company_id = ? AND id > ? AND INSTR(LOWER(detail), ?) > 0 AND to_email <> ? ORDER BY id LIMIT ?";
    let address = person.address.expose();
    let query =
        sqlx::query(sql).bind(person.company.to_string()).bind(after).bind(address.to_ascii_lowercase());
    let rows = query.bind(address).bind(LOOKED_AT).fetch_all(connection).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let detail = Detail::decode(row.try_get("detail")?).ok_or_else(|| damaged("detail"))?;
        found.push((parsed(row, "id")?, detail));
    }
    Ok(found)
}

fn names(detail: &Detail, address: &Address) -> bool {
    let is_copy = detail.cc.iter().chain(&detail.bcc).any(|copy| copy.same_mailbox(address));
    is_copy || detail.reply_to.as_ref().is_some_and(|reply_to| reply_to.address.same_mailbox(address))
}

/// An email to the person is withdrawn if it waits and loses everything but its counts; one that only copied them, or
/// sent answers to them, loses their address. `false` while it is in flight.
async fn erase_from(lane: &mut Lane, person: &Person, id: EmailId) -> Result<bool, Fault> {
    let sql = "SELECT email_id FROM email_queue WHERE email_id = ? FOR UPDATE";
    sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut lane.connection).await?;
    let sql = "SELECT status, to_email, detail FROM email_outbox WHERE id = ? FOR UPDATE";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut lane.connection).await?;
    // Retention may have been first.
    let Some(row) = row else { return Ok(true) };
    let status = row::status(&row)?;
    if status == Status::Processing {
        return Ok(false);
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
    let sql = "UPDATE email_outbox SET detail = ? WHERE id = ?";
    sqlx::query(sql).bind(detail).bind(id.to_string()).execute(connection).await?;
    Ok(true)
}

async fn is_raw(connection: &mut MySqlConnection, id: EmailId) -> Result<bool, Fault> {
    let sql = "SELECT body FROM contents WHERE email_id = ?";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(false) };
    Ok(matches!(content_codec::decode(get(&row, "body")?), Ok(Content::Raw(_))))
}
