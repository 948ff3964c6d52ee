//! SQLite keeps every law of the store: each on a file of its own, as in production.

use std::ops::Deref;

use store_sqlite::SqliteStore;
use tempfile::TempDir;

/// A store and the folder it lives in.
struct Fixture {
    store: SqliteStore,
    folder: TempDir,
}

impl Deref for Fixture {
    type Target = SqliteStore;

    fn deref(&self) -> &SqliteStore {
        &self.store
    }
}

impl Fixture {
    /// The same store, as another process opens it.
    async fn another(&self) -> SqliteStore {
        open(&self.folder).await
    }
}

async fn open(folder: &TempDir) -> SqliteStore {
    SqliteStore::open(&folder.path().join("posthaste.db")).await.expect("the store opens")
}

async fn fresh() -> Fixture {
    let folder = TempDir::new().expect("a folder can be made");
    Fixture { store: open(&folder).await, folder }
}

store::store_contract!(fresh());
