//! SQLite keeps every law of the store: each on a file of its own, as in production.

use std::ops::Deref;

use store_sqlite::SqliteStore;
use tempfile::TempDir;

/// A store and the folder it lives in.
struct Fixture {
    store: SqliteStore,
    _folder: TempDir,
}

impl Deref for Fixture {
    type Target = SqliteStore;

    fn deref(&self) -> &SqliteStore {
        &self.store
    }
}

async fn fresh() -> Fixture {
    let folder = TempDir::new().expect("a folder can be made");
    let store = SqliteStore::open(&folder.path().join("posthaste.db")).await.expect("a new store opens");
    Fixture { store, _folder: folder }
}

store::store_contract!(fresh());
