//! Laws of a company's own limits on its claims: switched off, so many at once, so many per second.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Company, CompanyId, CompanySettings, Guard, Pause, Status, Timestamp, Verdict};
use testkit::{START, at_millis, at_secs};

use super::stage::{
    LEASE, a_company, a_company_with, a_worker, backlog, begun, claim, lost_leases, read, request, sent,
    settle, swept,
};
use crate::{Cancelled, Settled, Store};

/// Emails of a company that is switched off wait untouched, those of others do not.
pub async fn a_company_switched_off_waits(store: &dyn Store) {
    let off = a_company_with(store, "off", CompanySettings::default()).await;
    let other = a_company(store, "other").await;
    let waiting = backlog(store, off.id, 5, START).await;
    backlog(store, other, 5, START).await;
    let disabled = Company { disabled_at: Some(START), ..off.clone() };
    assert!(store.update_company(disabled).await.expect("update"));
    let claims = claim(store, at_secs(1), 20).await;
    assert_eq!(claims.len(), 5);
    assert!(claims.iter().all(|claim| claim.company == other));
    for id in &waiting {
        assert_eq!(read(store, off.id, *id).await.status, Status::Enqueued);
    }

    assert!(store.update_company(off).await.expect("update"));
    let mut claimed: Vec<_> = claim(store, at_secs(2), 20).await.iter().map(model::Claim::id).collect();
    claimed.sort_unstable();
    let mut waiting = waiting;
    waiting.sort_unstable();
    assert_eq!(claimed, waiting, "switched on again, all are there");
}

/// Emails that arrive while their company is switched off wait too.
pub async fn what_arrives_while_switched_off_waits(store: &dyn Store) {
    let off = a_company_with(store, "off", CompanySettings::default()).await;
    let disabled = Company { disabled_at: Some(START), ..off.clone() };
    assert!(store.update_company(disabled).await.expect("update"));
    backlog(store, off.id, 3, START).await;
    assert_eq!(claim(store, at_secs(1), 20).await.len(), 0);
    assert!(store.update_company(off).await.expect("update"));
    assert_eq!(claim(store, at_secs(1), 20).await.len(), 3);
}

/// Emails of a paused company wait, whatever else of it is changed meanwhile, until somebody resumes it.
pub async fn a_paused_company_waits_until_resumed(store: &dyn Store) {
    let paused = a_company_with(store, "paused", CompanySettings::default()).await;
    let other = a_company(store, "other").await;
    backlog(store, paused.id, 3, START).await;
    backlog(store, other, 2, START).await;
    let pause = Pause { at: at_secs(1), reason: "12 % of its emails bounced".into() };
    assert_eq!(store.pause_company(paused.id, pause.clone()).await, Ok(true));
    assert_eq!(store.pause_company(paused.id, Pause { at: at_secs(2), ..pause.clone() }).await, Ok(false));
    assert!(store.update_company(paused.clone()).await.expect("update"), "its settings can be changed");
    let read_back = store.company(paused.id).await.expect("read").expect("there");
    assert_eq!((read_back.pause, read_back.resumed_at), (Some(pause), None));
    let claims = claim(store, at_secs(2), 20).await;
    assert_eq!(claims.iter().map(|claim| claim.company).collect::<Vec<_>>(), [other, other]);
    assert_eq!(store.resume_company(paused.id, at_secs(3)).await, Ok(true));
    assert_eq!(store.resume_company(paused.id, at_secs(4)).await, Ok(false));
    let read_back = store.company(paused.id).await.expect("read").expect("there");
    assert_eq!((read_back.pause, read_back.resumed_at), (None, Some(at_secs(3))));
    assert_eq!(claim(store, at_secs(5), 20).await.len(), 3);
    assert_eq!(store.resume_company(model::CompanyId::new(START), at_secs(4)).await, Ok(false));
}

/// However many companies with due emails are at their limits, the one behind them that has room is found.
pub async fn a_company_with_room_is_found_behind_any_number(store: &dyn Store) {
    const AT_THEIR_LIMITS: u16 = 300;
    let settings = |number: u16| match number {
        AT_THEIR_LIMITS => CompanySettings::default(),
        number if number % 2 == 0 => CompanySettings { rate_per_sec: Some(1), ..CompanySettings::default() },
        _ => CompanySettings { concurrency_max: Some(1), ..CompanySettings::default() },
    };
    let mut companies = Vec::new();
    for number in 0..=AT_THEIR_LIMITS {
        // In the order of their ids, in which stores go from one to the next.
        let mut tail = [0; 10];
        tail[8..].copy_from_slice(&number.to_be_bytes());
        let id = CompanyId::from_parts(START, tail);
        let name = format!("company-{number}");
        let company = Company { id, settings: settings(number), ..testkit::a_company(&name) };
        store.add_company(company).await.expect("a new company is added");
        companies.push(id);
    }
    let with_room = companies.pop().expect("the last one");
    for company in &companies {
        backlog(store, *company, 2, START).await;
    }
    let mut in_flight = 0;
    while in_flight < companies.len() {
        let claims = claim(store, START, 64).await;
        assert!(!claims.is_empty(), "{in_flight} of {} were found", companies.len());
        in_flight += claims.len();
    }
    assert_eq!(claim(store, START, 64).await.len(), 0, "all are at their limits");
    let id = backlog(store, with_room, 1, START).await;
    for limit in [1, 64] {
        let claims = claim(store, START, limit).await;
        assert_eq!(claims.iter().map(model::Claim::id).collect::<Vec<_>>(), id, "up to {limit}");
        let put_back = Verdict::PutBack { due_at: START, route: None };
        assert!(matches!(settle(store, claims[0].guard, put_back, START).await, Settled::Done(_)));
    }
}

/// No more of a company's emails are in flight than it allows, over any number of claims; others fill the rest.
pub async fn concurrency_is_bounded(store: &dyn Store) {
    let narrow = narrow_company(store, 3).await;
    let other = a_company(store, "other").await;
    backlog(store, narrow, 30, START).await;
    backlog(store, other, 30, START).await;
    let first = by_company(store, START, 10).await;
    assert_eq!((first[&narrow].len(), first[&other].len()), (3, 7));
    let second = by_company(store, at_secs(1), 10).await;
    assert_eq!((second.get(&narrow), second[&other].len()), (None, 10));
}

/// A place is free again however an email in flight ends: settled, cancelled or taken from a lost worker.
pub async fn every_end_frees_a_place(store: &dyn Store) {
    let narrow = narrow_company(store, 4).await;
    backlog(store, narrow, 30, START).await;
    let flying = by_company(store, START, 10).await.remove(&narrow).expect("some fly");
    assert_eq!(flying.len(), 4);

    let guard = begun(store, flying[0], START).await;
    assert_eq!(settle(store, guard, sent(), START).await, Settled::Done(Status::Sent));
    assert_eq!(claim(store, at_secs(1), 10).await.len(), 1, "after a settlement");

    let cancelled = store.cancel(narrow, flying[1].id, at_secs(2)).await.expect("cancel");
    assert_eq!(cancelled, Cancelled::Done);
    assert_eq!(claim(store, at_secs(2), 10).await.len(), 1, "after a cancel");

    let release = Verdict::Release { outcome_unknown: false };
    assert_eq!(settle(store, flying[2], release, at_secs(3)).await, Settled::Done(Status::Enqueued));
    assert_eq!(claim(store, at_secs(3), 10).await.len(), 1, "after a release");

    let late = START.plus(LEASE).plus(Duration::from_millis(500));
    assert_eq!(claim(store, late, 10).await.len(), 0, "a lease that ran out still holds its place");
    let lost = lost_leases(store, late).await;
    assert_eq!(lost.len(), 1);
    let requeue = Verdict::Requeue { due_at: late };
    assert!(matches!(store.settle(swept(&lost[0], requeue, late)).await, Ok(Settled::Done(_))));
    assert_eq!(claim(store, late, 10).await.len(), 1, "after the sweep");
}

/// A changed limit counts from the next claim on.
pub async fn a_changed_limit_counts_at_once(store: &dyn Store) {
    let mut company =
        a_company_with(store, "c", CompanySettings { concurrency_max: Some(2), ..Default::default() }).await;
    backlog(store, company.id, 30, START).await;
    assert_eq!(claim(store, START, 10).await.len(), 2);
    for (limit, expected) in [(Some(5), 3), (Some(1), 0), (None, 10)] {
        company.settings.concurrency_max = limit;
        assert!(store.update_company(company.clone()).await.expect("update"));
        assert_eq!(claim(store, at_secs(1), 10).await.len(), expected, "limit {limit:?}");
    }
}

const RATE: usize = 10;

/// Over any second, however the claims fall, no more than the rate; and over a while, about the rate.
pub async fn the_rate_is_kept_over_any_second(store: &dyn Store) {
    let company = rated_company(store).await;
    backlog(store, company, 400, START).await;
    let worker = a_worker(store).await;
    let mut started: Vec<u64> = Vec::new();
    let steps = [100, 10, 350, 90, 240, 5, 700, 130, 60, 15].into_iter().cycle();
    let mut millis = 0;
    for step in steps.take(120) {
        millis += step;
        let claims = store.claim(request(worker, at_millis(millis), 64)).await.expect("claim");
        started.extend(claims.iter().map(|_| millis));
    }
    assert_never_over_the_rate(&started);
    let seconds = usize::try_from(millis / 1_000).expect("a short while");
    let least = seconds * RATE * 6 / 10;
    assert!(started.len() >= least, "{} in {seconds} s, at least {least} were possible", started.len());
}

/// After a pause no burst: a company may not spend the seconds it did not use.
pub async fn a_pause_earns_no_burst(store: &dyn Store) {
    let company = rated_company(store).await;
    backlog(store, company, 200, START).await;
    let worker = a_worker(store).await;
    let mut started: Vec<u64> = Vec::new();
    for millis in [0, 500, 60_000, 60_001, 60_500, 60_999, 61_100, 200_000, 200_400, 200_900] {
        let claims = store.claim(request(worker, at_millis(millis), 64)).await.expect("claim");
        started.extend(claims.iter().map(|_| millis));
    }
    assert_never_over_the_rate(&started);
    assert!(started.contains(&0) && started.iter().any(|millis| *millis >= 200_000), "{started:?}");
}

/// The rate of one company takes nothing from another, in the same claims.
pub async fn the_rate_of_one_does_not_slow_another(store: &dyn Store) {
    let rated = rated_company(store).await;
    let other = a_company(store, "other").await;
    backlog(store, rated, 100, START).await;
    backlog(store, other, 100, START).await;
    let claimed = by_company(store, START, 64).await;
    assert!(claimed[&rated].len() <= RATE);
    assert_eq!(claimed[&other].len() + claimed[&rated].len(), 64, "others fill the batch");
}

/// Emails that were held back by the rate are not lost, nor do they lose an attempt.
pub async fn what_the_rate_holds_back_comes_later(store: &dyn Store) {
    let company = rated_company(store).await;
    backlog(store, company, 2 * RATE, START).await;
    let worker = a_worker(store).await;
    let mut claims = Vec::new();
    for second in 0..20 {
        claims.extend(store.claim(request(worker, at_secs(2 * second), 64)).await.expect("claim"));
    }
    assert_eq!(claims.len(), 2 * RATE);
    assert!(claims.iter().all(|claim| claim.attempt == 1 && claim.unfinished_starts == 0));
}

/// The most that were started within one second, at any moment.
fn assert_never_over_the_rate(started: &[u64]) {
    for end in started {
        let within = started.iter().filter(|millis| **millis <= *end && **millis + 1_000 > *end).count();
        assert!(within <= RATE, "{within} started within the second that ends at {end} ms: {started:?}");
    }
}

async fn narrow_company(store: &dyn Store, concurrency_max: u32) -> CompanyId {
    let settings = CompanySettings { concurrency_max: Some(concurrency_max), ..Default::default() };
    a_company_with(store, "narrow", settings).await.id
}

async fn rated_company(store: &dyn Store) -> CompanyId {
    let rate_per_sec = Some(u32::try_from(RATE).expect("a small rate"));
    a_company_with(store, "rated", CompanySettings { rate_per_sec, ..Default::default() }).await.id
}

/// One claim's emails by company.
async fn by_company(store: &dyn Store, now: Timestamp, limit: u32) -> BTreeMap<CompanyId, Vec<Guard>> {
    let mut guards: BTreeMap<CompanyId, Vec<Guard>> = BTreeMap::new();
    for claim in claim(store, now, limit).await {
        guards.entry(claim.company).or_default().push(claim.guard);
    }
    guards
}
