//! What is known of the providers, and the starts of calls to them.

use async_trait::async_trait;
use model::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use store::starts::{PROVIDER_SECOND, Starts};
use store::{ProviderNote, Providers, StartsWish, StoreError};

use crate::SqliteStore;
use crate::error::from_sqlite;

#[async_trait]
impl Providers for SqliteStore {
    async fn take_starts(&self, provider: &str, wish: StartsWish, now: Timestamp) -> Result<u32, StoreError> {
        let provider = provider.to_owned();
        let take = move |connection: &Connection| take_starts(connection, &provider, wish, now);
        self.writer.run(move |work| take(work.connection).map_err(from_sqlite)).await
    }

    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError> {
        self.reader.run(|connection| notes(connection).map_err(from_sqlite)).await
    }

    async fn note_provider(&self, provider: &str, seen: u64, note: &str) -> Result<bool, StoreError> {
        let (provider, note) = (provider.to_owned(), note.to_owned());
        let write = move |connection: &Connection| -> rusqlite::Result<bool> {
            let changed = connection
                .prepare_cached(
                    "INSERT INTO provider_notes (provider, version, note) SELECT ?1, 1, ?3 WHERE ?2 = 0
                     ON CONFLICT (provider) DO UPDATE SET version = 1, note = excluded.note WHERE version = 0",
                )?
                .execute((&provider, seen, &note))?
                + connection
                    .prepare_cached(
                        "UPDATE provider_notes SET version = version + 1, note = ?3
                         WHERE provider = ?1 AND version = ?2 AND ?2 > 0",
                    )?
                    .execute((&provider, seen, &note))?;
            Ok(changed > 0)
        };
        self.writer.run(move |work| write(work.connection).map_err(from_sqlite)).await
    }
}

fn take_starts(
    connection: &Connection,
    provider: &str,
    wish: StartsWish,
    now: Timestamp,
) -> rusqlite::Result<u32> {
    let text: Option<String> = connection
        .prepare_cached("SELECT starts FROM provider_notes WHERE provider = ?1")?
        .query_row([provider], |row| row.get(0))
        .optional()?;
    let mut starts = Starts::recent(&text.unwrap_or_default(), now, PROVIDER_SECOND);
    let taken = wish.granted(starts.count());
    if taken > 0 {
        starts.add(now, taken);
        connection
            .prepare_cached(
                "INSERT INTO provider_notes (provider, starts) VALUES (?1, ?2)
                 ON CONFLICT (provider) DO UPDATE SET starts = excluded.starts",
            )?
            .execute((provider, starts.encode()))?;
    }
    Ok(taken)
}

fn notes(connection: &Connection) -> rusqlite::Result<Vec<ProviderNote>> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(ProviderNote { provider: row.get(0)?, version: row.get(1)?, note: row.get(2)? })
    };
    connection
        .prepare_cached(
            "SELECT provider, version, note FROM provider_notes WHERE version > 0 ORDER BY provider",
        )?
        .query_map([], read)?
        .collect()
}
