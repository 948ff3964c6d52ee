//! The schema comes into being once, whoever starts at the same time and whoever is killed on the way.

mod support;

use std::time::Duration;

use model::{Claim, EmailId, Verdict};
use sqlx::{MySqlConnection, Row as _};
use store::contract::stage::{a_company, a_worker, backlog, claim, request, settle, stored};
use store::{ClaimRequest, Outbox as _, Routes, StoreError, Upkeep};
use store_mysql::MysqlStore;
use support::{Database, is_mariadb, run};
use testkit::{START, an_email, at_secs};

const MIGRATIONS: [&str; 8] = [
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_routes.sql"),
    include_str!("../migrations/0003_feedback.sql"),
    include_str!("../migrations/0004_search.sql"),
    include_str!("../migrations/0005_entities.sql"),
    include_str!("../migrations/0006_times.sql"),
    include_str!("../migrations/0007_series.sql"),
    include_str!("../migrations/0008_messages.sql"),
];
const ALL: [u32; MIGRATIONS.len()] = [1, 2, 3, 4, 5, 6, 7, 8];

async fn versions(connection: &mut MySqlConnection) -> Vec<u32> {
    let rows =
        sqlx::query("SELECT version FROM posthaste_schema ORDER BY version").fetch_all(connection).await;
    rows.expect("the table is there").iter().map(|row| row.get("version")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_open_an_empty_database_at_once() {
    let database = Database::new().await;
    let opening: Vec<_> = (0..10)
        .map(|_| {
            let config = database.config();
            tokio::spawn(async move { MysqlStore::open(&config).await })
        })
        .collect();
    for opening in opening {
        let store = opening.await.expect("no panic").expect("each of them opens");
        store.check().await.expect("and is fit for work");
        store.close().await;
    }
    assert_eq!(versions(&mut database.connect().await).await, ALL, "it was made once");
}

/// The statements of a migration for this server.
async fn statements(connection: &mut MySqlConnection, migration: &str) -> Vec<String> {
    let is_mariadb = is_mariadb(connection).await;
    let collation = if is_mariadb { "utf8mb4_nopad_bin" } else { "utf8mb4_0900_bin" };
    let text = migration.replace("{exact}", collation);
    text.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

/// Does the first migrations whole, and so many statements of the next.
async fn migrate_to(connection: &mut MySqlConnection, whole: usize, statements_of_next: usize) {
    for (number, migration) in MIGRATIONS.iter().enumerate().take(whole + 1) {
        let statements = statements(connection, migration).await;
        let count = if number == whole { statements_of_next } else { statements.len() };
        for statement in &statements[..count] {
            run(connection, statement).await;
        }
        if number < whole {
            let version = number + 1;
            run(connection, &format!("INSERT INTO posthaste_schema VALUES ({version}, UTC_TIMESTAMP(3))"))
                .await;
        }
    }
}

/// Tables with their columns and indexes, and views.
async fn schema(database: &Database) -> Vec<String> {
    let sql =
        "SELECT CONCAT_WS(' ', table_name, column_name, column_type, is_nullable, collation_name) AS line
               FROM information_schema.columns WHERE table_schema = DATABASE()
               UNION ALL
               SELECT CONCAT_WS(' ', table_name, index_name, seq_in_index, column_name, non_unique)
               FROM information_schema.statistics WHERE table_schema = DATABASE()";
    let rows = sqlx::query(sql).fetch_all(&mut database.connect().await).await.expect("asked");
    let mut lines: Vec<String> = rows.iter().map(|row| row.get("line")).collect();
    lines.sort_unstable();
    lines
}

/// Every statement is committed by itself: whoever was killed after any of them, the next one goes on.
#[tokio::test]
async fn a_migration_killed_after_any_statement_is_finished_by_the_next() {
    let whole = Database::new().await;
    whole.open().await.close().await;
    let expected = schema(&whole).await;
    let mut cases = Vec::new();
    for (number, migration) in MIGRATIONS.iter().enumerate() {
        let count = statements(&mut whole.connect().await, migration).await.len();
        let interesting = (1..=count)
            .filter(|&done| count < 5 || [1, 2, 5, count / 2].contains(&done) || done + 2 >= count);
        cases.extend(interesting.map(|done| (number, done)));
    }
    for (number, done) in cases {
        let database = Database::new().await;
        let mut connection = database.connect().await;
        migrate_to(&mut connection, number, done).await;
        let store = database.open().await;
        let company = a_company(&store, "acme").await;
        stored(&store, an_email(company)).await;
        let case = format!("after {done} statements of migration {}", number + 1);
        assert_eq!(versions(&mut connection).await, ALL, "{case}");
        assert_eq!(schema(&database).await, expected, "{case}");
    }
}

/// The connection that migrates is killed at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_killed_in_the_middle_is_finished_by_the_next() {
    let database = Database::new().await;
    for delay_ms in [5, 10, 20, 40, 80, 160] {
        let config = database.config();
        let opening = tokio::spawn(async move { MysqlStore::open(&config).await });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        database.kill_connections().await;
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

/// Takes away what the later migrations brought.
const FIRST_ALONE: [&str; 11] = [
    "ALTER TABLE email_outbox MODIFY COLUMN created_at DATETIME(3) NOT NULL, MODIFY COLUMN updated_at DATETIME(3) NOT NULL,
         MODIFY COLUMN scheduled_at DATETIME(3), MODIFY COLUMN sent_at DATETIME(3), MODIFY COLUMN delivered_at DATETIME(3),
         MODIFY COLUMN failed_at DATETIME(3), MODIFY COLUMN dead_at DATETIME(3), MODIFY COLUMN last_failure_at DATETIME(3)",
    "ALTER TABLE events MODIFY COLUMN created_at DATETIME(3) NOT NULL",
    "DROP TABLE reports, recipient_states, suppressions, address_failures, failure_locks, problems, alerts, templates,
         template_names, day_tallies, entity_tallies, entity_recipients, tally_notes, provider_messages",
    "ALTER TABLE companies DROP COLUMN paused_at, DROP COLUMN pause_reason, DROP COLUMN resumed_at",
    "ALTER TABLE recipients DROP INDEX recipients_by_company",
    "ALTER TABLE email_outbox DROP INDEX outbox_by_request",
    "ALTER TABLE email_outbox DROP INDEX outbox_by_message",
    "ALTER TABLE email_queue DROP INDEX queue_waiting, DROP COLUMN route,
         ADD INDEX queue_waiting (company_id, priority, due_at, email_id)",
    "ALTER TABLE email_outbox DROP COLUMN route, DROP COLUMN series",
    "DROP TABLE provider_notes",
    "DELETE FROM posthaste_schema WHERE version > 1",
];

/// What waits and what is in flight when the program is replaced by a newer one goes on, without a route until it is
/// given one.
#[tokio::test]
async fn emails_of_the_first_schema_are_claimed() {
    let database = Database::new().await;
    let store = database.open().await;
    let company = a_company(&store, "acme").await;
    backlog(&store, company, 20, START).await;
    let in_flight = claim(&store, START, 1).await.remove(0);
    store.close().await;
    let mut connection = database.connect().await;
    for statement in FIRST_ALONE {
        run(&mut connection, statement).await;
    }
    let first = Database::new().await;
    migrate_to(&mut first.connect().await, 1, 0).await;
    assert_eq!(schema(&database).await, schema(&first).await, "this is the first schema");

    let store = database.open().await;
    assert_eq!(versions(&mut connection).await, ALL);
    let worker = a_worker(&store).await;
    let by = |routes| ClaimRequest { routes, ..request(worker, at_secs(1), 100) };
    let claims = store.claim(by(Routes::Except(vec!["relay".into()]))).await.expect("claimed");
    assert_eq!(claims.len(), 19);
    assert!(claims.iter().all(|claim| claim.route.is_empty()));
    let put_back = || Verdict::PutBack { due_at: at_secs(1), route: Some("relay".into()) };
    let mut ids: Vec<EmailId> = Vec::new();
    for claim in claims.iter().chain([&in_flight]) {
        settle(&store, claim.guard, put_back(), at_secs(1)).await;
        ids.push(claim.id());
    }
    let claims = store.claim(by(Routes::Only(vec!["relay".into()]))).await.expect("claimed");
    let mut again: Vec<EmailId> = claims.iter().map(Claim::id).collect();
    ids.sort_unstable();
    again.sort_unstable();
    assert_eq!(again, ids, "all of them wait by their route now");
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_one_line() {
    let database = Database::new().await;
    database.open().await.close().await;
    run(&mut database.connect().await, "INSERT INTO posthaste_schema VALUES (99, UTC_TIMESTAMP(3))").await;
    let Err(error) = MysqlStore::open(&database.config()).await else { panic!("refused") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("schema version 99") && text.contains("newer posthaste"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[tokio::test]
async fn another_programs_tables_are_refused() {
    let database = Database::new().await;
    run(&mut database.connect().await, "CREATE TABLE events (theirs TEXT)").await;
    let Err(error) = MysqlStore::open(&database.config()).await else { panic!("refused") };
    assert!(error.to_string().contains("another program"), "{error}");
    run(&mut database.connect().await, "DROP TABLE events; CREATE TABLE unrelated (theirs TEXT)").await;
    database.open().await.check().await.expect("other tables of theirs do no harm");
}

/// An up-to-date schema opens while somebody reads and writes every table, and holds the migration's lock.
#[tokio::test]
async fn an_up_to_date_schema_opens_beside_work() {
    let database = Database::new().await;
    database.open().await.close().await;
    let mut other = database.connect().await;
    run(&mut other, "DO GET_LOCK(CONCAT('posthaste.', LEFT(SHA2(DATABASE(), 256), 40)), 0)").await;
    run(&mut other, "BEGIN").await;
    run(&mut other, "SELECT COUNT(*) FROM email_outbox, email_queue, companies, posthaste_schema FOR UPDATE")
        .await;
    let opened = tokio::time::timeout(Duration::from_secs(60), MysqlStore::open(&database.config())).await;
    opened.expect("it does not wait").expect("it opens").check().await.expect("and works");
}

#[tokio::test]
async fn what_stands_in_the_way_is_named_without_the_password() {
    let database = Database::new().await;
    let mut url: url::Url = database.url().parse().expect("a URL");
    url.set_password(Some("hunter2")).expect("a URL with a host");
    url.set_path("no_such_database");
    let config = store_mysql::MysqlConfig::parse(url.as_str()).expect("a good URL");
    let Err(error) = MysqlStore::open(&config).await else { panic!("there is no such database") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    url.set_port(Some(1)).expect("a URL with a host");
    let config = store_mysql::MysqlConfig::parse(url.as_str()).expect("a good URL");
    let Err(refused) = MysqlStore::open(&config).await else { panic!("nobody listens there") };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    for error in [error, refused] {
        assert!(error.to_string().contains("no_such_database"), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

/// A mistyped name is not filled with tables, and a newer program changes nothing of what older ones work with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_looks_leaves_the_database_as_it_is() {
    let database = Database::new().await;
    let refused = async || {
        let opened = MysqlStore::open_as_it_is(&database.config()).await;
        let Err(StoreError::Unusable(text)) = opened else { panic!("it was opened") };
        text
    };
    let mut connection = database.connect().await;
    assert!(refused().await.contains("no tables of posthaste"));
    database.open().await.close().await;
    MysqlStore::open_as_it_is(&database.config()).await.expect("it is as it has to be").close().await;
    run(&mut connection, &format!("DELETE FROM posthaste_schema WHERE version = {}", ALL.len())).await;
    assert!(refused().await.contains(&format!("works with {}", ALL.len())));
    assert_eq!(versions(&mut connection).await, ALL[..ALL.len() - 1]);
}
