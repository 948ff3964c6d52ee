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
mod erase;
mod error;
mod feedback;
mod handover;
mod history;
mod intake;
mod lookup;
mod messages;
mod outbox;
mod owners;
mod providers;
mod reader;
mod recipients;
mod room;
mod row;
mod schema;
mod settle;
mod suppressions;
mod tallies;
mod templates;
mod upkeep;
mod writer;

use std::path::Path;
use std::sync::Arc;

use store::StoreError;

use crate::owners::Owners;
use crate::reader::Reader;
use crate::room::Room;
use crate::writer::Writer;

/// Everything is kept in one SQLite file.
pub struct SqliteStore {
    writer: Writer,
    reader: Reader,
    owners: Owners,
    room: Arc<Room>,
}

impl SqliteStore {
    /// Opens or makes the database at `path` and brings its schema up to date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with_reserve(path, None).await
    }

    /// The same, with a reserve of the operator's choice: with less room on the disk nothing new is taken in or sent.
    pub async fn open_with_reserve(path: &Path, reserve_bytes: Option<u64>) -> Result<Self, StoreError> {
        let room = Room::with_reserve(reserve_bytes);
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || Self::open_now(&path, room))
            .await
            .map_err(|_panic| StoreError::Broken("opening the database panicked".into()))?
    }

    fn open_now(path: &Path, room: Room) -> Result<Self, StoreError> {
        let mut connection = schema::connect(path)?;
        schema::migrate(&mut connection)?;
        let room = Arc::new(room);
        let writer = Writer::start(connection, Some((path, Arc::clone(&room))))?;
        Ok(Self::of(writer, Reader::of_file(path), Owners::beside(path), room))
    }

    /// A store that is gone with the process, for tests. Same schema, same code, no file.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let mut connection = schema::connect_in_memory()?;
        schema::migrate(&mut connection)?;
        let writer = Writer::start(connection, None)?;
        let reader = Reader::through(writer.clone());
        Ok(Self::of(writer, reader, Owners::nowhere(), Arc::new(Room::with_reserve(None))))
    }

    fn of(writer: Writer, reader: Reader, owners: Owners, room: Arc<Room>) -> Self {
        Self { writer, reader, owners, room }
    }
}
