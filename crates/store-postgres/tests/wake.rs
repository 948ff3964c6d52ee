//! Processes hear from each other when emails become due.

mod support;

use std::time::Duration;

use model::{NewEmail, Verdict};
use store::contract::stage::{a_company, attempted, backlog, claim_one, fail, hold, settle, stored};
use store::{DeadLetterFilter, DeadLetters, Outbox, Store};
use store_postgres::PostgresStore;
use support::Database;
use testkit::{START, an_email, at_secs};
use tokio::time::timeout;

/// How long a wake-up may take here; on an idle machine it takes a few milliseconds.
const SOON: Duration = Duration::from_secs(5);
/// How long nothing must come: a few times the pause between notifications.
const A_WHILE: Duration = Duration::from_millis(150);

/// The store that hears, listening already: a notification that comes before the listener is there is not heard.
async fn listening(database: &Database, other: &PostgresStore) -> PostgresStore {
    let store = database.open().await;
    let company = a_company(other, "to-begin-with").await;
    for _ in 0..100 {
        let id = stored(other, an_email(company)).await;
        other.cancel(company, id, START).await.expect("cancelled");
        if timeout(A_WHILE, store.arrival()).await.is_ok() {
            drain(&store).await;
            return store;
        }
    }
    panic!("the listener never comes up");
}

/// Until it is quiet.
async fn drain(store: &PostgresStore) {
    while timeout(A_WHILE, store.arrival()).await.is_ok() {}
}

#[tokio::test]
async fn an_email_accepted_elsewhere_is_heard_of() {
    let database = Database::new().await;
    let other = database.open().await;
    let store = listening(&database, &other).await;
    let company = a_company(&other, "acme").await;
    let (arrived, _) = tokio::join!(timeout(SOON, store.arrival()), stored(&other, an_email(company)));
    arrived.expect("it is heard of");
    drain(&store).await;
    stored(&other, NewEmail { due_at: at_secs(3600), ..an_email(company) }).await;
    assert!(timeout(A_WHILE, store.arrival()).await.is_err(), "what is due later wakes nobody");
}

#[tokio::test]
async fn nothing_is_missed_between_two_waits() {
    let database = Database::new().await;
    let other = database.open().await;
    let store = listening(&database, &other).await;
    let company = a_company(&other, "acme").await;
    stored(&other, an_email(company)).await;
    tokio::time::sleep(A_WHILE).await;
    timeout(SOON, store.arrival()).await.expect("it came while nobody waited");
    drain(&store).await;
    // A wait that is given up does not take a wake-up with it.
    for _ in 0..20 {
        assert!(timeout(Duration::from_millis(1), store.arrival()).await.is_err());
    }
    stored(&other, an_email(company)).await;
    timeout(SOON, store.arrival()).await.expect("the next one is heard");
}

/// However many come within a moment, the last of them is heard of after it was committed.
#[tokio::test]
async fn the_last_of_many_is_not_swallowed() {
    let database = Database::new().await;
    let other = database.open().await;
    let store = listening(&database, &other).await;
    let company = a_company(&other, "acme").await;
    for round in 0..20 {
        let ids = backlog(&other, company, 5, START).await;
        let mut seen = 0;
        while seen < ids.len() {
            timeout(SOON, store.arrival()).await.unwrap_or_else(|_| panic!("round {round}: {seen} of 5"));
            let worker = store::contract::stage::a_worker(&store).await;
            let request = store::contract::stage::request(worker, START, 10);
            seen += store.claim(request).await.expect("a claim").len();
        }
    }
}

#[tokio::test]
async fn whatever_makes_an_email_due_is_heard_of() {
    let database = Database::new().await;
    let other = database.open().await;
    let store = listening(&database, &other).await;
    let company = a_company(&other, "acme").await;

    stored(&other, an_email(company)).await;
    let held = attempted(&other, hold(), START).await.id();
    drain(&store).await;
    other.retry_now(company, held, START).await.expect("retried");
    timeout(SOON, store.arrival()).await.expect("a retry is heard of");

    let claim = claim_one(&other, START).await;
    drain(&store).await;
    settle(&other, claim.guard, Verdict::Release { outcome_unknown: false }, START).await;
    timeout(SOON, store.arrival()).await.expect("a release is heard of");

    attempted(&other, fail("SMTP_REJECTED_550"), START).await;
    drain(&store).await;
    other.replay(company, &DeadLetterFilter::default(), START, 10).await.expect("replayed");
    timeout(SOON, store.arrival()).await.expect("a replay is heard of");
}

#[tokio::test]
async fn the_listener_comes_back() {
    let database = Database::new().await;
    let other = database.open().await;
    let store = listening(&database, &other).await;
    let company = a_company(&other, "acme").await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = $1 AND query LIKE 'LISTEN%'";
    let mut admin = database.admin().await;
    let killed = sqlx::query(kill).bind(&database.name).fetch_all(&mut admin).await.expect("killed");
    assert_eq!(killed.len(), 1, "one connection listens");
    timeout(SOON, store.arrival()).await.expect("something may have been missed: it looks");
    // It pauses for a second before it connects again.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    drain(&store).await;
    stored(&other, an_email(company)).await;
    timeout(SOON, store.arrival()).await.expect("it hears again");
    let _: &dyn Store = &store;
}
