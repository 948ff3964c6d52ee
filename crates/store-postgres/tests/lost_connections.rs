//! The server ends connections at any moment: every call fails as unavailable or succeeds, nothing is lost or half done,
//! and the store works again by itself.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{EventKind, Status, WorkerId};
use sqlx::Row as _;
use store::contract::lost_connections::what_was_acknowledged_is_there;
use store::contract::stage::{a_company, a_worker, backlog, claim, kinds, read, request, sent, settlement};
use store::{Companies as _, Outbox, StoreError, Upkeep};
use store_postgres::PostgresStore;
use support::{Database, run};
use testkit::START;

async fn kill_all(database: &Database) {
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = $1 AND application_name = 'posthaste'";
    sqlx::query(kill).bind(&database.name).fetch_all(&mut database.admin().await).await.expect("killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_all_connections_are() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    what_was_acknowledged_is_there(store.clone(), async || kill_all(&database).await).await;
    assert_is_whole(&database).await;
    work_goes_on(&store).await;
}

/// Every table tells the same story.
async fn assert_is_whole(database: &Database) {
    let mut connection = database.connect().await;
    for (what, sql) in [
        (
            "an email without its content or history, or the other way round",
            "SELECT count(*) FROM email_outbox o
             FULL JOIN contents c ON c.email_id = o.id
             FULL JOIN (SELECT DISTINCT email_id FROM events) e ON e.email_id = coalesce(o.id, c.email_id)
             WHERE o.id IS NULL OR c.email_id IS NULL OR e.email_id IS NULL",
        ),
        (
            "a line of the queue that does not fit its email",
            "SELECT count(*) FROM email_outbox o FULL JOIN email_queue q ON q.email_id = o.id
             WHERE o.id IS NULL OR (q.email_id IS NOT NULL) <> (o.status IN ('ENQUEUED', 'PROCESSING'))
                OR (q.due_at IS NULL) <> (o.status <> 'ENQUEUED') OR q.fence <> o.fence",
        ),
        (
            "a count that is wrong",
            "SELECT count(*) FROM (SELECT status, count(*) AS emails FROM email_outbox GROUP BY status) AS counted
             FULL JOIN (SELECT status, sum(emails) AS emails FROM status_counts GROUP BY status) AS kept
                 USING (status)
             WHERE coalesce(counted.emails, 0) <> coalesce(kept.emails, 0)",
        ),
        (
            "a wrong number of dead letters",
            "SELECT count(*) - (SELECT coalesce(sum(emails), 0) FROM dead_letter_counts)::bigint
             FROM email_outbox WHERE dead_at IS NOT NULL",
        ),
    ] {
        let row = sqlx::query(sql).fetch_one(&mut connection).await.expect("asked");
        assert_eq!(row.get::<i64, _>(0), 0, "{what}");
    }
}

async fn work_goes_on(store: &PostgresStore) {
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
        kill_all(&database).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// A claim whose content cannot be read just now: the emails are put back as if nobody had claimed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_its_content_is_put_back() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    let company = a_company(&*store, "acme").await;
    let ids = backlog(&*store, company, 3, START).await;
    let mut other = database.connect().await;
    run(&mut other, "BEGIN").await;
    run(&mut other, "LOCK TABLE contents IN ACCESS EXCLUSIVE MODE").await;
    let worker = a_worker(&*store).await;
    let claiming = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.claim(request(worker, START, 10)).await }
    });
    let waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = $1 AND wait_event_type = 'Lock' AND query LIKE '%contents%'";
    // Not on the connection that holds the lock: within a transaction it would see the same picture again and again.
    let mut admin = database.admin().await;
    let begun = Instant::now();
    while sqlx::query(waiting).bind(&database.name).fetch_all(&mut admin).await.expect("asked").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the claim never came to the contents");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = claiming.await.expect("no panic").expect_err("the contents cannot be read");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    run(&mut other, "COMMIT").await;
    let due_at = START.plus(Duration::from_secs(1));
    for &id in &ids {
        let email = read(&*store, company, id).await;
        assert_eq!((email.status, email.attempts, email.due_at), (Status::Enqueued, 0, Some(due_at)));
    }
    assert!(claim(&*store, START, 10).await.is_empty(), "they wait a moment");
    let claims = claim(&*store, due_at, 10).await;
    assert_eq!(claims.len(), ids.len(), "they are claimed when the moment is over");
    assert!(claims.iter().all(|claim| claim.content.is_some() && claim.unfinished_starts == 0));
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
    let open = "SELECT concat_ws(' ', pid, xact_start, state_change) AS transaction,
                       state LIKE 'idle in transaction%' AS is_idle
                FROM pg_stat_activity
                WHERE datname = $1 AND backend_type = 'client backend' AND xact_start IS NOT NULL";
    let mut admin = database.admin().await;
    let (mut idle, mut looks_without) = (BTreeMap::new(), 0);
    let begun = Instant::now();
    while looks_without < 10 {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is always a transaction");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let rows = sqlx::query(open).bind(&database.name).fetch_all(&mut admin).await.expect("asked");
        looks_without = if rows.is_empty() { looks_without + 1 } else { 0 };
        let is_idle = rows.iter().filter(|row| row.get("is_idle")).map(|row| row.get("transaction"));
        let again = |seen: String| {
            let looks: u32 = idle.get(&seen).copied().unwrap_or_default();
            (seen, looks + 1)
        };
        idle = is_idle.map(again).collect();
        assert!(idle.values().all(|&looks| looks < 20), "left open: {idle:?}");
    }
}

async fn assert_is_whole_but_for_cancelled(database: &Database) {
    let sql = "SELECT count(*) FROM email_outbox o FULL JOIN email_queue q ON q.email_id = o.id
               WHERE o.id IS NULL OR (q.email_id IS NULL) <> (o.status = 'CANCELLED')";
    let row = sqlx::query(sql).fetch_one(&mut database.connect().await).await.expect("asked");
    assert_eq!(row.get::<i64, _>(0), 0);
}

/// Whoever got the email from a claim still has it; nobody else's is leased.
async fn assert_leased_to_those_who_know(database: &Database, held: &BTreeSet<String>) {
    let sql = "SELECT id::text AS id FROM email_outbox WHERE status = 'PROCESSING'";
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
