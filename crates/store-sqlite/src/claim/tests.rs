//! What a claim does is no more beside a hundred thousand waiting emails than beside a thousand: SQLite counts the
//! steps of every statement. A walk along the backlog, or a sort of it, would be steps by the thousand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{CompanyId, NewEmail, Timestamp};
use store::contract::stage::{a_company, a_worker, acceptance, request};
use store::{Outbox as _, Routes, Upkeep as _};
use testkit::{START, an_email_at, at_secs};

use super::*;
use crate::SqliteStore;

const SMALL: usize = 1_000;
const LARGE: usize = 100_000;
const COMPANIES: usize = 10;
/// Claims of each kind.
const CLAIMS: u64 = 20;
/// What a claim does differs with whose turn it is, by much less than this. It is also less than one step for each email
/// of the smaller backlog, so that neither of them can have been walked along.
const SLACK_PER_CLAIM: u64 = 500;

/// A store that counts the steps it makes, and the companies that use it.
struct Stage {
    store: SqliteStore,
    companies: Vec<CompanyId>,
    steps: Arc<AtomicU64>,
}

impl Stage {
    async fn new() -> Self {
        let store = SqliteStore::in_memory().await.expect("a new store opens");
        let mut companies = Vec::new();
        for number in 0..COMPANIES {
            companies.push(a_company(&store, &format!("company-{number}")).await);
        }
        Self { store, companies, steps: Arc::default() }
    }

    async fn waits(&self, company: CompanyId, route: &str, count: usize, due_at: Timestamp) {
        let email = |_| NewEmail { route: route.into(), due_at, ..an_email_at(company, START) };
        let emails: Vec<NewEmail> = (0..count).map(email).collect();
        for batch in emails.chunks(1_000) {
            self.store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
        }
    }

    /// A database in memory has one connection, so this sees all that is done.
    async fn count_steps(&self) {
        let steps = Arc::clone(&self.steps);
        let counting = self.store.writer.run(move |work| {
            let steps = Arc::clone(&steps);
            let count = move || {
                steps.fetch_add(1, Ordering::Relaxed);
                false
            };
            work.connection.progress_handler(1, Some(count)).map_err(from_sqlite)
        });
        counting.await.expect("counting");
    }

    /// The steps of so many claims, the commit of each included.
    async fn steps_of_claims(&self, routes: &Routes, limit: u32) -> u64 {
        let worker = a_worker(&self.store).await;
        let before = self.steps.load(Ordering::Relaxed);
        for _ in 0..CLAIMS {
            let request = ClaimRequest { routes: routes.clone(), ..request(worker, at_secs(1), limit) };
            let claimed = self.store.claim(request).await.expect("answered");
            assert_eq!(claimed.len(), limit as usize, "enough is waiting");
        }
        self.steps.load(Ordering::Relaxed) - before
    }

    async fn steps_of_stats(&self) -> u64 {
        let before = self.steps.load(Ordering::Relaxed);
        let stats = self.store.stats(at_secs(1)).await.expect("answered");
        assert_eq!(stats.oldest_due_at, Some(START));
        self.steps.load(Ordering::Relaxed) - before
    }
}

/// Whose the backlog is.
#[derive(Debug, Clone, Copy)]
enum Backlog {
    Everybodys,
    /// Of one company, by one route; the others have a little each.
    OneCompanys,
    /// As before, and not due for a while yet.
    OneCompanysLater,
}

/// The steps of claims beside so many waiting emails: one at a time by all routes, many at a time, and one at a time by
/// all routes but that of the backlog. Then those of asking how long the first has been waiting.
async fn steps_beside(backlog: Backlog, waiting: usize) -> [u64; 4] {
    let stage = Stage::new().await;
    let few = SMALL / COMPANIES;
    for &company in &stage.companies {
        let count = if let Backlog::Everybodys = backlog { waiting / COMPANIES } else { few };
        stage.waits(company, "main", count, START).await;
        stage.waits(company, "relay", few, START).await;
    }
    let first = stage.companies[0];
    match backlog {
        Backlog::Everybodys => {}
        Backlog::OneCompanys => stage.waits(first, "main", waiting, START).await,
        Backlog::OneCompanysLater => stage.waits(first, "main", waiting, at_secs(3_600)).await,
    }
    stage.count_steps().await;
    let not_main = Routes::Except(vec!["main".into()]);
    [
        stage.steps_of_claims(&Routes::All, 1).await,
        stage.steps_of_claims(&Routes::All, 16).await,
        stage.steps_of_claims(&not_main, 1).await,
        stage.steps_of_stats().await,
    ]
}

async fn costs_the_same(backlog: Backlog) {
    let (small, large) = (steps_beside(backlog, SMALL).await, steps_beside(backlog, LARGE).await);
    println!("{backlog:?}: steps of {CLAIMS} claims beside {SMALL}: {small:?}, beside {LARGE}: {large:?}");
    for (small, large) in small.iter().zip(&large) {
        assert!(*small > CLAIMS, "steps are counted at all");
        assert!(
            *large <= small + CLAIMS * SLACK_PER_CLAIM,
            "{backlog:?}: {large} steps beside {LARGE} waiting emails, {small} beside {SMALL}"
        );
    }
}

#[tokio::test]
async fn a_claim_costs_the_same_beside_everybodys_backlog() {
    costs_the_same(Backlog::Everybodys).await;
}

#[tokio::test]
async fn a_claim_costs_the_same_beside_one_companys_backlog() {
    costs_the_same(Backlog::OneCompanys).await;
}

#[tokio::test]
async fn a_claim_costs_the_same_beside_what_is_due_later() {
    costs_the_same(Backlog::OneCompanysLater).await;
}
