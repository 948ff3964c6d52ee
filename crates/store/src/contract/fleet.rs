//! Laws of several processes on one database: what one of them claims no other does, a company's limits hold over all, and
//! so do the keys of requests. A process gives its own claims one after the other, so that a race within one would prove
//! nothing about the database.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::{Claim, CompanySettings, NewEmail, Timestamp};
use testkit::{START, a_recipient, an_email_at, at_millis};

use super::stage::{
    DAY, a_company, a_company_with, a_key, a_worker, acceptance, backlog, claim, listed_ids, race, request,
};
use crate::{Acceptance, Accepted, EmailFilter, Store};

/// How many instances of the store a law is given.
pub const PROCESSES: usize = 4;
const WORKERS: usize = 2 * PROCESSES;
const RACED: usize = 10_000;
/// A process may find nothing while others hold what is left; this often in a row is too often.
const EMPTY_HANDS_MAX: usize = 10_000;

/// Eight workers in four processes, over 10,000 emails of two companies: each email goes to exactly one of them.
pub async fn no_email_is_claimed_twice(stores: &[&dyn Store]) {
    let mut waiting = BTreeSet::new();
    for name in ["acme", "other"] {
        let company = a_company(stores[0], name).await;
        waiting.extend(backlog(stores[0], company, RACED / 2, START).await);
    }
    let taken = AtomicUsize::new(0);
    let hauls = race(WORKERS, |task| {
        let (store, taken) = (stores[task % stores.len()], &taken);
        async move {
            let worker = a_worker(store).await;
            let mut haul: Vec<Claim> = Vec::new();
            let mut empty_hands = 0;
            while taken.load(Ordering::SeqCst) < RACED && empty_hands < EMPTY_HANDS_MAX {
                let claims = store.claim(request(worker, START, 25)).await.expect("a claim is answered");
                empty_hands = if claims.is_empty() { empty_hands + 1 } else { 0 };
                taken.fetch_add(claims.len(), Ordering::SeqCst);
                haul.extend(claims);
                tokio::task::yield_now().await;
            }
            haul
        }
    });
    let with_a_haul = hauls.iter().filter(|haul| !haul.is_empty()).count();
    assert!(with_a_haul > 1, "one worker had it all: there was no race");
    let claims: Vec<Claim> = hauls.into_iter().flatten().collect();
    let twice: Vec<_> = claims.iter().map(Claim::id).filter(|id| !waiting.remove(id)).collect();
    assert!(twice.is_empty(), "{} were claimed twice, the first of them {}", twice.len(), twice[0]);
    assert!(waiting.is_empty(), "{} were never claimed", waiting.len());
    assert!(claims.iter().all(|claim| claim.attempt == 1 && claim.content.is_some()));
}

/// So many at once, and so many per second, whoever claims them.
pub async fn limits_hold_over_all(stores: &[&dyn Store]) {
    let narrow = CompanySettings { concurrency_max: Some(5), ..CompanySettings::default() };
    let narrow = a_company_with(stores[0], "narrow", narrow).await.id;
    let rated = CompanySettings { rate_per_sec: Some(7), ..CompanySettings::default() };
    let rated = a_company_with(stores[0], "rated", rated).await.id;
    for company in [narrow, rated] {
        backlog(stores[0], company, 200, START).await;
    }
    for second in 0..3 {
        let now = at_millis(second * 1_010);
        let hauls = race(WORKERS, |task| claim(stores[task % stores.len()], now, 4));
        let of = |company| hauls.iter().flatten().filter(|claim| claim.company == company).count();
        assert_eq!((of(narrow), of(rated)), (if second == 0 { 5 } else { 0 }, 7), "second {second}");
    }
}

/// Every process hands in the same requests, by themselves and some at a time: each makes one email, and all hear what its
/// winner was told. Once more when the keys' time is over.
pub async fn a_key_is_used_once_by_all(stores: &[&dyn Store]) {
    const KEYS: usize = 40;
    let company = a_company(stores[0], "acme").await;
    let send = async |task: usize, key: usize, now: Timestamp| {
        // Every other request makes somebody known as well.
        let recipient = key.is_multiple_of(2).then(|| a_recipient(&format!("person-{key}")));
        let email = NewEmail { recipient, ..an_email_at(company, now) };
        let key = Some(a_key(&format!("k{key}"), 1, &task.to_string(), now));
        let accepted = stores[task].accept(Acceptance { key, ..acceptance(vec![email], now) });
        accepted.await.expect("a request is answered")
    };
    for round in 0..2 {
        let now = START.plus(DAY * 2 * round);
        let answers = race(PROCESSES, |task| {
            let send = &send;
            async move {
                let mut answers = Vec::new();
                for key in (0..KEYS).step_by(4) {
                    let send = |next| send(task, key + next, now);
                    answers.push(send(0).await);
                    let (one, two, three) = tokio::join!(send(1), send(2), send(3));
                    answers.extend([one, two, three]);
                }
                answers
            }
        });
        for key in 0..KEYS {
            let answers: Vec<&Accepted> = answers.iter().map(|answers| &answers[key]).collect();
            let winners: Vec<usize> =
                (0..PROCESSES).filter(|task| *answers[*task] == Accepted::Stored).collect();
            assert_eq!(winners.len(), 1, "round {round}, key {key}: {answers:?}");
            let replayed = Accepted::Replayed { answer: winners[0].to_string() };
            let agree =
                (0..PROCESSES).filter(|task| *task != winners[0]).all(|task| *answers[task] == replayed);
            assert!(agree, "round {round}, key {key}: {answers:?}");
        }
        let stored = listed_ids(stores[0], company, &EmailFilter::default()).await.len();
        assert_eq!(stored, KEYS * (round as usize + 1));
    }
}
