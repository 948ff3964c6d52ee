//! The store on SQLite: one file in WAL mode with synchronous=FULL, safe across power loss.
//!
//! `writer` is the one place that writes: every verb is a piece of work handed to its thread, which puts all
//! that is waiting into one transaction (group commit). `reader` answers questions beside it. The roles of the
//! port are in files of their own names; `claim` and `settle` are the hot half of the outbox.

mod alerts;
mod claim;
mod companies;
mod counts;
mod dead_letters;
mod error;
mod feedback;
mod history;
mod intake;
mod lookup;
mod outbox;
mod owners;
mod providers;
mod reader;
mod recipients;
mod row;
mod schema;
mod settle;
mod suppressions;
mod tallies;
mod templates;
mod upkeep;
mod writer;

use std::path::Path;

use store::StoreError;

use crate::owners::Owners;
use crate::reader::Reader;
use crate::writer::Writer;

/// Everything is kept in one SQLite file.
pub struct SqliteStore {
    writer: Writer,
    reader: Reader,
    owners: Owners,
}

impl SqliteStore {
    /// Opens or makes the database at `path` and brings its schema up to date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || Self::open_now(&path))
            .await
            .map_err(|panic| StoreError::Broken(panic.to_string()))?
    }

    fn open_now(path: &Path) -> Result<Self, StoreError> {
        let mut connection = schema::connect(path)?;
        schema::migrate(&mut connection)?;
        let writer = Writer::start(connection, Some(path))?;
        Ok(Self::of(writer, Reader::of_file(path), Owners::beside(path)))
    }

    /// A store that is gone with the process, for tests. Same schema, same code, no file.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let mut connection = schema::connect_in_memory()?;
        schema::migrate(&mut connection)?;
        let writer = Writer::start(connection, None)?;
        let reader = Reader::through(writer.clone());
        Ok(Self::of(writer, reader, Owners::nowhere()))
    }

    fn of(writer: Writer, reader: Reader, owners: Owners) -> Self {
        Self { writer, reader, owners }
    }
}
