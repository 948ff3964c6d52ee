//! The schema comes into being once, whoever starts at the same time and whoever is killed on the way.

mod support;

use std::time::Duration;

use sqlx::{PgConnection, Row as _};
use store::contract::stage::{a_company, stored};
use store::{StoreError, Upkeep};
use store_postgres::PostgresStore;
use support::{Database, run};
use testkit::an_email;

const ALL: [i32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

async fn versions(connection: &mut PgConnection) -> Vec<i32> {
    let rows =
        sqlx::query("SELECT version FROM posthaste_schema ORDER BY version").fetch_all(connection).await;
    rows.expect("the table is there").iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_open_an_empty_database_at_once() {
    let database = Database::new().await;
    let opening: Vec<_> = (0..10)
        .map(|_| {
            let config = database.config();
            tokio::spawn(async move { PostgresStore::open(&config).await })
        })
        .collect();
    for opening in opening {
        let store = opening.await.expect("no panic").expect("each of them opens");
        store.check().await.expect("and is fit for work");
        store.close().await;
    }
    assert_eq!(versions(&mut database.connect().await).await, ALL, "it was made once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_killed_in_the_middle_leaves_nothing() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    for delay_ms in [0, 2, 5, 10, 20, 40, 80] {
        let config = database.config();
        let opening = tokio::spawn(async move { PostgresStore::open(&config).await });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1";
        sqlx::query(kill).bind(&database.name).execute(&mut admin).await.expect("killed");
        match opening.await.expect("no panic") {
            Ok(store) => store.close().await,
            Err(error) => assert!(error.is_temporary(), "{error:?}"),
        }
    }
    let store = database.open().await;
    let company = a_company(&store, "acme").await;
    stored(&store, an_email(company)).await;
    assert_eq!(versions(&mut database.connect().await).await, ALL);
}

/// The connection that migrates is killed while it stands in line behind another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_killed_in_line_leaves_nothing() {
    let database = Database::new().await;
    let mut first = database.connect().await;
    run(&mut first, "BEGIN").await;
    run(&mut first, &format!("SELECT pg_advisory_xact_lock({})", 0x506F_7374_506F_7374_i64)).await;
    let config = database.config();
    let opening = tokio::spawn(async move { PostgresStore::open(&config).await });
    // Of this database alone: the list is the server's, and others stand in line elsewhere.
    let waiting = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while sqlx::query(waiting).fetch_optional(&mut first).await.expect("asked").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Err(error) = opening.await.expect("no panic") else { panic!("it was killed") };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    run(&mut first, "COMMIT").await;
    database.open().await.check().await.expect("the next one opens");
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_one_line() {
    let database = Database::new().await;
    database.open().await.close().await;
    run(&mut database.connect().await, "INSERT INTO posthaste_schema (version) VALUES (99)").await;
    let Err(error) = PostgresStore::open(&database.config()).await else { panic!("refused") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("schema version 99") && text.contains("newer posthaste"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[tokio::test]
async fn another_programs_tables_are_refused() {
    let database = Database::new().await;
    run(&mut database.connect().await, "CREATE TABLE events (theirs text)").await;
    let Err(error) = PostgresStore::open(&database.config()).await else { panic!("refused") };
    assert!(error.to_string().contains("another program"), "{error}");
    run(&mut database.connect().await, "DROP TABLE events; CREATE TABLE unrelated (theirs text)").await;
    database.open().await.check().await.expect("other tables of theirs do no harm");
}

/// An up-to-date schema opens while somebody reads and writes every table, and holds the migration's lock.
#[tokio::test]
async fn an_up_to_date_schema_opens_beside_work() {
    let database = Database::new().await;
    database.open().await.close().await;
    let mut other = database.connect().await;
    run(&mut other, "BEGIN").await;
    run(&mut other, &format!("SELECT pg_advisory_xact_lock({})", 0x506F_7374_506F_7374_i64)).await;
    let tables = "email_outbox, email_queue, contents, events, companies, posthaste_schema, meta";
    run(&mut other, &format!("LOCK TABLE {tables} IN SHARE UPDATE EXCLUSIVE MODE")).await;
    let opened = tokio::time::timeout(Duration::from_secs(60), PostgresStore::open(&database.config())).await;
    opened.expect("it does not wait").expect("it opens").check().await.expect("and works");
}

#[tokio::test]
async fn what_stands_in_the_way_is_named_without_the_password() {
    let database = Database::new().await;
    let mut url: url::Url = database.url().parse().expect("a URL");
    url.set_password(Some("hunter2")).expect("a URL with a host");
    url.set_path("no_such_database");
    let config = store_postgres::PostgresConfig::parse(url.as_str()).expect("a good URL");
    let Err(error) = PostgresStore::open(&config).await else { panic!("there is no such database") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    url.set_port(Some(1)).expect("a URL with a host");
    let config = store_postgres::PostgresConfig::parse(url.as_str()).expect("a good URL");
    let Err(refused) = PostgresStore::open(&config).await else { panic!("nobody listens there") };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    for error in [error, refused] {
        assert!(error.to_string().contains("no_such_database"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_database_that_cannot_hold_every_text_is_refused() {
    let database = Database::new().await;
    let mut admin = database.admin().await;
    run(&mut admin, &format!("DROP DATABASE {}", database.name)).await;
    let made = format!("CREATE DATABASE {} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0", database.name);
    run(&mut admin, &made).await;
    let Err(StoreError::Unusable(text)) = PostgresStore::open(&database.config()).await else {
        panic!("it was opened")
    };
    assert!(text.contains("LATIN1") && text.contains("ENCODING 'UTF8'"), "{text}");
}

/// A mistyped name is not filled with tables, and a newer program changes nothing of what older ones work with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_looks_leaves_the_database_as_it_is() {
    let database = Database::new().await;
    let refused = async || {
        let opened = PostgresStore::open_as_it_is(&database.config()).await;
        let Err(StoreError::Unusable(text)) = opened else { panic!("it was opened") };
        text
    };
    let mut connection = database.connect().await;
    assert!(refused().await.contains("no tables of posthaste"));
    database.open().await.close().await;
    PostgresStore::open_as_it_is(&database.config()).await.expect("it is as it has to be").close().await;
    run(&mut connection, &format!("DELETE FROM posthaste_schema WHERE version = {}", ALL.len())).await;
    assert!(refused().await.contains(&format!("works with {}", ALL.len())));
    assert_eq!(versions(&mut connection).await, ALL[..ALL.len() - 1]);
}
