//! The server ends connections at any moment: every call fails as unavailable or succeeds, nothing is lost or half done,
//! and the store works again by itself.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{EventKind, WorkerId};
use sqlx::{AssertSqlSafe, Row as _};
use store::contract::lost_connections::what_was_acknowledged_is_there;
use store::contract::stage::{a_company, backlog, claim, kinds, request, sent, settlement};
use store::{Companies as _, Outbox, Upkeep};
use store_mysql::MysqlStore;
use support::Database;
use testkit::START;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_all_connections_are() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    what_was_acknowledged_is_there(store.clone(), async || database.kill_connections().await).await;
    assert_is_whole(&database).await;
    work_goes_on(&store).await;
}

/// Every table tells the same story.
async fn assert_is_whole(database: &Database) {
    let mut connection = database.connect().await;
    for (what, sql) in [
        (
            "an email without its content or history",
            "SELECT COUNT(*) AS wrong FROM email_outbox o
             WHERE NOT EXISTS (SELECT 1 FROM contents c WHERE c.email_id = o.id)
                OR NOT EXISTS (SELECT 1 FROM events e WHERE e.email_id = o.id)",
        ),
        (
            "content, history or a line of the queue without its email",
            "SELECT COUNT(*) AS wrong FROM
             (SELECT email_id FROM contents UNION SELECT email_id FROM events UNION SELECT email_id FROM email_queue) x
             WHERE NOT EXISTS (SELECT 1 FROM email_outbox o WHERE o.id = x.email_id)",
        ),
        (
            "a line of the queue that does not fit its email",
            "SELECT COUNT(*) AS wrong FROM email_outbox o LEFT JOIN email_queue q ON q.email_id = o.id
             WHERE (q.email_id IS NOT NULL) <> (o.status IN ('ENQUEUED', 'PROCESSING'))
                OR (q.due_at IS NULL) <> (o.status <> 'ENQUEUED')
                OR (q.lease_until IS NULL) <> (o.status <> 'PROCESSING')",
        ),
        (
            "a count that is wrong",
            "SELECT COUNT(*) AS wrong FROM (SELECT DISTINCT status FROM status_counts) s
             WHERE (SELECT SUM(emails) FROM status_counts c WHERE c.status = s.status)
                   <> (SELECT COUNT(*) FROM email_outbox o WHERE o.status = s.status)",
        ),
    ] {
        let row = sqlx::query(sql).fetch_one(&mut connection).await.expect("asked");
        assert_eq!(row.get::<i64, _>("wrong"), 0, "{what}");
    }
}

async fn work_goes_on(store: &MysqlStore) {
    let company = a_company(store, "afterwards").await;
    let ids = backlog(store, company, 5, START).await;
    store.check().await.expect("it is fit for work");
    for id in ids {
        assert_eq!(kinds(store, company, id).await, [EventKind::Enqueued]);
    }
}

/// After a quiet night in which the server was restarted, the first call of each kind works.
#[tokio::test]
async fn idle_connections_that_were_lost_are_not_used() {
    let database = Database::new().await;
    let store = database.open().await;
    let company = a_company(&store, "acme").await;
    for _ in 0..3 {
        backlog(&store, company, 2, START).await;
        for claim in claim(&store, START, 10).await {
            let guard = store::contract::stage::begun(&store, claim.guard, START).await;
            store.settle(settlement(guard, sent(), START)).await.expect("settled");
        }
        store.companies().await.expect("read");
        database.kill_connections().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// A caller that goes away leaves no email leased to nobody, and no transaction open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_nothing_open() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    let company = a_company(&*store, "acme").await;
    let held: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    for round in 0_u64..60 {
        let (store, held) = (Arc::clone(&store), Arc::clone(&held));
        let calling = tokio::spawn(async move {
            let ids = backlog(&*store, company, 1, START).await;
            let worker = WorkerId::new(START);
            if let Ok(claims) = store.claim(request(worker, START, 10)).await {
                held.lock().expect("no panic").extend(claims.iter().map(|claim| claim.id().to_string()));
            }
            let _ = store.cancel(company, ids[0], START).await;
        });
        tokio::time::sleep(Duration::from_micros(round * 150)).await;
        calling.abort();
    }
    assert_none_stays_open(&database).await;
    assert_is_whole_but_for_cancelled(&database).await;
    let held = held.lock().expect("no panic").clone();
    assert_leased_to_those_who_know(&database, &held).await;
    work_goes_on(&store).await;
}

/// What the callers began goes on without them and ends by itself, but nothing stands still in a transaction. (The server
/// ends that after 5 s, so it is not enough that there is none in the end.)
async fn assert_none_stays_open(database: &Database) {
    // The server looks anew only when nobody has asked for a tenth of a second.
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let mut admin = database.admin().await;
    let (connections, id, name, command) = if support::is_mariadb(&mut admin).await {
        ("information_schema.processlist", "id", "db", "command")
    } else {
        ("performance_schema.threads", "processlist_id", "processlist_db", "processlist_command")
    };
    let open = format!(
        "SELECT CONCAT_WS(' ', trx_mysql_thread_id, trx_id, trx_started, trx_rows_locked, trx_rows_modified) AS open,
                {command} = 'Sleep' AS is_idle
         FROM information_schema.innodb_trx JOIN {connections} ON {id} = trx_mysql_thread_id WHERE {name} = ?"
    );
    let (mut idle, mut looks_without) = (BTreeMap::new(), 0);
    let begun = Instant::now();
    while looks_without < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is always a transaction");
        tokio::time::sleep(LOOK_EVERY).await;
        let asked = sqlx::query(AssertSqlSafe(open.as_str())).bind(&database.name);
        let rows = asked.fetch_all(&mut admin).await.expect("asked");
        looks_without = if rows.is_empty() { looks_without + 1 } else { 0 };
        let is_idle = rows.iter().filter(|row| row.get("is_idle")).map(|row| row.get("open"));
        let again = |seen: String| {
            let looks: u32 = idle.get(&seen).copied().unwrap_or_default();
            (seen, looks + 1)
        };
        idle = is_idle.map(again).collect();
        assert!(idle.values().all(|&looks| looks < 10), "left open: {idle:?}");
    }
}

async fn assert_is_whole_but_for_cancelled(database: &Database) {
    let sql = "SELECT COUNT(*) AS wrong FROM email_outbox o LEFT JOIN email_queue q ON q.email_id = o.id
               WHERE (q.email_id IS NULL) <> (o.status = 'CANCELLED')";
    let row = sqlx::query(sql).fetch_one(&mut database.connect().await).await.expect("asked");
    assert_eq!(row.get::<i64, _>("wrong"), 0);
}

/// Whoever got the email from a claim still has it; nobody else's is leased.
async fn assert_leased_to_those_who_know(database: &Database, held: &BTreeSet<String>) {
    let sql = "SELECT id AS id FROM email_outbox WHERE status = 'PROCESSING'";
    let mut connection = database.connect().await;
    let mut leased = BTreeSet::new();
    for _ in 0..200 {
        let rows = sqlx::query(sql).fetch_all(&mut connection).await.expect("asked");
        leased = rows.iter().map(|row| row.get::<String, _>("id")).collect();
        if leased.is_subset(held) {
            return;
        }
        // The last ones may be on their way back.
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("leased to nobody: {:?}", leased.difference(held).collect::<Vec<_>>());
}
