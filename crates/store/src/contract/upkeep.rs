//! Laws of upkeep: the numbers are right, the database knows whose it is, and a closed store says so.

use std::collections::BTreeMap;

use model::{Claim, CompanyId, EmailId, NewEmail, Status, Timestamp, Verdict, WorkerId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use testkit::{START, an_email, an_email_at, at_secs};

use super::stage::{
    HOUR, a_company, a_worker, acceptance, attempted, begun, claim_one, fail, hold, in_status, listed,
    lost_leases, request, retry_at, sent, settle, stored, swept,
};
use crate::{DeadLetterFilter, EmailFilter, Retention, Store};

/// An empty store counts nothing, and each status counts as one email moves through it.
pub async fn the_numbers_follow_one_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    assert_eq!(counts(store, START).await, BTreeMap::new());
    stored(store, an_email(company)).await;
    assert_eq!(counts(store, START).await, BTreeMap::from([(Status::Enqueued, 1)]));
    let claim = claim_one(store, START).await;
    assert_eq!(counts(store, START).await, BTreeMap::from([(Status::Processing, 1)]));
    let guard = begun(store, claim.guard, START).await;
    settle(store, guard, retry_at(START), START).await;
    assert_eq!(counts(store, START).await, BTreeMap::from([(Status::RetryScheduled, 1)]));
    attempted(store, fail("SMTP_REJECTED_550"), START).await;
    assert_eq!(counts(store, START).await, BTreeMap::from([(Status::Failed, 1)]));
}

/// Every status a verb can reach is counted, over all companies.
pub async fn every_status_is_counted(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    for status in super::stage::REACHABLE {
        in_status(store, acme, status, START).await;
        in_status(store, other, status, START).await;
    }
    let expected = super::stage::REACHABLE.into_iter().map(|status| (status, 2)).collect();
    assert_eq!(counts(store, START).await, expected);
    assert_eq!(store.stats(START).await.expect("stats").dead_letters, 2);
}

/// After any mix of verbs the numbers are those of a count over all emails.
pub async fn the_numbers_are_those_of_a_count(store: &dyn Store) {
    let mut mix = Mix::new(store).await;
    for round in 0..6 {
        for _ in 0..40 {
            mix.do_something(store).await;
        }
        let mut counted = BTreeMap::new();
        let mut dead_letters = 0;
        for company in mix.companies {
            for email in listed(store, company, &EmailFilter::default(), 100).await {
                *counted.entry(email.status).or_insert(0) += 1;
                dead_letters += u64::from(email.dead_at.is_some());
            }
        }
        assert_eq!(counts(store, mix.now).await, counted, "round {round}");
        assert_eq!(store.stats(mix.now).await.expect("stats").dead_letters, dead_letters, "round {round}");
    }
}

/// A seeded mix of everything that changes a status.
struct Mix {
    dice: StdRng,
    now: Timestamp,
    companies: [CompanyId; 2],
    worker: WorkerId,
    emails: Vec<(CompanyId, EmailId)>,
    claims: Vec<Claim>,
}

impl Mix {
    async fn new(store: &dyn Store) -> Self {
        Self {
            dice: StdRng::seed_from_u64(42),
            now: START,
            companies: [a_company(store, "acme").await, a_company(store, "other").await],
            worker: a_worker(store).await,
            emails: Vec::new(),
            claims: Vec::new(),
        }
    }

    async fn do_something(&mut self, store: &dyn Store) {
        self.now = self.now.plus(std::time::Duration::from_secs(self.dice.random_range(0..40)));
        match self.dice.random_range(0..10) {
            0..3 => self.accept(store).await,
            3 | 4 => {
                let claims = store.claim(request(self.worker, self.now, 3)).await.expect("claim");
                self.claims.extend(claims);
            }
            5 | 6 => self.settle_one(store).await,
            7 => self.sweep(store).await,
            8 => self.ask_for_one(store).await,
            _ => self.keep_house(store).await,
        }
    }

    async fn accept(&mut self, store: &dyn Store) {
        let company = *self.companies.choose(&mut self.dice).expect("two");
        let ttl = HOUR.mul_f64(self.dice.random_range(0.02..2.0));
        let batch: Vec<NewEmail> = (0..self.dice.random_range(1..4))
            .map(|_| NewEmail { expires_at: self.now.plus(ttl), ..an_email_at(company, self.now) })
            .collect();
        self.emails.extend(batch.iter().map(|email| (company, email.id)));
        store.accept(acceptance(batch, self.now)).await.expect("accept");
    }

    async fn settle_one(&mut self, store: &dyn Store) {
        if self.claims.is_empty() {
            return;
        }
        let number = self.dice.random_range(0..self.claims.len());
        let guard = self.claims.swap_remove(number).guard;
        let verdicts = [
            sent(),
            retry_at(self.now.plus(HOUR / 60)),
            hold(),
            fail("SMTP_REJECTED_550"),
            Verdict::Expire { failure: None },
            Verdict::Release { outcome_unknown: false },
        ];
        let verdict = verdicts.choose(&mut self.dice).expect("six").clone();
        let start = super::stage::start(guard, self.now);
        if let crate::Begun::Yes(guard) = store.begin(start).await.expect("begin") {
            settle(store, guard, verdict, self.now).await;
        }
    }

    async fn sweep(&mut self, store: &dyn Store) {
        for lost in lost_leases(store, self.now).await {
            let requeue = Verdict::Requeue { due_at: self.now };
            store.settle(swept(&lost, requeue, self.now)).await.expect("settle");
        }
    }

    async fn ask_for_one(&mut self, store: &dyn Store) {
        let Some((company, id)) = self.emails.choose(&mut self.dice).copied() else { return };
        match self.dice.random_range(0..3) {
            0 => drop(store.cancel(company, id, self.now).await.expect("cancel")),
            1 => drop(store.retry_now(company, id, self.now).await.expect("retry")),
            _ => drop(store.drop_dead_letter(company, id, self.now).await.expect("drop")),
        }
    }

    async fn keep_house(&mut self, store: &dyn Store) {
        let company = *self.companies.choose(&mut self.dice).expect("two");
        let retention = Retention { content: HOUR / 6, emails: HOUR / 2, dead_letters: HOUR / 3 };
        match self.dice.random_range(0..3) {
            0 => drop(store.expire(self.now, 5).await.expect("expire")),
            1 => drop(store.prune(&retention, self.now, 5).await.expect("prune")),
            _ => {
                let all = DeadLetterFilter::default();
                store.replay(company, &all, self.now, 2).await.expect("replay");
            }
        }
    }
}

/// The oldest due time is that of what waits and is due: not of the future, the held, the claimed, the finished.
pub async fn the_oldest_due_time_is_known(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let oldest = async |now| store.stats(now).await.expect("stats").oldest_due_at;
    assert_eq!(oldest(START).await, None);
    stored(store, an_email(company)).await;
    attempted(store, hold(), START).await;
    stored(store, an_email(company)).await;
    attempted(store, sent(), START).await;
    for secs in [30, 10, 20, 500] {
        stored(store, NewEmail { due_at: at_secs(secs), ..an_email(company) }).await;
    }
    assert_eq!(oldest(at_secs(5)).await, None, "nothing is due yet");
    assert_eq!(oldest(at_secs(40)).await, Some(at_secs(10)));
    let claims = super::stage::claim(store, at_secs(15), 10).await;
    assert_eq!(oldest(at_secs(40)).await, Some(at_secs(20)), "the claimed does not wait");
    settle(store, claims[0].guard, retry_at(at_secs(12)), at_secs(15)).await;
    assert_eq!(oldest(at_secs(40)).await, Some(at_secs(12)), "a retry waits");
}

/// The first to name the environment decides.
pub async fn the_environment_is_set_once(store: &dyn Store) {
    assert_eq!(store.environment("production").await.expect("environment"), "production");
    assert_eq!(store.environment("staging").await.expect("environment"), "production");
    assert_eq!(store.environment("production").await.expect("environment"), "production");
}

/// Many that name it at once agree.
pub async fn the_environment_is_set_once_in_a_race(store: &dyn Store) {
    let names = super::stage::race(8, |task| async move {
        store.environment(&format!("environment-{task}")).await.expect("environment")
    });
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
}

/// All processes seal cursors with one key, that of the first to ask, and it is not taken for the environment.
pub async fn the_cursor_key_is_set_once(store: &dyn Store) {
    let key = |text: &str| model::Secret::new(text.to_owned());
    store.environment("production").await.expect("environment");
    assert_eq!(store.cursor_key(key("first")).await.expect("a key").expose(), "first");
    assert_eq!(store.cursor_key(key("second")).await.expect("a key").expose(), "first");
    assert_eq!(store.environment("staging").await.expect("environment"), "production");
}

/// Also when they begin at once.
pub async fn the_cursor_key_is_set_once_in_a_race(store: &dyn Store) {
    let keys = super::stage::race(8, |task| async move {
        store.cursor_key(model::Secret::new(format!("key-{task}"))).await.expect("a key").into_inner()
    });
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

/// A store that works says so, one that was closed refuses.
pub async fn a_closed_store_refuses(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    store.check().await.expect("it is fit for work");
    store.close().await;
    store.close().await;
    assert!(store.check().await.is_err());
    assert!(store.email(company, id).await.is_err());
    assert!(store.accept(acceptance(vec![an_email(company)], START)).await.is_err());
}

/// The counts, without those that are nought.
async fn counts(store: &dyn Store, now: Timestamp) -> BTreeMap<Status, u64> {
    let mut counts = store.stats(now).await.expect("stats").by_status;
    counts.retain(|_, count| *count > 0);
    counts
}
