//! The worker's own duties on the real store: shutdown, suspects.

use futures_util::FutureExt;
use model::email::Outgoing;
use model::{EventKind, Status};
use tokio::sync::Semaphore;

use super::*;
use crate::sweep::sweep_once;
use crate::testing::{FakeProvider, Stage, taken};

/// A provider that tells when it is called and answers when it is let.
fn gated() -> (FakeProvider, Arc<Semaphore>, Arc<Semaphore>) {
    let (called, may_answer) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (calls, gate) = (called.clone(), may_answer.clone());
    let behaviour = move |_: Outgoing| {
        let (calls, gate) = (calls.clone(), gate.clone());
        async move {
            calls.add_permits(1);
            gate.acquire().await.expect("the gate stays").forget();
            taken()
        }
        .boxed()
    };
    (FakeProvider::new(behaviour), called, may_answer)
}

async fn take(semaphore: &Semaphore) {
    semaphore.acquire().await.expect("it stays").forget();
}

#[tokio::test]
async fn a_worker_sends_what_is_offered_and_ends_what_it_began() {
    let (provider, called, may_answer) = gated();
    let stage = Stage::with(provider).await;
    let shutdown = CancellationToken::new();
    let worker = tokio::spawn(Worker::run(stage.gateway.clone(), shutdown.clone()));
    let id = stage.accept_one().await;
    stage.gateway.queue.offer(&[(id, stage.gateway.clock.now())]).await.expect("the store works");
    take(&called).await;
    shutdown.cancel();
    may_answer.add_permits(1);
    worker.await.expect("the worker does not panic");
    assert_eq!(stage.status(id).await, Status::Sent);
}

#[tokio::test]
async fn what_has_not_begun_at_shutdown_is_given_back_without_losing_an_attempt() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    let mut worker = Worker::new(stage.gateway.clone());
    let claims = worker.claim(store::Routes::All, 8).await.expect("the store works");
    // The shutdown comes between the claim and the start.
    worker.bench.stop.cancel();
    worker.start(claims).await.expect("the store works");
    worker.wind_down().await;
    let email = stage.email(id).await;
    assert_eq!((email.status, email.attempts), (Status::Enqueued, 0));
    assert_eq!(stage.kinds(id).await.last(), Some(&EventKind::Released));
    assert!(stage.provider.handed().is_empty());
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert_eq!(stage.status(id).await, Status::Sent);
}

#[tokio::test]
async fn what_is_at_the_provider_when_the_grace_ends_is_given_back_marked() {
    let (provider, called, _closed) = gated();
    let stage = Stage::with(provider).await;
    let id = stage.accept_one().await;
    let mut worker = Worker::new(stage.gateway.clone());
    let claims = worker.claim(store::Routes::All, 8).await.expect("the store works");
    worker.start(claims).await.expect("the store works");
    take(&called).await;
    worker.tasks.abort_all();
    for flight in worker.flights.all() {
        last_settlement(&worker.bench, &flight).await;
    }
    let email = stage.email(id).await;
    assert_eq!((email.status, email.attempts, email.outcome_unknown), (Status::Enqueued, 0, true));
    let kinds = stage.kinds(id).await;
    assert_eq!(kinds[kinds.len() - 2..], [EventKind::OutcomeUnknown, EventKind::Released]);
}

#[tokio::test]
async fn leases_in_flight_are_renewed() {
    let (provider, called, may_answer) = gated();
    let stage = Stage::with(provider).await;
    let id = stage.accept_one().await;
    let mut worker = Worker::new(stage.gateway.clone());
    let claims = worker.claim(store::Routes::All, 8).await.expect("the store works");
    worker.start(claims).await.expect("the store works");
    take(&called).await;
    for _ in 0..4 {
        stage.pass(Duration::from_secs(30));
        renew(&stage.gateway, worker.id, &worker.flights).await.expect("the store works");
        assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(0));
    }
    may_answer.add_permits(1);
    worker.wind_down().await;
    assert_eq!(stage.status(id).await, Status::Sent);
}

#[tokio::test]
async fn a_worker_claims_no_more_than_it_has_room_for() {
    let (provider, called, may_answer) = gated();
    let stage = Stage::with(provider).await;
    for _ in 0..10 {
        stage.accept_one().await;
    }
    let shutdown = CancellationToken::new();
    let mut worker = Worker::new(stage.gateway.clone());
    worker.fill_slots(&shutdown).await;
    // A quarter is kept for other routes.
    assert_eq!((worker.tasks.len(), worker.room()), (6, 2));
    for _ in 0..6 {
        take(&called).await;
    }
    may_answer.add_permits(10);
    for _ in 0..10 {
        worker.wait(&shutdown).await;
        worker.fill_slots(&shutdown).await;
        assert!(worker.tasks.len() <= 8);
    }
    worker.wind_down().await;
    assert_eq!(stage.provider.handed().len(), 10);
}

#[tokio::test]
async fn suspects_run_one_at_a_time_and_stay_suspects() {
    let (provider, called, may_answer) = gated();
    let stage = Stage::with(provider).await;
    let ids = [stage.accept_one().await, stage.accept_one().await];
    for _ in 0..2 {
        for _ in ids {
            stage.claim_and_vanish().await;
        }
        stage.pass(Duration::from_secs(46));
        assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(2));
    }
    let shutdown = CancellationToken::new();
    let mut worker = Worker::new(stage.gateway.clone());
    worker.fill_slots(&shutdown).await;
    take(&called).await;
    while worker.tasks.len() > 1 {
        let ended = worker.tasks.join_next().await.expect("one is given back");
        worker.ended(ended);
    }
    let handed = stage.provider.handed();
    let [waiting] = ids.iter().filter(|id| !handed.contains(id)).collect::<Vec<_>>()[..] else {
        panic!("one of two was handed over: {handed:?}");
    };
    let email = stage.email(*waiting).await;
    assert_eq!((email.status, email.attempts), (Status::Enqueued, 2), "no attempt is lost");
    assert!(worker.room() > 0, "a suspect holds up nobody else");
    may_answer.add_permits(2);
    while let Some(ended) = worker.tasks.join_next().await {
        worker.ended(ended);
    }
    stage.pass(Duration::from_secs(1));
    let next = stage.claim_and_vanish().await;
    assert!(next.id() == *waiting && crate::caution::is_suspect(&next));
}
