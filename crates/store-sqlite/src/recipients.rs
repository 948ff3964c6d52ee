//! People known to a company. How they are forgotten is in `erase`.

use async_trait::async_trait;
use model::privacy::Secret;
use model::{Address, CompanyId, NewEmail, RecipientId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::{Cursor, Erased, Page, RecipientRecord, Recipients, StoreError};

use crate::SqliteStore;
use crate::erase::{Person, erase};
use crate::error::from_sqlite;

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
        after: Option<&Cursor>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError> {
        erase(self, Person { company, address: address.clone() }, after, now, limit).await
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
                 document_sealed = CASE WHEN document_hmac IS NULL OR document_hmac = excluded.document_hmac
                     THEN coalesce(excluded.document_sealed, document_sealed) ELSE document_sealed END,
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
