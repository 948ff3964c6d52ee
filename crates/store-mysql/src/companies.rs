//! Companies and their keys.

use async_trait::async_trait;
use model::{ApiKey, Company, CompanyId, KeyId, KeyMode, Pause, Scope, Timestamp};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use store::record::damaged;
use store::{Companies, StoreError, settings_codec};

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{at, get, moment, optional_moment, parsed, until};

const INSERT_COMPANY: &str =
    "INSERT INTO companies (id, name, settings, weight, concurrency_max, rate_per_sec, created_at, disabled_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
const UPDATE_COMPANY: &str =
    "UPDATE companies SET name = ?, settings = ?, weight = ?, concurrency_max = ?, rate_per_sec = ?, disabled_at = ?
     WHERE id = ?";

#[async_trait]
impl Companies for MysqlStore {
    async fn add_company(&self, company: Company) -> Result<(), StoreError> {
        let name = company.name.clone();
        let added = self.write(company, |lane, company| Box::pin(add(&mut lane.connection, company))).await?;
        if added { Ok(()) } else { Err(taken(&name)) }
    }

    async fn update_company(&self, company: Company) -> Result<bool, StoreError> {
        let name = company.name.clone();
        let updated = self.write(company, |lane, company| Box::pin(update(&mut lane.connection, company)));
        updated.await?.ok_or_else(|| taken(&name))
    }

    async fn pause_company(&self, id: CompanyId, pause: Pause) -> Result<bool, StoreError> {
        self.write((id, pause), |lane, (id, pause)| Box::pin(pause_one(&mut lane.connection, *id, pause)))
            .await
    }

    async fn resume_company(&self, id: CompanyId, now: Timestamp) -> Result<bool, StoreError> {
        self.write((id, now), |lane, &(id, now)| Box::pin(resume_one(&mut lane.connection, id, now))).await
    }

    async fn company(&self, id: CompanyId) -> Result<Option<Company>, StoreError> {
        self.read(id, |connection, id| Box::pin(company_of_id(connection, *id))).await
    }

    async fn company_named(&self, name: &str) -> Result<Option<Company>, StoreError> {
        let find = self.read(name.to_owned(), |connection, name| {
            Box::pin(async move {
                let sql = "SELECT * FROM companies WHERE name = ?";
                let row = sqlx::query(sql).bind(name).fetch_optional(connection).await?;
                Ok(row.as_ref().map(company).transpose()?)
            })
        });
        find.await
    }

    async fn companies(&self) -> Result<Vec<Company>, StoreError> {
        let list = self.read((), |connection, ()| {
            Box::pin(async move {
                let sql = "SELECT * FROM companies ORDER BY name";
                let rows = sqlx::query(sql).fetch_all(connection).await?;
                Ok(rows.iter().map(company).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn add_key(&self, key: ApiKey) -> Result<(), StoreError> {
        let added = self.write(key, |lane, key| Box::pin(add_key(&mut lane.connection, key))).await?;
        if added { Ok(()) } else { Err(StoreError::Exists("this key".into())) }
    }

    async fn revoke_key(&self, company: CompanyId, id: KeyId, now: Timestamp) -> Result<bool, StoreError> {
        let revoke = self.write((company, id, now), |lane, (company, id, now)| {
            Box::pin(async move {
                let sql = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, ?) WHERE id = ? AND company_id = ?";
                let query = sqlx::query(sql).bind(at(*now)).bind(id.to_string()).bind(company.to_string());
                Ok(query.execute(&mut lane.connection).await?.rows_affected() > 0)
            })
        });
        revoke.await
    }

    async fn keys(&self, company: CompanyId) -> Result<Vec<ApiKey>, StoreError> {
        let list = self.read(company, |connection, company| {
            Box::pin(async move {
                let sql = "SELECT * FROM api_keys WHERE company_id = ? ORDER BY id DESC";
                let rows = sqlx::query(sql).bind(company.to_string()).fetch_all(connection).await?;
                Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<(ApiKey, Company)>, StoreError> {
        self.read(*hash, |connection, hash| Box::pin(key_by_hash(connection, hash))).await
    }

    async fn touch_keys(&self, uses: Vec<(KeyId, Timestamp)>) -> Result<(), StoreError> {
        self.write(uses, |lane, uses| Box::pin(touch(&mut lane.connection, uses))).await
    }
}

fn taken(name: &str) -> StoreError {
    StoreError::Exists(format!("a company named {name:?}"))
}

async fn company_of_id(connection: &mut MySqlConnection, id: CompanyId) -> Result<Option<Company>, Fault> {
    let sql = "SELECT * FROM companies WHERE id = ?";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(connection).await?;
    Ok(row.as_ref().map(company).transpose()?)
}

/// `false` when the name or the id is taken.
async fn add(connection: &mut MySqlConnection, company: &Company) -> Result<bool, Fault> {
    let settings = &company.settings;
    let added = sqlx::query(INSERT_COMPANY)
        .bind(company.id.to_string())
        .bind(&company.name)
        .bind(settings_codec::encode(settings))
        .bind(settings.weight)
        .bind(settings.concurrency_max)
        .bind(settings.rate_per_sec)
        .bind(at(company.created_at))
        .bind(company.disabled_at.map(at))
        .execute(connection)
        .await;
    match added.map_err(Fault::Sql) {
        Ok(_) => Ok(true),
        Err(fault) if fault.is_duplicate() => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// `None` when the name is another's.
async fn update(connection: &mut MySqlConnection, company: &Company) -> Result<Option<bool>, Fault> {
    // It may have another limit from now on: its day is counted anew. First, as acceptance locks it first.
    let forget = "DELETE FROM company_days WHERE company_id = ?";
    sqlx::query(forget).bind(company.id.to_string()).execute(&mut *connection).await?;
    let settings = &company.settings;
    let updated = sqlx::query(UPDATE_COMPANY)
        .bind(&company.name)
        .bind(settings_codec::encode(settings))
        .bind(settings.weight)
        .bind(settings.concurrency_max)
        .bind(settings.rate_per_sec)
        .bind(company.disabled_at.map(at))
        .bind(company.id.to_string())
        .execute(connection)
        .await;
    match updated.map_err(Fault::Sql) {
        Ok(updated) => Ok(Some(updated.rows_affected() > 0)),
        Err(fault) if fault.is_duplicate() => Ok(None),
        Err(fault) => Err(fault),
    }
}

async fn pause_one(connection: &mut MySqlConnection, id: CompanyId, pause: &Pause) -> Result<bool, Fault> {
    let sql = "UPDATE companies SET paused_at = ?, pause_reason = ? WHERE id = ? AND paused_at IS NULL";
    let query = sqlx::query(sql).bind(at(pause.at)).bind(&pause.reason).bind(id.to_string());
    Ok(query.execute(connection).await?.rows_affected() > 0)
}

async fn resume_one(connection: &mut MySqlConnection, id: CompanyId, now: Timestamp) -> Result<bool, Fault> {
    let sql = "UPDATE companies SET paused_at = NULL, pause_reason = NULL, resumed_at = ?
               WHERE id = ? AND paused_at IS NOT NULL";
    let query = sqlx::query(sql).bind(at(now)).bind(id.to_string());
    Ok(query.execute(connection).await?.rows_affected() > 0)
}

/// `false` when the key is there already.
async fn add_key(connection: &mut MySqlConnection, key: &ApiKey) -> Result<bool, Fault> {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let added = sqlx::query(
        "INSERT INTO api_keys (id, company_id, mode, scopes, label, hash, prefix, created_at, expires_at, revoked_at,
             last_used_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(key.id.to_string())
    .bind(key.company.to_string())
    .bind(key.mode.as_str())
    .bind(scopes.join(" "))
    .bind(&key.label)
    .bind(&key.hash[..])
    .bind(&key.prefix)
    .bind(at(key.created_at))
    .bind(key.expires_at.map(until))
    .bind(key.revoked_at.map(at))
    .bind(key.last_used_at.map(at))
    .execute(connection)
    .await;
    match added.map_err(Fault::Sql) {
        Ok(_) => Ok(true),
        Err(fault) if fault.is_duplicate() => Ok(false),
        Err(fault) => Err(fault),
    }
}

async fn key_by_hash(
    connection: &mut MySqlConnection,
    hash: &[u8; 32],
) -> Result<Option<(ApiKey, Company)>, Fault> {
    let sql = "SELECT * FROM api_keys WHERE hash = ?";
    let found = sqlx::query(sql).bind(&hash[..]).fetch_optional(&mut *connection).await?;
    let Some(found) = found.as_ref().map(key).transpose()? else { return Ok(None) };
    let company = company_of_id(connection, found.company).await?;
    Ok(company.map(|company| (found, company)))
}

/// In the order of the ids, as everybody who locks several rows.
async fn touch(connection: &mut MySqlConnection, uses: &[(KeyId, Timestamp)]) -> Result<(), Fault> {
    let mut uses = uses.to_vec();
    uses.sort_unstable();
    for (id, used_at) in uses {
        let sql = "UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)";
        sqlx::query(sql)
            .bind(at(used_at))
            .bind(id.to_string())
            .bind(at(used_at))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn company(row: &MySqlRow) -> Result<Company, StoreError> {
    let settings = settings_codec::decode(get(row, "settings")?);
    Ok(Company {
        id: parsed(row, "id")?,
        name: get(row, "name")?,
        settings: settings.ok_or_else(|| StoreError::Broken("a company's settings cannot be read".into()))?,
        created_at: moment(row, "created_at")?,
        disabled_at: optional_moment(row, "disabled_at")?,
        pause: pause(row)?,
        resumed_at: optional_moment(row, "resumed_at")?,
    })
}

fn pause(row: &MySqlRow) -> Result<Option<Pause>, StoreError> {
    let Some(at) = optional_moment(row, "paused_at")? else { return Ok(None) };
    let reason: Option<String> = get(row, "pause_reason")?;
    Ok(Some(Pause { at, reason: reason.unwrap_or_default() }))
}

fn key(row: &MySqlRow) -> Result<ApiKey, StoreError> {
    let hash: Vec<u8> = get(row, "hash")?;
    Ok(ApiKey {
        id: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(|| damaged("mode"))?,
        scopes: get::<&str>(row, "scopes")?.split(' ').filter_map(Scope::parse).collect(),
        label: get(row, "label")?,
        hash: hash.try_into().map_err(|_| damaged("hash"))?,
        prefix: get(row, "prefix")?,
        created_at: moment(row, "created_at")?,
        expires_at: optional_moment(row, "expires_at")?,
        revoked_at: optional_moment(row, "revoked_at")?,
        last_used_at: optional_moment(row, "last_used_at")?,
    })
}
