//! SQLite played against the model of the store, seed by seed, in memory: the same schema, no file to wait for.

use store_sqlite::SqliteStore;

async fn fresh() -> Box<SqliteStore> {
    Box::new(SqliteStore::in_memory().await.expect("a new store opens"))
}

store::store_simulation!(fresh());
