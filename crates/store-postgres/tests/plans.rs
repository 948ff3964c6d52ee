//! What is asked for so many rows gets no more, however the server goes about it. Where its statistics know of a single
//! row it may choose the rows anew for each row of the table, and others each time.

mod support;

use std::time::Duration;

use model::{CompanyId, Status};
use store::contract::stage::{a_company, a_key, acceptance, claim, in_status};
use store::{Acceptance, DeadLetterFilter, DeadLetters as _, Outbox as _, Pruned, Retention, Upkeep as _};
use support::{Fixture, fresh, run};
use testkit::{START, an_email_at, at_secs};

const DAY: Duration = Duration::from_secs(24 * 3600);

const RETENTION: Retention = Retention { content: DAY, emails: DAY.saturating_mul(400), dead_letters: DAY };

/// The server counts what is there now, as it does by itself from time to time.
async fn counted(store: &Fixture) {
    run(&mut store.database.connect().await, "ANALYZE").await;
}

/// Five dead letters, of which the server knows one.
async fn five_dead_letters(store: &Fixture) -> CompanyId {
    let company = a_company(&**store, "acme").await;
    for number in 0..5 {
        in_status(&**store, company, Status::Failed, START).await;
        if number == 0 {
            counted(store).await;
        }
    }
    company
}

/// How many went in each of three steps of two.
async fn pruned_by_two(store: &Fixture, of: fn(&Pruned) -> u64) -> Vec<u64> {
    let mut counts = Vec::new();
    for _ in 0..3 {
        let pruned = store.prune(&RETENTION, START.plus(2 * DAY), 2).await.expect("pruned");
        counts.push(of(&pruned));
    }
    counts
}

#[tokio::test]
async fn a_replay_keeps_to_its_limit() {
    let store = fresh().await;
    let company = five_dead_letters(&store).await;
    let any = DeadLetterFilter::default();
    for expected in [2, 2, 1] {
        let count = store.replay(company, &any, at_secs(1), 2).await.expect("replayed");
        assert_eq!(count.replayed, expected);
    }
}

#[tokio::test]
async fn dead_letters_end_a_few_at_a_time() {
    let store = fresh().await;
    five_dead_letters(&store).await;
    assert_eq!(pruned_by_two(&store, |pruned| pruned.dead_letters).await, [2, 2, 1]);
}

#[tokio::test]
async fn keys_go_a_few_at_a_time() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    for number in 0..5 {
        let key = format!("key-{number}");
        let emails = acceptance(vec![an_email_at(company, START)], START);
        let keyed = Acceptance { key: Some(a_key(&key, 1, &key, START)), ..emails };
        store.accept(keyed).await.expect("accepted");
        if number == 0 {
            counted(&store).await;
        }
    }
    assert_eq!(pruned_by_two(&store, |pruned| pruned.idempotency_keys).await, [2, 2, 1]);
}

#[tokio::test]
async fn a_claim_and_an_expiry_keep_to_their_limit() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    for number in 0..5 {
        store.accept(acceptance(vec![an_email_at(company, START)], START)).await.expect("accepted");
        if number == 0 {
            counted(&store).await;
        }
    }
    assert_eq!(claim(&*store, START, 2).await.len(), 2);
    assert_eq!(store.expire(START.plus(30 * DAY), 2).await.expect("expired"), 2);
    assert_eq!(store.expire(START.plus(30 * DAY), 2).await.expect("expired"), 1);
}
