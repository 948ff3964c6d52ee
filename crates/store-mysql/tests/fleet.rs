//! Several processes on one database: what one of them claims no other does, and a company's limits hold over all.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::{Claim, CompanySettings, EventKind, Status, WorkerId};
use store::contract::stage::{
    a_company, a_company_with, a_worker, backlog, begun, claim, kinds, lost_leases, race, read, request,
    sent, settle,
};
use store::{Outbox, Settled, Upkeep};
use store_mysql::MysqlStore;
use support::{Database, fresh};
use testkit::{START, at_millis, at_secs};

const PROCESSES: usize = 4;
const EMAILS: usize = 4_000;
/// A process may find nothing while the others hold what is left; this often in a row is too often.
const EMPTY_HANDS_MAX: usize = 2_000;

async fn fleet(database: &Database) -> Vec<MysqlStore> {
    let mut stores = Vec::new();
    for _ in 0..PROCESSES {
        stores.push(database.open().await);
    }
    stores
}

/// Two workers in each process, over the emails of two companies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_email_is_claimed_twice() {
    let database = Database::new().await;
    let stores = fleet(&database).await;
    let mut waiting = BTreeSet::new();
    for name in ["acme", "other"] {
        let company = a_company(&stores[0], name).await;
        waiting.extend(backlog(&stores[0], company, EMAILS / 2, START).await);
    }
    let taken = AtomicUsize::new(0);
    let hauls = race(2 * PROCESSES, |task| {
        let (store, taken) = (&stores[task % PROCESSES], &taken);
        async move {
            let worker = WorkerId::new(START);
            let mut haul: Vec<Claim> = Vec::new();
            let mut empty_hands = 0;
            while taken.load(Ordering::SeqCst) < EMAILS && empty_hands < EMPTY_HANDS_MAX {
                let claims = store.claim(request(worker, START, 25)).await.expect("a claim is answered");
                empty_hands = if claims.is_empty() { empty_hands + 1 } else { 0 };
                taken.fetch_add(claims.len(), Ordering::SeqCst);
                haul.extend(claims);
            }
            haul
        }
    });
    let claims: Vec<Claim> = hauls.into_iter().flatten().collect();
    let twice: Vec<_> = claims.iter().map(Claim::id).filter(|id| !waiting.remove(id)).collect();
    assert_eq!(twice, [], "claimed twice");
    assert!(waiting.is_empty(), "{} were never claimed", waiting.len());
    assert!(claims.iter().all(|claim| claim.attempt == 1 && claim.content.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_over_all_processes() {
    let database = Database::new().await;
    let stores = fleet(&database).await;
    let narrow = CompanySettings { concurrency_max: Some(5), ..CompanySettings::default() };
    let narrow = a_company_with(&stores[0], "narrow", narrow).await.id;
    let rated = CompanySettings { rate_per_sec: Some(7), ..CompanySettings::default() };
    let rated = a_company_with(&stores[0], "rated", rated).await.id;
    for company in [narrow, rated] {
        backlog(&stores[0], company, 200, START).await;
    }
    for second in 0..3 {
        let now = at_millis(second * 1_010);
        let hauls = race(2 * PROCESSES, |task| {
            let store = &stores[task % PROCESSES];
            async move { claim(store, now, 20).await }
        });
        let of = |company| hauls.iter().flatten().filter(|claim| claim.company == company).count();
        assert_eq!((of(narrow), of(rated)), (if second == 0 { 5 } else { 0 }, 7), "second {second}");
    }
}

/// Workers of one process end what those of another began to lose, once each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leaving_worker_holds_is_taken_over_at_once() {
    let store = fresh().await;
    let other = store.database.open().await;
    let company = a_company(&*store, "acme").await;
    let ids = backlog(&*store, company, 3, START).await;
    let leaving = a_worker(&*store).await;
    let claims = store.claim(request(leaving, START, 2)).await.expect("claimed");
    let staying = claim(&other, START, 1).await;
    store.worker_leaves(leaving).await.expect("it leaves");
    let lost = lost_leases(&other, at_secs(1)).await;
    let left: BTreeSet<_> = lost.iter().map(|lost| lost.guard.id).collect();
    assert_eq!(left, claims.iter().map(Claim::id).collect(), "and not the other's");
    for lost in &lost {
        let requeue = model::Verdict::Requeue { due_at: at_secs(1) };
        let sweep = store::contract::stage::swept(lost, requeue, at_secs(1));
        let (one, two) = tokio::join!(store.settle(sweep.clone()), other.settle(sweep));
        let done = [one, two].into_iter().filter(|settled| matches!(settled, Ok(Settled::Done(_)))).count();
        assert_eq!(done, 1, "one of two sweeps acts");
    }
    let guard = begun(&other, staying[0].guard, at_secs(1)).await;
    assert_eq!(settle(&other, guard, sent(), at_secs(1)).await, Settled::Done(Status::Sent));
    for id in ids {
        let expected = if id == staying[0].id() { Status::Sent } else { Status::Enqueued };
        assert_eq!(read(&*store, company, id).await.status, expected);
        let lost =
            kinds(&*store, company, id).await.iter().filter(|kind| **kind == EventKind::LeaseLost).count();
        assert_eq!(lost, usize::from(expected == Status::Enqueued));
    }
}
