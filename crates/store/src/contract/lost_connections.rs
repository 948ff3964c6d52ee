//! A store whose server ends its connections again and again: what was acknowledged is there. Not among the laws of
//! [`store_contract!`](crate::store_contract), since a store without a server has no connections to lose.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::{Claim, CompanyId, EmailId, Status, WorkerId};
use testkit::{START, an_email};

use super::stage::{a_company, acceptance, read, request, sent, settlement, start};
use crate::{Accepted, Begun, Settled, Store, StoreError};

const CALLERS: usize = 16;
const WORKERS: usize = 4;
const KILLS: u32 = 20;
const KILL_EVERY: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longer than it takes anywhere; only a fault waits for it.
const TIME_MAX: Duration = Duration::from_secs(90);

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

/// Hands in and sends while `kill` ends all connections, many times over.
pub async fn what_was_acknowledged_is_there(store: Arc<dyn Store>, kill: impl AsyncFn()) {
    let company = a_company(&*store, "acme").await;
    let progress = Arc::<Progress>::default();
    let handing_in: Vec<_> = (0..CALLERS)
        .map(|_| tokio::spawn(hand_in(Arc::clone(&store), company, Arc::clone(&progress))))
        .collect();
    let sending: Vec<_> =
        (0..WORKERS).map(|_| tokio::spawn(send(Arc::clone(&store), Arc::clone(&progress)))).collect();
    let (begun, mut kills) = (Instant::now(), 0);
    while kills < KILLS || !progress.is_enough() {
        let before = progress.so_far();
        tokio::time::sleep(KILL_EVERY).await;
        while !progress.has_gone_on(before, kills) {
            assert!(begun.elapsed() < TIME_MAX, "{kills} kills, {progress:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        kill().await;
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
    for &id in &acknowledged {
        let email = read(&*store, company, id).await;
        assert!(!ended.contains(&id) || email.status == Status::Sent, "{id}: {}", email.status);
        assert!(store.content(company, id).await.expect("read").is_some(), "{id} has its content");
    }
}

/// Hands in emails until told to stop; gives back those that were acknowledged.
async fn hand_in(store: Arc<dyn Store>, company: CompanyId, progress: Arc<Progress>) -> Vec<EmailId> {
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
async fn send(store: Arc<dyn Store>, progress: Arc<Progress>) -> Vec<EmailId> {
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

fn temporary<T>(answer: Result<T, StoreError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(matches!(error, StoreError::Unavailable(_) | StoreError::InDoubt(_)), "{error:?}");
            None
        }
    }
}
