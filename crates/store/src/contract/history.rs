//! Laws of watching: every event of every company is told once, in the order of its number, with what its email is; what is
//! written at the same time by many is missed by nobody who follows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::{CompanyId, EmailId, Event, EventKind, KeyMode, NewEmail, Status, Timestamp};
use testkit::{START, an_address, an_email, an_email_at, an_entity, at_secs};

use super::stage::{DAY, a_company, attempted, events, fail, race, sent, stored};
use crate::history::SPAN_MAX;
use crate::{Happening, Retention, Store, Watch};

/// All events from a number on.
async fn told(store: &dyn Store, first: u64) -> Vec<Happening> {
    let last = store.last_event().await.expect("read");
    let mut told = Vec::new();
    let mut next = first;
    while next <= last {
        told.extend(store.happened(next, last).await.expect("read"));
        next += SPAN_MAX;
    }
    told
}

fn of(told: &[Happening], email: EmailId) -> Vec<Event> {
    told.iter()
        .filter(|happening| happening.email == email)
        .map(|happening| happening.event.clone())
        .collect()
}

/// The events of all companies, each as its email's history has it and with what the email is now.
pub async fn events_are_told_in_order(store: &dyn Store) {
    assert_eq!(store.last_event().await.expect("read"), 0);
    let (acme, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    let mut email = NewEmail { mode: KeyMode::Live, ..an_email(acme) };
    email.envelope.to = an_address("Ana@example.com");
    email.entity = Some(an_entity("order-7"));
    let first = stored(store, email.clone()).await;
    attempted(store, sent(), START).await;
    let second = stored(store, NewEmail { mode: KeyMode::Test, ..an_email(other) }).await;
    attempted(store, fail("SMTP_REJECTED_550"), START).await;

    let told = told(store, 1).await;
    assert!(told.is_sorted_by(|one, next| one.number < next.number), "{told:?}");
    assert_eq!(of(&told, first), events(store, acme, first).await);
    assert_eq!(of(&told, second), events(store, other, second).await);
    let happening = told.iter().find(|happening| happening.email == first).expect("told");
    assert_eq!(
        (happening.company, happening.mode, happening.status, happening.provider.as_deref()),
        (acme, KeyMode::Live, Status::Sent, Some("relay"))
    );
    assert_eq!(happening.to.expose(), "Ana@example.com");
    assert_eq!(happening.subject, email.envelope.subject);
    assert_eq!(happening.entity.as_deref(), Some("order-7"));
    let happening = told.iter().find(|happening| happening.email == second).expect("told");
    assert_eq!(
        (happening.company, happening.mode, happening.status, happening.entity.as_ref()),
        (other, KeyMode::Test, Status::Failed, None)
    );
}

/// Who knows the newest number knows where the next ones begin.
pub async fn what_is_new_has_higher_numbers(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    attempted(store, sent(), START).await;
    for second in 1..4 {
        let last = store.last_event().await.expect("read");
        let id = stored(store, an_email_at(company, at_secs(second))).await;
        let new = told(store, last + 1).await;
        assert_eq!(of(&new, id), events(store, company, id).await);
        assert!(new.iter().all(|happening| happening.email == id), "{new:?}");
    }
}

/// From a time on: nothing of it is left out, and little of what was before is read.
pub async fn events_of_a_time_are_found(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    assert!(store.first_event_since(START).await.expect("read") <= 1);
    for number in 0..20 {
        stored(store, an_email_at(company, START.plus(number * Duration::from_secs(60)))).await;
    }
    let all = told(store, 1).await;
    let cases = [(0, 0), (1, 1), (90, 2), (600, 10), (1_140, 19), (1_141, 20), (90_000, 20)];
    for (secs, skipped) in cases {
        let first = store.first_event_since(at_secs(secs)).await.expect("read");
        let found = told(store, first).await;
        assert_eq!(found, all[skipped.min(all.len())..], "since {secs} seconds after the start");
    }
}

/// No call reads more than its share, and none minds numbers beyond all events.
pub async fn a_span_is_bounded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let emails: Vec<NewEmail> = (0..SPAN_MAX + 50).map(|_| an_email(company)).collect();
    store.accept(super::stage::acceptance(emails, START)).await.expect("accepted");
    let all = store.happened(1, u64::MAX).await.expect("read");
    assert_eq!(all.last().map(|happening| happening.number <= SPAN_MAX), Some(true));
    assert_eq!(store.happened(u64::MAX - 5, u64::MAX).await.expect("read"), []);
    assert_eq!(store.happened(0, 0).await.expect("read"), []);
    assert_eq!(store.happened(9, 3).await.expect("read"), []);
}

/// What retention deletes is missing from the numbers; the others keep theirs.
pub async fn what_is_deleted_leaves_a_gap(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    attempted(store, sent(), START).await;
    let late = START.plus(60 * DAY);
    let kept = stored(store, an_email_at(company, late)).await;
    let before = told(store, 1).await;
    let retention = Retention { content: DAY, emails: 2 * DAY, dead_letters: DAY };
    while store.prune(&retention, late, 100).await.expect("pruned") != crate::Pruned::default() {}
    let after = told(store, 1).await;
    let expected: Vec<_> = before.into_iter().filter(|happening| happening.email == kept).collect();
    assert_eq!(after, expected);
}

/// Many write at once, and one follows: it is told everything, each event once.
pub async fn no_event_is_missed_in_a_race(store: &dyn Store) {
    const WRITERS: usize = 6;
    const EMAILS: usize = 25;
    let company = a_company(store, "acme").await;
    let at_work = AtomicUsize::new(WRITERS);
    let seen = race(WRITERS + 1, |task| {
        let at_work = &at_work;
        async move {
            if task < WRITERS {
                write(store, company, EMAILS).await;
                at_work.fetch_sub(1, Ordering::SeqCst);
                return Vec::new();
            }
            follow(store, at_work).await
        }
    });
    let seen: Vec<Happening> = seen.into_iter().flatten().collect();
    let numbers: BTreeSet<u64> = seen.iter().map(|happening| happening.number).collect();
    assert_eq!(numbers.len(), seen.len(), "an event was told twice");
    let all: BTreeSet<u64> = told(store, 1).await.iter().map(|happening| happening.number).collect();
    assert_eq!(numbers, all);
    let accepted = seen.iter().filter(|happening| happening.event.kind == EventKind::Enqueued).count();
    assert_eq!(accepted, WRITERS * EMAILS);
}

async fn write(store: &dyn Store, company: CompanyId, count: usize) {
    for _ in 0..count {
        stored(store, an_email(company)).await;
    }
}

/// Looks until nobody writes any more, and then once more for what came last.
async fn follow(store: &dyn Store, at_work: &AtomicUsize) -> Vec<Happening> {
    let mut watch = Watch::from(1);
    let mut seen = Vec::new();
    loop {
        let is_last = at_work.load(Ordering::SeqCst) == 0;
        loop {
            seen.extend(watch.look(store, a_moment()).await.expect("a look"));
            if !watch.is_behind() {
                break;
            }
        }
        if is_last {
            seen.extend(watch.look(store, a_moment()).await.expect("a look"));
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

/// Time stands still here, so nothing that is missing is given up.
fn a_moment() -> Timestamp {
    START
}
