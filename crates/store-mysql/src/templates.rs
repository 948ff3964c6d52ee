//! The companies' templates.

use async_trait::async_trait;
use model::{CompanyId, Timestamp};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use store::{StoreError, StoredTemplate, Templates};

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{at, get, moment};

const NEWEST: &str =
    "SELECT * FROM templates WHERE company_id = ? AND name = ? ORDER BY version DESC LIMIT 1";
const VERSION: &str = "SELECT * FROM templates WHERE company_id = ? AND name = ? AND version = ?";
const NEWEST_OF_EACH: &str = "SELECT t.* FROM (
         SELECT name, MAX(version) AS version FROM templates WHERE company_id = ? GROUP BY name
     ) AS newest JOIN templates t ON t.name = newest.name AND t.version = newest.version
     WHERE t.company_id = ? ORDER BY t.name";

/// A new version of a template.
struct Put {
    company: CompanyId,
    name: String,
    source: String,
    now: Timestamp,
}

#[async_trait]
impl Templates for MysqlStore {
    async fn put_template(
        &self,
        company: CompanyId,
        name: &str,
        source: &str,
        now: Timestamp,
    ) -> Result<u32, StoreError> {
        let new = Put { company, name: name.to_owned(), source: source.to_owned(), now };
        self.write(new, |lane, new| Box::pin(put(&mut lane.connection, new))).await
    }

    async fn template(
        &self,
        company: CompanyId,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<StoredTemplate>, StoreError> {
        let find = self.read((company, name.to_owned(), version), |connection, (company, name, version)| {
            Box::pin(find(connection, *company, name, *version))
        });
        find.await
    }

    async fn templates(&self, company: CompanyId) -> Result<Vec<StoredTemplate>, StoreError> {
        let list = self.read(company, |connection, company| {
            Box::pin(async move {
                let query = sqlx::query(NEWEST_OF_EACH).bind(company.to_string()).bind(company.to_string());
                let rows = query.fetch_all(connection).await?;
                Ok(rows.iter().map(stored).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn delete_template(&self, company: CompanyId, name: &str) -> Result<bool, StoreError> {
        let delete = self.write((company, name.to_owned()), |lane, (company, name)| {
            Box::pin(async move {
                let sql = "DELETE FROM templates WHERE company_id = ? AND name = ?";
                let query = sqlx::query(sql).bind(company.to_string()).bind(name);
                Ok(query.execute(&mut lane.connection).await?.rows_affected() > 0)
            })
        });
        delete.await
    }
}

async fn find(
    connection: &mut MySqlConnection,
    company: CompanyId,
    name: &str,
    version: Option<u32>,
) -> Result<Option<StoredTemplate>, Fault> {
    let query = match version {
        Some(version) => sqlx::query(VERSION).bind(company.to_string()).bind(name).bind(version),
        None => sqlx::query(NEWEST).bind(company.to_string()).bind(name),
    };
    let row = query.fetch_optional(connection).await?;
    Ok(row.as_ref().map(stored).transpose()?)
}

async fn put(connection: &mut MySqlConnection, new: &Put) -> Result<u32, Fault> {
    let last = lock_name(connection, new).await?;
    if let Some(newest) = find(connection, new.company, &new.name, None).await?
        && newest.source == new.source
    {
        return Ok(newest.version);
    }
    let version = last + 1;
    let sql = "UPDATE template_names SET version = ? WHERE company_id = ? AND name = ?";
    let query = sqlx::query(sql).bind(version).bind(new.company.to_string()).bind(&new.name);
    query.execute(&mut *connection).await?;
    let sql = "INSERT INTO templates (company_id, name, version, source, created_at) VALUES (?, ?, ?, ?, ?)";
    let query = sqlx::query(sql).bind(new.company.to_string()).bind(&new.name).bind(version);
    query.bind(&new.source).bind(at(new.now)).execute(connection).await?;
    Ok(version)
}

/// Who puts the same name at the same time waits here, and sees what the other has put. Gives the last version that the
/// name has had.
async fn lock_name(connection: &mut MySqlConnection, new: &Put) -> Result<u32, Fault> {
    let sql = "INSERT INTO template_names (company_id, name, version) VALUES (?, ?, 0)
               ON DUPLICATE KEY UPDATE version = version";
    let query = sqlx::query(sql).bind(new.company.to_string()).bind(&new.name);
    query.execute(&mut *connection).await?;
    let sql = "SELECT version FROM template_names WHERE company_id = ? AND name = ?";
    let query = sqlx::query(sql).bind(new.company.to_string()).bind(&new.name);
    Ok(get(&query.fetch_one(connection).await?, "version")?)
}

fn stored(row: &MySqlRow) -> Result<StoredTemplate, StoreError> {
    Ok(StoredTemplate {
        name: get(row, "name")?,
        version: get(row, "version")?,
        source: get(row, "source")?,
        created_at: moment(row, "created_at")?,
    })
}
