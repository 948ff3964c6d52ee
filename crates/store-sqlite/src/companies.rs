//! Companies and their keys.

use async_trait::async_trait;
use model::{ApiKey, Company, CompanyId, KeyId, KeyMode, Pause, Scope, Timestamp};
use rusqlite::{Connection, Row};
use store::{Companies, StoreError, settings_codec};

use crate::SqliteStore;
use crate::error::from_sqlite;

const COMPANY_COLUMNS: &str =
    "id, name, settings, created_at, disabled_at, paused_at, pause_reason, resumed_at";
const KEY_COLUMNS: &str =
    "id, company_id, mode, scopes, label, hash, prefix, created_at, expires_at, revoked_at, last_used_at";

#[async_trait]
impl Companies for SqliteStore {
    async fn add_company(&self, company: Company) -> Result<(), StoreError> {
        let write = "INSERT INTO companies
                (id, name, settings, weight, concurrency_max, rate_per_sec, created_at, disabled_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
        let name = company.name.clone();
        let added = self.writer.run(move |work| write_company(work.connection, write, &company)).await?;
        if added { Ok(()) } else { Err(StoreError::Exists(format!("a company named {name:?}"))) }
    }

    async fn update_company(&self, company: Company) -> Result<bool, StoreError> {
        let write = "UPDATE companies
             SET name = ?2, settings = ?3, weight = ?4, concurrency_max = ?5, rate_per_sec = ?6, disabled_at = ?8
             WHERE id = ?1 AND ?7 IS NOT NULL";
        let run = move |connection: &Connection| {
            let taken: bool = connection
                .query_row(
                    "SELECT EXISTS (SELECT 1 FROM companies WHERE name = ?1 AND id <> ?2)",
                    (&company.name, company.id.to_string()),
                    |row| row.get(0),
                )
                .map_err(from_sqlite)?;
            if taken {
                return Err(StoreError::Exists(format!("a company named {:?}", company.name)));
            }
            // It may have another limit from now on: its day is counted anew.
            let forget = "DELETE FROM company_days WHERE company_id = ?1";
            connection.execute(forget, [company.id.to_string()]).map_err(from_sqlite)?;
            write_company(connection, write, &company)
        };
        self.writer.run(move |work| run(work.connection)).await
    }

    async fn pause_company(&self, id: CompanyId, pause: Pause) -> Result<bool, StoreError> {
        let sql =
            "UPDATE companies SET paused_at = ?2, pause_reason = ?3 WHERE id = ?1 AND paused_at IS NULL";
        let bound = (id.to_string(), pause.at.millis(), pause.reason);
        let changed = self
            .writer
            .run(move |work| work.connection.execute(sql, bound.clone()).map_err(from_sqlite))
            .await?;
        Ok(changed > 0)
    }

    async fn resume_company(&self, id: CompanyId, now: Timestamp) -> Result<bool, StoreError> {
        let sql = "UPDATE companies SET paused_at = NULL, pause_reason = NULL, resumed_at = ?2
                   WHERE id = ?1 AND paused_at IS NOT NULL";
        let bound = (id.to_string(), now.millis());
        let changed = self
            .writer
            .run(move |work| work.connection.execute(sql, bound.clone()).map_err(from_sqlite))
            .await?;
        Ok(changed > 0)
    }

    async fn company(&self, id: CompanyId) -> Result<Option<Company>, StoreError> {
        let sql = format!("SELECT {COMPANY_COLUMNS} FROM companies WHERE id = ?1");
        self.one_company(sql, id.to_string()).await
    }

    async fn company_named(&self, name: &str) -> Result<Option<Company>, StoreError> {
        let sql = format!("SELECT {COMPANY_COLUMNS} FROM companies WHERE name = ?1");
        self.one_company(sql, name.to_owned()).await
    }

    async fn companies(&self) -> Result<Vec<Company>, StoreError> {
        let sql = format!("SELECT {COMPANY_COLUMNS} FROM companies ORDER BY name");
        self.reader.run(move |connection| rows_as(connection, &sql, [], company)).await
    }

    async fn add_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.writer.run(move |work| add_key(work.connection, &key)).await
    }

    async fn revoke_key(&self, company: CompanyId, id: KeyId, now: Timestamp) -> Result<bool, StoreError> {
        let sql =
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?3) WHERE id = ?1 AND company_id = ?2";
        let bound = (id.to_string(), company.to_string(), now.millis());
        let changed = self
            .writer
            .run(move |work| work.connection.execute(sql, bound.clone()).map_err(from_sqlite))
            .await?;
        Ok(changed > 0)
    }

    async fn keys(&self, company: CompanyId) -> Result<Vec<ApiKey>, StoreError> {
        let sql = format!("SELECT {KEY_COLUMNS} FROM api_keys WHERE company_id = ?1 ORDER BY id DESC");
        self.reader.run(move |connection| rows_as(connection, &sql, [company.to_string()], key)).await
    }

    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<(ApiKey, Company)>, StoreError> {
        let hash = *hash;
        let find = move |connection: &Connection| {
            let sql = format!("SELECT {KEY_COLUMNS} FROM api_keys WHERE hash = ?1");
            let Some(key) = rows_as(connection, &sql, [&hash[..]], key)?.pop() else { return Ok(None) };
            let sql = format!("SELECT {COMPANY_COLUMNS} FROM companies WHERE id = ?1");
            let company = rows_as(connection, &sql, [key.company.to_string()], company)?.pop();
            Ok(company.map(|company| (key, company)))
        };
        self.reader.run(find).await
    }

    async fn touch_keys(&self, uses: Vec<(KeyId, Timestamp)>) -> Result<(), StoreError> {
        let touch = move |connection: &Connection| {
            let mut statement = connection
                .prepare_cached(
                    "UPDATE api_keys SET last_used_at = ?2
                     WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
                )
                .map_err(from_sqlite)?;
            for (id, at) in &uses {
                statement.execute((id.to_string(), at.millis())).map_err(from_sqlite)?;
            }
            Ok(())
        };
        self.writer.run(move |work| touch(work.connection)).await
    }
}

impl SqliteStore {
    async fn one_company(&self, sql: String, value: String) -> Result<Option<Company>, StoreError> {
        self.reader.run(move |connection| Ok(rows_as(connection, &sql, [value], company)?.pop())).await
    }
}

/// `true` when a row was written.
fn write_company(connection: &Connection, sql: &str, company: &Company) -> Result<bool, StoreError> {
    let settings = &company.settings;
    let bound = (
        company.id.to_string(),
        &company.name,
        settings_codec::encode(settings),
        settings.weight,
        settings.concurrency_max,
        settings.rate_per_sec,
        company.created_at.millis(),
        company.disabled_at.map(Timestamp::millis),
    );
    Ok(connection.execute(sql, bound).map_err(from_sqlite)? > 0)
}

fn add_key(connection: &Connection, key: &ApiKey) -> Result<(), StoreError> {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let sql = format!(
        "INSERT INTO api_keys ({KEY_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                       ON CONFLICT DO NOTHING"
    );
    let bound = (
        key.id.to_string(),
        key.company.to_string(),
        key.mode.as_str(),
        scopes.join(" "),
        &key.label,
        &key.hash[..],
        &key.prefix,
        key.created_at.millis(),
        key.expires_at.map(Timestamp::millis),
        key.revoked_at.map(Timestamp::millis),
        key.last_used_at.map(Timestamp::millis),
    );
    match connection.execute(&sql, bound).map_err(from_sqlite)? {
        0 => Err(StoreError::Exists("this key".into())),
        _ => Ok(()),
    }
}

fn rows_as<T>(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    read: fn(&Row<'_>) -> rusqlite::Result<Option<T>>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let rows = statement.query_map(values, read).map_err(from_sqlite)?;
    let mut items = Vec::new();
    for row in rows {
        let item = row.map_err(from_sqlite)?;
        items.push(item.ok_or_else(|| StoreError::Broken("a company or key cannot be read".into()))?);
    }
    Ok(items)
}

/// `None` when a text in it is not what the store wrote.
fn company(row: &Row<'_>) -> rusqlite::Result<Option<Company>> {
    let id: String = row.get("id")?;
    let settings: String = row.get("settings")?;
    let (Ok(id), Some(settings)) = (id.parse(), settings_codec::decode(&settings)) else { return Ok(None) };
    let paused_at = row.get::<_, Option<i64>>("paused_at")?.map(Timestamp::from_millis);
    let reason: Option<String> = row.get("pause_reason")?;
    Ok(Some(Company {
        id,
        name: row.get("name")?,
        settings,
        created_at: Timestamp::from_millis(row.get("created_at")?),
        disabled_at: row.get::<_, Option<i64>>("disabled_at")?.map(Timestamp::from_millis),
        pause: paused_at.map(|at| Pause { at, reason: reason.unwrap_or_default() }),
        resumed_at: row.get::<_, Option<i64>>("resumed_at")?.map(Timestamp::from_millis),
    }))
}

fn key(row: &Row<'_>) -> rusqlite::Result<Option<ApiKey>> {
    let (id, company, mode): (String, String, String) =
        (row.get("id")?, row.get("company_id")?, row.get("mode")?);
    let scopes: String = row.get("scopes")?;
    let hash: Vec<u8> = row.get("hash")?;
    let (Ok(id), Ok(company), Some(mode), Ok(hash)) =
        (id.parse(), company.parse(), KeyMode::parse(&mode), <[u8; 32]>::try_from(hash))
    else {
        return Ok(None);
    };
    let moment = |name: &str| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<i64>>(name)?.map(Timestamp::from_millis))
    };
    Ok(Some(ApiKey {
        id,
        company,
        mode,
        scopes: scopes.split(' ').filter_map(Scope::parse).collect(),
        label: row.get("label")?,
        hash,
        prefix: row.get("prefix")?,
        created_at: Timestamp::from_millis(row.get("created_at")?),
        expires_at: moment("expires_at")?,
        revoked_at: moment("revoked_at")?,
        last_used_at: moment("last_used_at")?,
    }))
}
