//! Companies and their keys.

use async_trait::async_trait;
use model::{ApiKey, Company, CompanyId, KeyId, KeyMode, Pause, Scope, Timestamp};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use store::{Companies, StoreError, settings_codec};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::{at, clean, company_id, get, moment, optional_moment};

const INSERT_COMPANY: &str =
    "INSERT INTO companies (id, name, settings, weight, concurrency_max, rate_per_sec, created_at, disabled_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
/// Gives no row where the name is another's; `$7` is named so that both statements take the same values.
const UPDATE_COMPANY: &str =
    "UPDATE companies SET name = $2, settings = $3, weight = $4, concurrency_max = $5, rate_per_sec = $6,
         disabled_at = $8
     WHERE id = $1 AND $7::timestamptz IS NOT NULL";

#[async_trait]
impl Companies for PostgresStore {
    async fn add_company(&self, company: Company) -> Result<(), StoreError> {
        let name = company.name.clone();
        let added = self.write(company, |c, company| Box::pin(write_company(c, INSERT_COMPANY, company)));
        if added.await? { Ok(()) } else { Err(StoreError::Exists(format!("a company named {name:?}"))) }
    }

    async fn update_company(&self, company: Company) -> Result<bool, StoreError> {
        let name = company.name.clone();
        let updated = self.write(company, |c, company| Box::pin(update(c, company))).await?;
        updated.ok_or_else(|| StoreError::Exists(format!("a company named {name:?}")))
    }

    async fn pause_company(&self, id: CompanyId, pause: Pause) -> Result<bool, StoreError> {
        self.write((id, pause), |c, (id, pause)| Box::pin(pause_one(c, *id, pause))).await
    }

    async fn resume_company(&self, id: CompanyId, now: Timestamp) -> Result<bool, StoreError> {
        let resumed = self.write((id, now), |c, &(id, now)| Box::pin(resume_one(c, id, now))).await?;
        if resumed {
            self.wake.made_due();
        }
        Ok(resumed)
    }

    async fn company(&self, id: CompanyId) -> Result<Option<Company>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM companies WHERE id = $1";
            let row = sqlx::query(sql).bind(id.uuid()).fetch_optional(&self.pool).await?;
            Ok(row.as_ref().map(company).transpose()?)
        })
        .await
    }

    async fn company_named(&self, name: &str) -> Result<Option<Company>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM companies WHERE name = $1";
            let row = sqlx::query(sql).bind(name).fetch_optional(&self.pool).await?;
            Ok(row.as_ref().map(company).transpose()?)
        })
        .await
    }

    async fn companies(&self) -> Result<Vec<Company>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM companies ORDER BY name";
            let rows = sqlx::query(sql).fetch_all(&self.pool).await?;
            Ok(rows.iter().map(company).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn add_key(&self, key: ApiKey) -> Result<(), StoreError> {
        let added = self.write(key, |c, key| Box::pin(add_key(c, key))).await?;
        if added { Ok(()) } else { Err(StoreError::Exists("this key".into())) }
    }

    async fn revoke_key(&self, company: CompanyId, id: KeyId, now: Timestamp) -> Result<bool, StoreError> {
        self.write((company, id, now), |c, &(company, id, now)| Box::pin(revoke(c, company, id, now))).await
    }

    async fn keys(&self, company: CompanyId) -> Result<Vec<ApiKey>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM api_keys WHERE company_id = $1 ORDER BY id DESC";
            let rows = sqlx::query(sql).bind(company.uuid()).fetch_all(&self.pool).await?;
            Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<(ApiKey, Company)>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM api_keys WHERE hash = $1";
            let found = sqlx::query(sql).bind(&hash[..]).fetch_optional(&self.pool).await?;
            let Some(found) = found.as_ref().map(key).transpose()? else { return Ok(None) };
            let company = self.company(found.company).await?;
            Ok(company.map(|company| (found, company)))
        })
        .await
    }

    async fn touch_keys(&self, uses: Vec<(KeyId, Timestamp)>) -> Result<(), StoreError> {
        self.write(uses, |c, uses| Box::pin(touch(c, uses))).await
    }
}

/// `true` when a row was written.
async fn write_company(
    connection: &mut PgConnection,
    sql: &'static str,
    company: &Company,
) -> Result<bool, Fault> {
    let settings = &company.settings;
    let written = sqlx::query(sql)
        .bind(company.id.uuid())
        .bind(&company.name)
        .bind(settings_codec::encode(settings))
        .bind(i64::from(settings.weight))
        .bind(settings.concurrency_max.map(i64::from))
        .bind(settings.rate_per_sec.map(i64::from))
        .bind(at(company.created_at))
        .bind(company.disabled_at.map(at))
        .execute(connection)
        .await?;
    Ok(written.rows_affected() > 0)
}

/// `None` when the name is another's.
async fn update(connection: &mut PgConnection, company: &Company) -> Result<Option<bool>, Fault> {
    // It may have another limit from now on: its day is counted anew. First, as acceptance locks it first.
    let forget = "DELETE FROM company_days WHERE company_id = $1";
    sqlx::query(forget).bind(company.id.uuid()).execute(&mut *connection).await?;
    match write_company(connection, UPDATE_COMPANY, company).await {
        Ok(updated) => Ok(Some(updated)),
        Err(Fault::Sql(sqlx::Error::Database(error))) if error.is_unique_violation() => Ok(None),
        Err(fault) => Err(fault),
    }
}

async fn pause_one(connection: &mut PgConnection, id: CompanyId, pause: &Pause) -> Result<bool, Fault> {
    let paused = sqlx::query(
        "UPDATE companies SET paused_at = $2, pause_reason = $3
         WHERE id = $1 AND paused_at IS NULL",
    )
    .bind(id.uuid())
    .bind(at(pause.at))
    .bind(clean(&pause.reason))
    .execute(connection)
    .await?;
    Ok(paused.rows_affected() > 0)
}

async fn resume_one(connection: &mut PgConnection, id: CompanyId, now: Timestamp) -> Result<bool, Fault> {
    let resumed = sqlx::query(
        "UPDATE companies SET paused_at = NULL, pause_reason = NULL, resumed_at = $2
         WHERE id = $1 AND paused_at IS NOT NULL",
    )
    .bind(id.uuid())
    .bind(at(now))
    .execute(connection)
    .await?;
    Ok(resumed.rows_affected() > 0)
}

async fn add_key(connection: &mut PgConnection, key: &ApiKey) -> Result<bool, Fault> {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let added = sqlx::query(
        "INSERT INTO api_keys (id, company_id, mode, scopes, label, hash, prefix, created_at, expires_at, revoked_at,
             last_used_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING",
    )
    .bind(key.id.uuid())
    .bind(key.company.uuid())
    .bind(key.mode.as_str())
    .bind(scopes.join(" "))
    .bind(&key.label)
    .bind(&key.hash[..])
    .bind(&key.prefix)
    .bind(at(key.created_at))
    .bind(key.expires_at.map(at))
    .bind(key.revoked_at.map(at))
    .bind(key.last_used_at.map(at))
    .execute(connection)
    .await?;
    Ok(added.rows_affected() > 0)
}

async fn revoke(
    connection: &mut PgConnection,
    company: CompanyId,
    id: KeyId,
    now: Timestamp,
) -> Result<bool, Fault> {
    let sql = "UPDATE api_keys SET revoked_at = coalesce(revoked_at, $3) WHERE id = $1 AND company_id = $2";
    let revoked =
        sqlx::query(sql).bind(id.uuid()).bind(company.uuid()).bind(at(now)).execute(connection).await?;
    Ok(revoked.rows_affected() > 0)
}

async fn touch(connection: &mut PgConnection, uses: &[(KeyId, Timestamp)]) -> Result<(), Fault> {
    let mut uses = uses.to_vec();
    // Each key once, at its last use, and in one order for everybody.
    uses.sort_unstable();
    uses.reverse();
    uses.dedup_by_key(|(id, _)| *id);
    sqlx::query(
        "UPDATE api_keys SET last_used_at = used.at
         FROM (SELECT k.id, u.at FROM UNNEST($1::uuid[], $2::timestamptz[]) AS u (id, at)
               JOIN api_keys k ON k.id = u.id WHERE k.last_used_at IS NULL OR k.last_used_at < u.at
               ORDER BY k.id FOR UPDATE OF k) AS used
         WHERE api_keys.id = used.id",
    )
    .bind(uses.iter().map(|(id, _)| id.uuid()).collect::<Vec<Uuid>>())
    .bind(uses.iter().map(|(_, used)| at(*used)).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

fn unreadable() -> StoreError {
    StoreError::Broken("a company or key cannot be read".into())
}

fn company(row: &PgRow) -> Result<Company, StoreError> {
    let reason = || get::<Option<String>>(row, "pause_reason").map(Option::unwrap_or_default);
    Ok(Company {
        id: company_id(row, "id")?,
        name: get(row, "name")?,
        settings: settings_codec::decode(get(row, "settings")?).ok_or_else(unreadable)?,
        created_at: moment(row, "created_at")?,
        disabled_at: optional_moment(row, "disabled_at")?,
        pause: optional_moment(row, "paused_at")?
            .map(|at| Ok::<_, StoreError>(Pause { at, reason: reason()? }))
            .transpose()?,
        resumed_at: optional_moment(row, "resumed_at")?,
    })
}

fn key(row: &PgRow) -> Result<ApiKey, StoreError> {
    Ok(ApiKey {
        id: KeyId::from_uuid(get(row, "id")?),
        company: company_id(row, "company_id")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(unreadable)?,
        scopes: get::<&str>(row, "scopes")?.split(' ').filter_map(Scope::parse).collect(),
        label: get(row, "label")?,
        hash: get::<&[u8]>(row, "hash")?.try_into().map_err(|_| unreadable())?,
        prefix: get(row, "prefix")?,
        created_at: moment(row, "created_at")?,
        expires_at: optional_moment(row, "expires_at")?,
        revoked_at: optional_moment(row, "revoked_at")?,
        last_used_at: optional_moment(row, "last_used_at")?,
    })
}
