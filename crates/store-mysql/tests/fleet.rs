//! Several processes on one database: what one of them leaves, another takes over. That no email is claimed twice is a
//! law of every store.

mod support;

use std::collections::BTreeSet;

use model::{Claim, EventKind, Status};
use store::contract::stage::{
    a_company, a_worker, backlog, begun, claim, kinds, lost_leases, read, request, sent, settle,
};
use store::{Outbox, Settled, Upkeep};
use support::fresh;
use testkit::{START, at_secs};

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
