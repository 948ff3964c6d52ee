//! What an operator is told about a server that may lose emails or stands in the way of work.

mod support;

use store::{Upkeep, Weakness};
use store_postgres::{PostgresConfig, PostgresStore};
use support::{Database, fresh, run};

async fn found(store: &PostgresStore) -> Vec<Weakness> {
    store.weaknesses().await.expect("the server is asked")
}

#[tokio::test]
async fn a_server_in_good_order_has_none() {
    assert_eq!(found(&*fresh().await).await, []);
}

#[tokio::test]
async fn commits_that_do_not_wait_are_found() {
    let database = Database::new().await;
    let set = format!("ALTER DATABASE {} SET synchronous_commit = off", database.name);
    run(&mut database.admin().await, &set).await;
    let found = found(&database.open().await).await;
    let [weakness] = &found[..] else { panic!("{found:?}") };
    assert_eq!((weakness.setting.as_str(), weakness.loses_data), ("synchronous_commit", true));
}

#[tokio::test]
async fn a_database_for_reading_is_found_and_unavailable() {
    let database = Database::new().await;
    database.open().await.close().await;
    let set = format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name);
    run(&mut database.admin().await, &set).await;
    let store = database.open().await;
    let found = found(&store).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].setting.as_str(), found[0].loses_data), ("default_transaction_read_only", false));
    let refused = store.check().await.expect_err("it cannot be written to");
    assert!(refused.is_temporary(), "{refused:?}");
}

#[tokio::test]
async fn too_few_connections_are_found() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    let row = sqlx::query("SELECT current_setting('max_connections')::bigint").fetch_one(&mut admin).await;
    let most: i64 = sqlx::Row::get(&row.expect("asked"), 0);
    let config = PostgresConfig::parse(&database.url_with("pool_max=200")).expect("a good URL");
    let store = PostgresStore::open(&config).await.expect("opens");
    let is_told = found(&store).await.iter().any(|weakness| weakness.setting == "max_connections");
    assert_eq!(is_told, most < 210, "of {most}");
}
