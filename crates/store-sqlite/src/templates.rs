//! The companies' templates.

use async_trait::async_trait;
use model::{CompanyId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};
use store::{StoreError, StoredTemplate, Templates};

use crate::SqliteStore;
use crate::error::from_sqlite;

#[async_trait]
impl Templates for SqliteStore {
    async fn put_template(
        &self,
        company: CompanyId,
        name: &str,
        source: &str,
        now: Timestamp,
    ) -> Result<u32, StoreError> {
        let (name, source) = (name.to_owned(), source.to_owned());
        let write = move |connection: &Connection| put(connection, company, &name, &source, now);
        self.writer.run(move |work| write(work.connection).map_err(from_sqlite)).await
    }

    async fn template(
        &self,
        company: CompanyId,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<StoredTemplate>, StoreError> {
        let name = name.to_owned();
        let read = move |connection: &Connection| find(connection, company, &name, version);
        self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await
    }

    async fn templates(&self, company: CompanyId) -> Result<Vec<StoredTemplate>, StoreError> {
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<StoredTemplate>> {
            connection
                .prepare_cached(
                    "SELECT name, max(version) AS version, source, created_at FROM templates
                     WHERE company_id = ?1 GROUP BY name ORDER BY name",
                )?
                .query_map([company.to_string()], stored)?
                .collect()
        };
        self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await
    }

    async fn delete_template(&self, company: CompanyId, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        let write = move |connection: &Connection| -> rusqlite::Result<bool> {
            let deleted = connection
                .prepare_cached("DELETE FROM templates WHERE company_id = ?1 AND name = ?2")?
                .execute((company.to_string(), &name))?;
            Ok(deleted > 0)
        };
        self.writer.run(move |work| write(work.connection).map_err(from_sqlite)).await
    }
}

fn put(
    connection: &Connection,
    company: CompanyId,
    name: &str,
    source: &str,
    now: Timestamp,
) -> rusqlite::Result<u32> {
    if let Some(newest) = find(connection, company, name, None)?
        && newest.source == source
    {
        return Ok(newest.version);
    }
    let version: u32 = connection
        .prepare_cached(
            "INSERT INTO template_names (company_id, name, version) VALUES (?1, ?2, 1)
             ON CONFLICT DO UPDATE SET version = version + 1 RETURNING version",
        )?
        .query_row((company.to_string(), name), |row| row.get(0))?;
    connection
        .prepare_cached(
            "INSERT INTO templates (company_id, name, version, source, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((company.to_string(), name, version, source, now.millis()))?;
    Ok(version)
}

fn find(
    connection: &Connection,
    company: CompanyId,
    name: &str,
    version: Option<u32>,
) -> rusqlite::Result<Option<StoredTemplate>> {
    connection
        .prepare_cached(
            "SELECT name, version, source, created_at FROM templates
             WHERE company_id = ?1 AND name = ?2 AND (?3 IS NULL OR version = ?3)
             ORDER BY version DESC LIMIT 1",
        )?
        .query_row((company.to_string(), name, version), stored)
        .optional()
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredTemplate> {
    Ok(StoredTemplate {
        name: row.get("name")?,
        version: row.get("version")?,
        source: row.get("source")?,
        created_at: Timestamp::from_millis(row.get("created_at")?),
    })
}
