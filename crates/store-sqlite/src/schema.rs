//! Opening the file with settings that lose nothing, and bringing its schema up to date.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use store::StoreError;

use crate::error::from_sqlite;

/// Numbered, embedded, never edited once released.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_ended.sql"),
    include_str!("../migrations/0003_routes.sql"),
    include_str!("../migrations/0004_feedback.sql"),
    include_str!("../migrations/0005_search.sql"),
    include_str!("../migrations/0006_series.sql"),
    include_str!("../migrations/0007_messages.sql"),
];

/// "Post" in ASCII: tells our files from other SQLite databases.
const APPLICATION_ID: i64 = 0x506F_7374;

/// How long a write waits for another process on the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The writer's page cache, in KiB; the operating system caches the rest.
const WRITER_CACHE_KIB: i64 = 16 * 1024;
const READER_CACHE_KIB: i64 = 4 * 1024;

/// The checkpointer keeps the log short; this is what happens if it does not get to it, in pages.
const AUTOCHECKPOINT_PAGES: i64 = 64 * 1024;

/// FULL, as SQLite gives it back: the log is synced before a commit returns.
const SYNCHRONOUS_FULL: i64 = 2;

/// What decides whether a commit outlives a power cut. SQLite takes a setting that it cannot honour without a word and
/// goes on with another, so what is in force is read back from every connection that writes.
#[derive(Debug, PartialEq, Eq)]
struct Durability {
    journal: String,
    synchronous: i64,
}

impl Durability {
    fn wanted() -> Self {
        Self { journal: "wal".to_owned(), synchronous: SYNCHRONOUS_FULL }
    }

    fn of(connection: &Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            journal: connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?,
            synchronous: connection.pragma_query_value(None, "synchronous", |row| row.get(0))?,
        })
    }
}

pub fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(path).map_err(|error| cannot_open(path, error))?;
    prepare(&connection).map_err(|error| cannot_open(path, error))?;
    let in_force = Durability::of(&connection).map_err(|error| cannot_open(path, error))?;
    if in_force != Durability::wanted() {
        let Durability { journal, synchronous } = in_force;
        return Err(StoreError::Unusable(format!(
            "cannot keep mail safe in {}: SQLite has journal_mode={journal} and synchronous={synchronous} in force \
             there instead of wal and {SYNCHRONOUS_FULL}; use a local disk",
            path.display()
        )));
    }
    Ok(connection)
}

pub fn connect_in_memory() -> Result<Connection, StoreError> {
    let connection = Connection::open_in_memory().map_err(from_sqlite)?;
    prepare(&connection).map_err(from_sqlite)?;
    Ok(connection)
}

pub fn connect_for_reading(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(from_sqlite)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(from_sqlite)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB).map_err(from_sqlite)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // What is erased is overwritten, not only unlinked.
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(())
}

/// Names the file; what may pass by itself (a lock, a failing disk) stays apart from what a person has to mend.
fn cannot_open(path: &Path, error: rusqlite::Error) -> StoreError {
    let text = format!("cannot use {} as a database: {error}", path.display());
    let is_missing = error.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen);
    match from_sqlite(error) {
        StoreError::Unavailable(_) if !is_missing => StoreError::Unavailable(text),
        StoreError::Full(_) => StoreError::Full(text),
        _ => StoreError::Unusable(text),
    }
}

/// Brings the schema up to date. Safe when several processes start at once (one waits for the other) and when
/// it is killed in the middle (each migration is one transaction).
pub fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    loop {
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(from_sqlite)?;
        let version = schema_version(&transaction)?;
        let Some(migration) = MIGRATIONS.get(version) else {
            return Ok(());
        };
        transaction.execute_batch(migration).map_err(from_sqlite)?;
        transaction.pragma_update(None, "user_version", version + 1).map_err(from_sqlite)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(from_sqlite)?;
        transaction.commit().map_err(from_sqlite)?;
    }
}

/// How many migrations the file has seen; refuses files that are not ours or newer than this program.
fn schema_version(connection: &Connection) -> Result<usize, StoreError> {
    let pragma = |name: &str| -> Result<i64, StoreError> {
        connection.pragma_query_value(None, name, |row| row.get(0)).map_err(from_sqlite)
    };
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(from_sqlite)?;
    if tables > 0 && pragma("application_id")? != APPLICATION_ID {
        return Err(StoreError::Unusable(
            "the file is a database of another program; name a new file".into(),
        ));
    }
    let version = pragma("user_version")?;
    let known = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if version <= known => Ok(version),
        _ => Err(StoreError::Unusable(format!(
            "the database has schema version {version}, this program knows up to {known}; use a newer posthaste"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;

    /// README: no email answered with 202 is lost by a power cut. Both connections that write are asked: the writer's
    /// own, and one made as the checkpointer's is.
    #[tokio::test]
    async fn every_commit_waits_for_the_disk() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("posthaste.db");
        let store = SqliteStore::open(&file).await.expect("a new store opens");
        let writers = store.writer.run(|work| Durability::of(work.connection).map_err(from_sqlite)).await;
        let checkpointers = Durability::of(&connect(&file).expect("opens")).expect("answers");
        for in_force in [writers.expect("answers"), checkpointers] {
            assert_eq!((in_force.journal.as_str(), in_force.synchronous), ("wal", 2));
        }
    }

    /// A file that can have no log beside it is not written to with another kind of journal.
    #[test]
    fn a_file_without_a_log_is_refused() {
        let error = connect(Path::new(":memory:")).expect_err("a database in memory has no log").to_string();
        assert!(error.contains("journal_mode=memory") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_newer_schema_is_refused_in_one_line() {
        let mut connection = connect_in_memory().expect("opens");
        migrate(&mut connection).expect("migrates");
        migrate(&mut connection).expect("a second run finds nothing to do");
        connection.pragma_update(None, "user_version", 99).expect("set");
        let error = migrate(&mut connection).expect_err("refused").to_string();
        assert!(error.contains("schema version 99") && error.contains("newer posthaste"), "{error}");
    }

    #[test]
    fn another_programs_file_is_refused() {
        let mut connection = connect_in_memory().expect("opens");
        connection.execute_batch("CREATE TABLE theirs (x)").expect("made");
        let error = migrate(&mut connection).expect_err("refused").to_string();
        assert!(error.contains("another program"), "{error}");
    }
}
