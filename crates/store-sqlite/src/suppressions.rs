//! The addresses each company no longer writes to.

use async_trait::async_trait;
use model::{Address, CompanyId, Suppression, SuppressionSource, Timestamp};
use rusqlite::{Connection, Row};
use store::{Cursor, Page, StoreError, Suppressions};

use crate::SqliteStore;
use crate::error::from_sqlite;
use crate::lookup::{before, cursor};

const COLUMNS: &str = "address, reason, source, email_id, created_at";

#[async_trait]
impl Suppressions for SqliteStore {
    async fn suppress(&self, company: CompanyId, suppressions: Vec<Suppression>) -> Result<u32, StoreError> {
        let work = move |connection: &Connection| {
            let mut new = 0;
            for suppression in &suppressions {
                new += u32::from(add(connection, company, suppression)?);
            }
            Ok(new)
        };
        self.writer.run(move |context| work(context.connection)).await
    }

    async fn lift(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        let address = address.clone();
        let work = move |connection: &Connection| -> rusqlite::Result<bool> {
            let lifted = connection
                .prepare_cached("DELETE FROM suppressions WHERE company_id = ?1 AND address = ?2")?
                .execute((company.to_string(), address.expose()))?;
            Ok(lifted > 0)
        };
        self.writer.run(move |context| work(context.connection).map_err(from_sqlite)).await
    }

    async fn suppressed(
        &self,
        company: CompanyId,
        addresses: &[Address],
    ) -> Result<Vec<Suppression>, StoreError> {
        let addresses = addresses.to_vec();
        self.reader.run(move |connection| suppressed(connection, company, &addresses)).await
    }

    async fn suppressions(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Suppression>, StoreError> {
        let before = before(after);
        let read = move |connection: &Connection| -> rusqlite::Result<Page<Suppression>> {
            let sql = format!(
                "SELECT seq, {COLUMNS} FROM suppressions WHERE company_id = ?1 AND seq < ?2
                 ORDER BY seq DESC LIMIT ?3"
            );
            let rows: Vec<(i64, Suppression)> = connection
                .prepare_cached(&sql)?
                .query_map((company.to_string(), before, limit), |row| {
                    Ok((row.get("seq")?, suppression(row)?))
                })?
                .collect::<Result<_, _>>()?;
            let next =
                (rows.len() == limit as usize).then(|| rows.last().map(|(seq, _)| cursor(*seq))).flatten();
            Ok(Page { items: rows.into_iter().map(|(_, suppression)| suppression).collect(), next })
        };
        self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await
    }
}

/// `false` when the address was on the list already.
pub fn add(
    connection: &Connection,
    company: CompanyId,
    suppression: &Suppression,
) -> Result<bool, StoreError> {
    let added = connection
        .prepare_cached(
            "INSERT INTO suppressions (company_id, address, reason, source, email_id, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        )
        .and_then(|mut statement| {
            statement.execute((
                company.to_string(),
                suppression.address.expose(),
                &suppression.reason,
                suppression.source.as_str(),
                suppression.email.map(|id| id.to_string()),
                suppression.created_at.millis(),
            ))
        })
        .map_err(from_sqlite)?;
    Ok(added > 0)
}

fn suppressed(
    connection: &Connection,
    company: CompanyId,
    addresses: &[Address],
) -> Result<Vec<Suppression>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM suppressions WHERE company_id = ?1 AND address = ?2");
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut found: Vec<Suppression> = Vec::new();
    for address in addresses {
        let rows = statement.query_map((company.to_string(), address.expose()), suppression);
        for suppression in rows.map_err(from_sqlite)? {
            let suppression = suppression.map_err(from_sqlite)?;
            if !found.iter().any(|other| other.address == suppression.address) {
                found.push(suppression);
            }
        }
    }
    Ok(found)
}

fn suppression(row: &Row<'_>) -> rusqlite::Result<Suppression> {
    let source: String = row.get("source")?;
    Ok(Suppression {
        address: Address::trusted(row.get("address")?),
        reason: row.get("reason")?,
        source: SuppressionSource::parse(&source).unwrap_or(SuppressionSource::Operator),
        email: row.get::<_, Option<String>>("email_id")?.and_then(|id| id.parse().ok()),
        created_at: Timestamp::from_millis(row.get("created_at")?),
    })
}
