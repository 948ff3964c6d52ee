//! The server ends connections at any moment: every call fails as unavailable or succeeds, nothing is lost or half done,
//! and the store works again by itself.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{Claim, EmailId, EventKind, Status, WorkerId};
use sqlx::{AssertSqlSafe, Row as _};
use store::contract::stage::{
    a_company, acceptance, backlog, claim, kinds, read, request, sent, settlement, start,
};
use store::{Accepted, Begun, Companies as _, Lookup as _, Outbox, Settled, StoreError, Upkeep};
use store_mysql::MysqlStore;
use support::Database;
use testkit::{START, an_email};

const CALLERS: usize = 16;
const KILLS: u32 = 20;
const KILL_EVERY: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longer than it takes anywhere; only a fault waits for it.
const TIME_MAX: Duration = Duration::from_secs(90);

fn temporary<T>(answer: Result<T, StoreError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(matches!(error, StoreError::Unavailable(_) | StoreError::InDoubt(_)), "{error:?}");
            None
        }
    }
}

/// How far the callers have come.
#[derive(Debug, Default)]
struct Progress {
    stop: AtomicBool,
    acknowledged: AtomicUsize,
    ended: AtomicUsize,
}

impl Progress {
    fn so_far(&self) -> (usize, usize) {
        (self.acknowledged.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed))
    }

    fn is_enough(&self) -> bool {
        let (acknowledged, ended) = self.so_far();
        acknowledged > 100 && ended > 10
    }

    /// Something is acknowledged between two kills, and where there have been many, something is sent too.
    fn has_gone_on(&self, before: (usize, usize), kills: u32) -> bool {
        let (acknowledged, ended) = self.so_far();
        acknowledged > before.0 && (kills < KILLS || ended > before.1)
    }
}

/// Hands in emails until told to stop; gives back those that were acknowledged.
async fn hand_in(store: Arc<MysqlStore>, company: model::CompanyId, progress: Arc<Progress>) -> Vec<EmailId> {
    let mut acknowledged = Vec::new();
    while !progress.stop.load(Ordering::Relaxed) {
        let email = an_email(company);
        let id = email.id;
        if let Some(accepted) = temporary(store.accept(acceptance(vec![email], START)).await) {
            assert_eq!(accepted, Accepted::Stored);
            acknowledged.push(id);
            progress.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
    acknowledged
}

/// Claims and sends until told to stop; gives back those whose end was acknowledged.
async fn send(store: Arc<MysqlStore>, progress: Arc<Progress>) -> Vec<EmailId> {
    let worker = WorkerId::new(START);
    let mut ended = Vec::new();
    while !progress.stop.load(Ordering::Relaxed) {
        let claims = temporary(store.claim(request(worker, START, 16)).await).unwrap_or_default();
        for Claim { guard, .. } in claims {
            if let Some(Begun::Yes(guard)) = temporary(store.begin(start(guard, START)).await)
                && let Some(Settled::Done(_)) =
                    temporary(store.settle(settlement(guard, sent(), START)).await)
            {
                ended.push(guard.id);
                progress.ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_all_connections_are() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    let company = a_company(&*store, "acme").await;
    let progress = Arc::<Progress>::default();
    let handing_in: Vec<_> = (0..CALLERS)
        .map(|_| tokio::spawn(hand_in(Arc::clone(&store), company, Arc::clone(&progress))))
        .collect();
    let sending: Vec<_> =
        (0..4).map(|_| tokio::spawn(send(Arc::clone(&store), Arc::clone(&progress)))).collect();
    let (begun, mut kills) = (Instant::now(), 0);
    while kills < KILLS || !progress.is_enough() {
        let before = progress.so_far();
        tokio::time::sleep(KILL_EVERY).await;
        while !progress.has_gone_on(before, kills) {
            assert!(begun.elapsed() < TIME_MAX, "{kills} kills, {progress:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        database.kill_connections().await;
        kills += 1;
    }
    tokio::time::sleep(KILL_EVERY * 3).await;
    progress.stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for task in handing_in {
        acknowledged.extend(task.await.expect("a caller ends well"));
    }
    let mut ended = BTreeSet::new();
    for task in sending {
        ended.extend(task.await.expect("a worker ends well"));
    }
    assert!(acknowledged.len() > 100 && ended.len() > 10, "{} and {}", acknowledged.len(), ended.len());
    for &id in &acknowledged {
        let email = read(&*store, company, id).await;
        assert!(!ended.contains(&id) || email.status == Status::Sent, "{id}: {}", email.status);
        assert!(store.content(company, id).await.expect("read").is_some(), "{id} has its content");
    }
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
