//! What is known of the providers, and the starts of calls to them.

use async_trait::async_trait;
use model::Timestamp;
use sqlx::{PgConnection, Row as _};
use store::record::damaged;
use store::starts::{PROVIDER_SECOND, Starts};
use store::task::on_its_own;
use store::{ProviderNote, Providers, StartsWish, StoreError};

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::{clean, signed};

/// Starts are over before a server that crashed could be back: there is nothing to be gained by waiting for the disk.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = off";
const LOCK: &str = "SELECT starts FROM provider_notes WHERE provider = $1 FOR UPDATE";
const WRITE_STARTS: &str = "UPDATE provider_notes SET starts = $2 WHERE provider = $1";

/// A row may be there for the starts alone.
const FIRST_NOTE: &str = "INSERT INTO provider_notes (provider, version, note) VALUES ($1, 1, $2)
     ON CONFLICT (provider) DO UPDATE SET version = 1, note = excluded.note WHERE provider_notes.version = 0";
const NEXT_NOTE: &str =
    "UPDATE provider_notes SET version = version + 1, note = $2 WHERE provider = $1 AND version = $3";

/// What is asked of a provider.
struct Asked {
    provider: String,
    wish: StartsWish,
    now: Timestamp,
}

#[async_trait]
impl Providers for PostgresStore {
    async fn take_starts(&self, provider: &str, wish: StartsWish, now: Timestamp) -> Result<u32, StoreError> {
        let asked = Asked { provider: clean(provider).into_owned(), wish, now };
        let lanes = self.lanes.clone();
        on_its_own(Box::pin(async move {
            lanes.run(&asked, |lane, asked| Box::pin(take_starts(&mut lane.connection, asked))).await
        }))
        .await
    }

    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError> {
        self.read(async {
            let sql =
                "SELECT provider, version, note FROM provider_notes WHERE version > 0 ORDER BY provider";
            let rows = sqlx::query(sql).fetch_all(&self.pool).await?;
            let read = |row: &sqlx::postgres::PgRow| {
                let version = u64::try_from(row.try_get::<i64, _>(1)?).map_err(|_| damaged("version"))?;
                Ok(ProviderNote { provider: row.try_get(0)?, version, note: row.try_get(2)? })
            };
            rows.iter().map(read).collect()
        })
        .await
    }

    async fn note_provider(&self, provider: &str, seen: u64, note: &str) -> Result<bool, StoreError> {
        let (provider, note) = (clean(provider).into_owned(), clean(note).into_owned());
        self.write((provider, seen, note), |c, (provider, seen, note)| {
            Box::pin(write_note(c, provider, *seen, note))
        })
        .await
    }
}

async fn take_starts(connection: &mut PgConnection, asked: &Asked) -> Result<u32, Fault> {
    sqlx::raw_sql(BEGIN).execute(&mut *connection).await?;
    let text = lock_starts(connection, &asked.provider).await?;
    let mut starts = Starts::recent(&text, asked.now, PROVIDER_SECOND);
    let taken = asked.wish.granted(starts.count());
    if taken > 0 {
        starts.add(asked.now, taken);
        sqlx::query(WRITE_STARTS)
            .bind(&asked.provider)
            .bind(starts.encode())
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query("COMMIT").execute(connection).await?;
    Ok(taken)
}

/// The row is there from the first time on.
async fn lock_starts(connection: &mut PgConnection, provider: &str) -> Result<String, Fault> {
    if let Some(row) = sqlx::query(LOCK).bind(provider).fetch_optional(&mut *connection).await? {
        return Ok(row.try_get(0)?);
    }
    // Waits for who is adding it just now.
    sqlx::query("INSERT INTO provider_notes (provider) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(provider)
        .execute(&mut *connection)
        .await?;
    Ok(sqlx::query(LOCK).bind(provider).fetch_one(connection).await?.try_get(0)?)
}

async fn write_note(
    connection: &mut PgConnection,
    provider: &str,
    seen: u64,
    note: &str,
) -> Result<bool, Fault> {
    let written = if seen == 0 {
        sqlx::query(FIRST_NOTE).bind(provider).bind(note).execute(connection).await?
    } else {
        sqlx::query(NEXT_NOTE).bind(provider).bind(note).bind(signed(seen)).execute(connection).await?
    };
    Ok(written.rows_affected() > 0)
}
