//! People known to a company, and forgetting them.

use async_trait::async_trait;
use model::privacy::Secret;
use model::{Address, CompanyId, Content, Event, EventKind, NewEmail, RecipientId, Status, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::detail::Detail;
use store::erasure::{self, ERASED_ADDRESS, ERASED_SUBJECT};
use store::{Cursor, Erased, Page, RecipientRecord, Recipients, StoreError, content_codec};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{SqliteStore, outbox, row};

#[async_trait]
impl Recipients for SqliteStore {
    async fn recipients_by_id(
        &self,
        company: CompanyId,
        ids: &[RecipientId],
    ) -> Result<Vec<RecipientRecord>, StoreError> {
        let ids = ids.to_vec();
        self.reader.run(move |connection| by_id(connection, company, &ids)).await
    }

    async fn recipients(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<RecipientRecord>, StoreError> {
        let before = after.map_or_else(|| END_OF_IDS.to_owned(), |cursor| cursor.0.clone());
        self.reader.run(move |connection| list(connection, company, &before, limit)).await
    }

    async fn erase(
        &self,
        company: CompanyId,
        address: &Address,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError> {
        let address = address.clone();
        self.writer.run(move |work| erase(work, company, &address, now, limit)).await
    }
}

/// Behind every id.
const END_OF_IDS: &str = "~";

fn list(
    connection: &Connection,
    company: CompanyId,
    before: &str,
    limit: u32,
) -> Result<Page<RecipientRecord>, StoreError> {
    let rows: Vec<(String, String, Option<String>)> = connection
        .prepare_cached(
            "SELECT id, email, external_id FROM recipients INDEXED BY recipients_by_company
             WHERE company_id = ?1 AND deleted_at IS NULL AND id < ?2 ORDER BY id DESC LIMIT ?3",
        )
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            statement.query_map((company.to_string(), before, limit), read)?.collect()
        })
        .map_err(from_sqlite)?;
    let next = rows.last().filter(|_| rows.len() == limit as usize).map(|(id, ..)| Cursor(id.clone()));
    let record = |(id, email, external_id): (String, String, Option<String>)| {
        let id = id.parse().map_err(|_| StoreError::Broken("a recipient's id cannot be read".into()))?;
        Ok(RecipientRecord { id, email: Address::trusted(email), external_id, deleted_at: None })
    };
    Ok(Page { items: rows.into_iter().map(record).collect::<Result<_, StoreError>>()?, next })
}

fn by_id(
    connection: &Connection,
    company: CompanyId,
    ids: &[RecipientId],
) -> Result<Vec<RecipientRecord>, StoreError> {
    let sql = "SELECT email, external_id, deleted_at FROM recipients WHERE id = ?1 AND company_id = ?2";
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let company = company.to_string();
    let mut found = Vec::with_capacity(ids.len());
    for &id in ids {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(RecipientRecord {
                id,
                email: Address::trusted(row.get(0)?),
                external_id: row.get(1)?,
                deleted_at: row.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
            })
        };
        found.extend(statement.query_row((id.to_string(), &company), read).optional().map_err(from_sqlite)?);
    }
    Ok(found)
}

/// Creates the recipient an email names by external id or document, or brings it up to date. A recipient named
/// by its own id is left as it is: whether it exists and fits is the pipeline's question.
pub fn upsert(connection: &Connection, email: &NewEmail) -> Result<Option<RecipientId>, StoreError> {
    let Some(recipient) = &email.recipient else { return Ok(None) };
    if recipient.id.is_some() || (recipient.external_id.is_none() && recipient.document_hmac.is_none()) {
        return Ok(recipient.id);
    }
    let company = email.company.to_string();
    let by_external_id = find(connection, "external_id", &company, recipient.external_id.as_ref())?;
    let by_document = find(connection, "document_hmac", &company, recipient.document_hmac.as_ref())?;
    // Two people under one email's identifiers: the company's own name for the person decides, and neither gets
    // the other's document.
    let document_hmac = match (&by_external_id, &by_document) {
        (Some(one), Some(other)) if one != other => None,
        _ => recipient.document_hmac.as_ref(),
    };
    let id = match by_external_id.or(by_document) {
        Some(id) => id.parse().map_err(|_| StoreError::Broken("a recipient's id cannot be read".into()))?,
        None => RecipientId::new(email.created_at),
    };
    connection
        .prepare_cached(
            "INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name,
                                     legal_name, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
             ON CONFLICT (id) DO UPDATE SET
                 external_id = coalesce(external_id, excluded.external_id),
                 document_hmac = coalesce(document_hmac, excluded.document_hmac),
                 document_sealed = coalesce(excluded.document_sealed, document_sealed),
                 email = excluded.email, name = coalesce(excluded.name, name),
                 legal_name = coalesce(excluded.legal_name, legal_name),
                 updated_at = excluded.updated_at, deleted_at = NULL",
        )
        .and_then(|mut statement| {
            statement.execute(rusqlite::params![
                id.to_string(),
                company,
                recipient.external_id,
                document_hmac,
                document_hmac.and(recipient.document_sealed.as_ref()).map(Secret::expose),
                email.envelope.to.expose(),
                recipient.name.as_ref().map(Secret::expose),
                recipient.legal_name.as_ref().map(Secret::expose),
                email.created_at.millis(),
            ])
        })
        .map_err(from_sqlite)?;
    Ok(Some(id))
}

fn find(
    connection: &Connection,
    column: &str,
    company: &str,
    value: Option<&String>,
) -> Result<Option<String>, StoreError> {
    let Some(value) = value else { return Ok(None) };
    let sql = format!("SELECT id FROM recipients WHERE company_id = ?1 AND {column} = ?2");
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.query_row((company, value), |row| row.get(0)).optional())
        .map_err(from_sqlite)
}

fn erase(
    work: &mut Work<'_>,
    company: CompanyId,
    address: &Address,
    now: Timestamp,
    limit: u32,
) -> Result<Erased, StoreError> {
    let found = emails_naming(work.connection, company, address, limit)?;
    let mut erased = Erased { more: found.len() == limit as usize, ..Erased::default() };
    for email in &found {
        if email.status == Status::Processing {
            continue;
        }
        if email.is_to && !email.status.is_final() {
            let event = Event::new(EventKind::Cancelled, now).with("reason", "erased");
            outbox::cancel_row(work, email.seq, email.status, event)?;
        }
        erase_email(work.connection, email, address)?;
        erased.emails += 1;
    }
    erased.pending = found.len() as u64 - erased.emails;
    // Those in flight would be found again and again.
    erased.more &= erased.emails > 0;
    let changed = work
        .connection
        .execute(
            "UPDATE recipients SET email = ?3, name = NULL, legal_name = NULL, document_sealed = NULL,
                 document_hmac = NULL, deleted_at = coalesce(deleted_at, ?4)
             WHERE company_id = ?1 AND email = ?2",
            (company.to_string(), address.expose(), ERASED_ADDRESS, now.millis()),
        )
        .map_err(from_sqlite)?;
    erased.recipients = changed as u64;
    erase_traces(work.connection, company, address).map_err(from_sqlite)?;
    Ok(erased)
}

/// What is kept by address besides the emails. Counts stay: where the address stood there is one of nobody.
fn erase_traces(connection: &Connection, company: CompanyId, address: &Address) -> rusqlite::Result<()> {
    let company = company.to_string();
    let lower = address.expose().to_ascii_lowercase();
    for sql in [
        "DELETE FROM address_failures WHERE company_id = ?1 AND address = ?2",
        "DELETE FROM problems WHERE company_id = ?1 AND address = ?2",
        "DELETE FROM alerts WHERE company_id = ?1 AND (subject = ?2 OR lower(address) = ?2)",
        "UPDATE entity_recipients SET address = 'erased:' || hex(randomblob(16))
         WHERE company_id = ?1 AND address = ?2",
    ] {
        connection.execute(sql, (&company, &lower))?;
    }
    Ok(())
}

struct Found {
    seq: i64,
    status: Status,
    is_to: bool,
    detail: Detail,
}

/// Emails to the address, and those that name it among their copies or as where answers go.
fn emails_naming(
    connection: &Connection,
    company: CompanyId,
    address: &Address,
    limit: u32,
) -> Result<Vec<Found>, StoreError> {
    let mut statement = connection
        .prepare(
            "SELECT seq, status, to_email = ?2 AS is_to, detail FROM email_outbox
             WHERE company_id = ?1
               AND (to_email = ?2
                    OR EXISTS (SELECT 1 FROM json_each(detail, '$.cc') WHERE lower(value) = ?3)
                    OR EXISTS (SELECT 1 FROM json_each(detail, '$.bcc') WHERE lower(value) = ?3)
                    OR lower(json_extract(detail, '$.replyTo')) = ?3
                    OR instr(lower(coalesce(json_extract(detail, '$.replyTo'), '')), '<' || ?3 || '>') > 0)
             LIMIT ?4",
        )
        .map_err(from_sqlite)?;
    let lower = address.expose().to_ascii_lowercase();
    let mut rows =
        statement.query((company.to_string(), address.expose(), lower, limit)).map_err(from_sqlite)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let detail: String = row.get("detail").map_err(from_sqlite)?;
        found.push(Found {
            seq: row.get("seq").map_err(from_sqlite)?,
            status: row::status(row)?,
            is_to: row.get("is_to").map_err(from_sqlite)?,
            detail: Detail::decode(&detail)
                .ok_or_else(|| StoreError::Broken("detail of an email cannot be read".into()))?,
        });
    }
    Ok(found)
}

/// An email to the person loses everything but its counts; one that only copied them, or sent answers to them, loses
/// their address.
fn erase_email(connection: &Connection, email: &Found, address: &Address) -> Result<(), StoreError> {
    let detail = erasure::without(&email.detail, address, email.is_to);
    if email.is_to {
        connection
            .execute(
                "UPDATE email_outbox SET to_email = ?2, subject = ?3, recipient_external_id = NULL WHERE seq = ?1",
                (email.seq, ERASED_ADDRESS, ERASED_SUBJECT),
            )
            .map_err(from_sqlite)?;
    }
    // An .eml names its copies inside.
    if email.is_to || is_raw(connection, email.seq)? {
        connection.execute("DELETE FROM contents WHERE email_seq = ?1", [email.seq]).map_err(from_sqlite)?;
    }
    // The providers' words name the person.
    connection
        .execute("UPDATE reports SET payload = x'' WHERE email_seq = ?1", [email.seq])
        .map_err(from_sqlite)?;
    connection
        .execute(
            "DELETE FROM recipient_states WHERE email_seq = ?1 AND address = ?2",
            (email.seq, address.expose()),
        )
        .map_err(from_sqlite)?;
    connection
        .execute("UPDATE email_outbox SET detail = ?2 WHERE seq = ?1", (email.seq, detail.encode()))
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
