//! What is known of the providers, and the starts of calls to them. The provider's row is the lock that puts those who
//! ask for starts in line, over all processes.

use async_trait::async_trait;
use model::Timestamp;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row as _};
use store::starts::{PROVIDER_SECOND, Starts};
use store::{ProviderNote, Providers, StartsWish, StoreError};

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::get;

const LOCK: &str = "SELECT starts FROM provider_notes WHERE provider = ? FOR UPDATE";
/// A row may be there for the starts alone. An update that changes nothing locks the row that is there as a writer does:
/// INSERT IGNORE would lock it as a reader, and two of those who both go on to write block each other for good.
const BE_THERE: &str = "INSERT INTO provider_notes (provider, version, note, starts) VALUES (?, 0, '', '')
     ON DUPLICATE KEY UPDATE version = version";
const WRITE_STARTS: &str = "UPDATE provider_notes SET starts = ? WHERE provider = ?";
const WRITE_NOTE: &str =
    "UPDATE provider_notes SET version = version + 1, note = ? WHERE provider = ? AND version = ?";
const NOTES: &str = "SELECT provider, version, note FROM provider_notes WHERE version > 0 ORDER BY provider";

/// What is asked of a provider.
struct Asked {
    provider: String,
    wish: StartsWish,
    now: Timestamp,
}

/// What is to be known of a provider, by one who knows the version before.
struct Note {
    provider: String,
    seen: u64,
    text: String,
}

#[async_trait]
impl Providers for MysqlStore {
    async fn take_starts(&self, provider: &str, wish: StartsWish, now: Timestamp) -> Result<u32, StoreError> {
        let asked = Asked { provider: provider.to_owned(), wish, now };
        self.write_at_once(asked, |lane, asked| Box::pin(take_starts(&mut lane.connection, asked))).await
    }

    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError> {
        let read = self.read((), |connection, ()| {
            Box::pin(async move {
                let rows = sqlx::query(NOTES).fetch_all(connection).await?;
                let note = |row: &MySqlRow| -> Result<ProviderNote, StoreError> {
                    let (provider, version) = (get(row, "provider")?, get(row, "version")?);
                    Ok(ProviderNote { provider, version, note: get(row, "note")? })
                };
                Ok(rows.iter().map(note).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn note_provider(&self, provider: &str, seen: u64, note: &str) -> Result<bool, StoreError> {
        let note = Note { provider: provider.to_owned(), seen, text: note.to_owned() };
        self.write_at_once(note, |lane, note| Box::pin(write_note(&mut lane.connection, note))).await
    }
}

async fn take_starts(connection: &mut MySqlConnection, asked: &Asked) -> Result<u32, Fault> {
    let text = lock_starts(connection, &asked.provider).await?;
    let mut starts = Starts::recent(&text, asked.now, PROVIDER_SECOND);
    let taken = asked.wish.granted(starts.count());
    if taken > 0 {
        starts.add(asked.now, taken);
        sqlx::query(WRITE_STARTS).bind(starts.encode()).bind(&asked.provider).execute(connection).await?;
    }
    Ok(taken)
}

/// The row is there from the first time on.
async fn lock_starts(connection: &mut MySqlConnection, provider: &str) -> Result<String, Fault> {
    if let Some(row) = sqlx::query(LOCK).bind(provider).fetch_optional(&mut *connection).await? {
        return Ok(row.try_get("starts")?);
    }
    sqlx::query(BE_THERE).bind(provider).execute(&mut *connection).await?;
    Ok(sqlx::query(LOCK).bind(provider).fetch_one(connection).await?.try_get("starts")?)
}

async fn write_note(connection: &mut MySqlConnection, note: &Note) -> Result<bool, Fault> {
    if note.seen == 0 {
        sqlx::query(BE_THERE).bind(&note.provider).execute(&mut *connection).await?;
    }
    let query = sqlx::query(WRITE_NOTE).bind(&note.text).bind(&note.provider).bind(note.seen);
    Ok(query.execute(connection).await?.rows_affected() > 0)
}
