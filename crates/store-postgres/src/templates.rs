//! The companies' templates.

use async_trait::async_trait;
use model::{CompanyId, Timestamp};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use store::record::damaged;
use store::{StoreError, StoredTemplate, Templates};

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::{at, clean, get, moment};

const FIND: &str = "SELECT name, version, source, created_at FROM templates
     WHERE company_id = $1 AND name = $2 AND ($3::bigint IS NULL OR version = $3)
     ORDER BY version DESC LIMIT 1";

#[async_trait]
impl Templates for PostgresStore {
    async fn put_template(
        &self,
        company: CompanyId,
        name: &str,
        source: &str,
        now: Timestamp,
    ) -> Result<u32, StoreError> {
        let (name, source) = (clean(name).into_owned(), clean(source).into_owned());
        self.write((company, name, source, now), |c, (company, name, source, now)| {
            Box::pin(put(c, *company, name, source, *now))
        })
        .await
    }

    async fn template(
        &self,
        company: CompanyId,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<StoredTemplate>, StoreError> {
        self.read(async {
            let query = sqlx::query(FIND).bind(company.uuid()).bind(clean(name)).bind(version.map(i64::from));
            let row = query.fetch_optional(&self.pool).await?;
            Ok(row.as_ref().map(stored).transpose()?)
        })
        .await
    }

    async fn templates(&self, company: CompanyId) -> Result<Vec<StoredTemplate>, StoreError> {
        self.read(async {
            let rows = sqlx::query(
                "SELECT DISTINCT ON (name) name, version, source, created_at FROM templates
                 WHERE company_id = $1 ORDER BY name, version DESC",
            )
            .bind(company.uuid())
            .fetch_all(&self.pool)
            .await?;
            Ok(rows.iter().map(stored).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn delete_template(&self, company: CompanyId, name: &str) -> Result<bool, StoreError> {
        self.write((company, clean(name).into_owned()), |c, (company, name)| {
            Box::pin(delete(c, *company, name))
        })
        .await
    }
}

/// Who puts the same name at the same time waits here, and sees what the other has put.
async fn lock_name(connection: &mut PgConnection, company: CompanyId, name: &str) -> Result<(), Fault> {
    sqlx::query(
        "INSERT INTO template_names (company_id, name, version) VALUES ($1, $2, 0)
         ON CONFLICT (company_id, name) DO UPDATE SET version = template_names.version",
    )
    .bind(company.uuid())
    .bind(name)
    .execute(connection)
    .await?;
    Ok(())
}

async fn put(
    connection: &mut PgConnection,
    company: CompanyId,
    name: &str,
    source: &str,
    now: Timestamp,
) -> Result<u32, Fault> {
    lock_name(connection, company, name).await?;
    let newest = sqlx::query(FIND)
        .bind(company.uuid())
        .bind(name)
        .bind(None::<i64>)
        .fetch_optional(&mut *connection)
        .await?;
    if let Some(newest) = newest.as_ref().map(stored).transpose()?
        && newest.source == source
    {
        return Ok(newest.version);
    }
    let row = sqlx::query(
        "WITH next AS (
             UPDATE template_names SET version = version + 1 WHERE company_id = $1 AND name = $2
             RETURNING company_id, name, version
         )
         INSERT INTO templates (company_id, name, version, source, created_at)
         SELECT company_id, name, version, $3, $4 FROM next RETURNING version",
    )
    .bind(company.uuid())
    .bind(name)
    .bind(source)
    .bind(at(now))
    .fetch_one(connection)
    .await?;
    Ok(version(&row)?)
}

async fn delete(connection: &mut PgConnection, company: CompanyId, name: &str) -> Result<bool, Fault> {
    let sql = "DELETE FROM templates WHERE company_id = $1 AND name = $2";
    let deleted = sqlx::query(sql).bind(company.uuid()).bind(name).execute(connection).await?;
    Ok(deleted.rows_affected() > 0)
}

fn version(row: &PgRow) -> Result<u32, StoreError> {
    u32::try_from(get::<i64>(row, "version")?).map_err(|_| damaged("version"))
}

fn stored(row: &PgRow) -> Result<StoredTemplate, StoreError> {
    Ok(StoredTemplate {
        name: get(row, "name")?,
        version: version(row)?,
        source: get(row, "source")?,
        created_at: moment(row, "created_at")?,
    })
}
