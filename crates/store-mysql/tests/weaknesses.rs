//! What an operator is told about a server that may lose emails or stands in the way of work.

mod support;

use sqlx::Row as _;
use store::{Upkeep, Weakness};
use store_mysql::{MysqlConfig, MysqlStore};
use support::{Database, fresh, run};

async fn found(store: &MysqlStore) -> Vec<Weakness> {
    store.weaknesses().await.expect("the server is asked")
}

/// One test, since it changes what all of the server's users see: no other looks at this setting, and none depends on
/// it.
#[tokio::test]
async fn commits_that_do_not_wait_are_found() {
    let store = fresh().await;
    let mut admin = store.database.admin().await;
    let losing = |found: Vec<Weakness>| -> Vec<String> {
        found.into_iter().filter(|weakness| weakness.loses_data).map(|weakness| weakness.setting).collect()
    };
    assert_eq!(losing(found(&store).await), Vec::<String>::new(), "the server is in good order");
    run(&mut admin, "SET GLOBAL innodb_flush_log_at_trx_commit = 2").await;
    let told = found(&store).await;
    run(&mut admin, "SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    assert_eq!(losing(told), ["innodb_flush_log_at_trx_commit"]);
    assert_eq!(losing(found(&store).await), Vec::<String>::new());
}

#[tokio::test]
async fn too_few_connections_and_small_packets_are_found() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    let sql = "SELECT CAST(@@max_connections AS SIGNED) AS most, CAST(@@global.max_allowed_packet AS SIGNED) AS bytes";
    let row = sqlx::query(sql).fetch_one(&mut admin).await.expect("asked");
    let (most, bytes): (i64, i64) = (row.get("most"), row.get("bytes"));
    let config = MysqlConfig::parse(&database.url_with("pool_max=200")).expect("a good URL");
    let found = found(&MysqlStore::open(&config).await.expect("opens")).await;
    let is_told =
        |setting: &str| found.iter().any(|weakness| weakness.setting == setting && !weakness.loses_data);
    assert_eq!(is_told("max_connections"), most < 211, "of {most}");
    assert_eq!(is_told("max_allowed_packet"), bytes < 32 << 20, "of {bytes}");
    assert!(!is_told("clock") && !is_told("read_only"), "{found:?}");
}
