//! Laws of retention: what has ended and outlived its time is deleted in small steps, and nothing else ever.

use model::{CompanyId, EmailId, NewEmail, Status, Timestamp, Verdict};
use testkit::{START, an_email, an_email_at};

use super::stage::{
    DAY, HOUR, REACHABLE, a_company, a_key, acceptance, attempted, backlog, fail, hold, in_status,
    listed_ids, sent, stored,
};
use crate::{Acceptance, Accepted, DeadLetterFilter, EmailFilter, Pruned, Retention, Store};

fn retention() -> Retention {
    Retention { content: 3 * DAY, emails: 30 * DAY, dead_letters: 7 * DAY }
}

/// First the content goes, later the email with its history: counted from its end, not from its acceptance.
pub async fn content_goes_before_the_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let end = START.plus(10 * DAY);
    let email =
        NewEmail { due_at: end, scheduled_at: Some(end), expires_at: end.plus(DAY), ..an_email(company) };
    let id = stored(store, email).await;
    attempted(store, sent(), end).await;
    let steps = [
        // days after its end, pruned then, content and email there afterwards
        (2, Pruned::default(), true, true),
        (4, Pruned { contents: 1, ..Pruned::default() }, false, true),
        (5, Pruned::default(), false, true),
        (29, Pruned::default(), false, true),
        (31, Pruned { emails: 1, ..Pruned::default() }, false, false),
    ];
    for (days, expected, has_content, has_email) in steps {
        let pruned = store.prune(&retention(), end.plus(days * DAY), 100).await.expect("prune");
        assert_eq!(pruned, expected, "day {days}");
        let content = store.content(company, id).await.expect("read");
        assert_eq!(content.is_some(), has_content, "day {days}");
        assert_eq!(store.email(company, id).await.expect("read").is_some(), has_email, "day {days}");
        assert_eq!(store.events(company, id).await.expect("read").is_some(), has_email, "day {days}");
    }
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await, []);
    assert_eq!(store.company_of(id).await.expect("read"), None);
}

/// However late it is, only what has ended is deleted.
pub async fn only_the_finished_are_deleted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut kept: Vec<EmailId> = Vec::new();
    for status in REACHABLE {
        let id = in_status(store, company, status, START).await;
        if !status.is_final() {
            kept.push(id);
        }
    }
    let held = stored(store, an_email(company)).await;
    attempted(store, hold(), START).await;
    kept.push(held);
    prune_all(store, START.plus(1_000 * DAY)).await;
    let mut left = listed_ids(store, company, &EmailFilter::default()).await;
    left.sort_unstable();
    kept.sort_unstable();
    assert_eq!(left, kept);
    for id in kept {
        assert!(
            store.content(company, id).await.expect("read").is_some(),
            "content that is still needed stays"
        );
    }
}

/// Every way to end is pruned, each by the time of its own end.
pub async fn every_end_is_pruned(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in REACHABLE {
        if status.is_final() {
            let id = in_status(store, company, status, START).await;
            prune_all(store, START.plus(29 * DAY)).await;
            assert!(store.email(company, id).await.expect("read").is_some(), "{status}: not yet");
            prune_all(store, START.plus(31 * DAY)).await;
            assert_eq!(store.email(company, id).await.expect("read"), None, "{status}");
        }
    }
    let waiting = stored(store, an_email_at(company, START)).await;
    let expired_at = START.plus(40 * DAY);
    assert_eq!(store.expire(expired_at, 10).await.expect("expire"), 1);
    prune_all(store, expired_at.plus(29 * DAY)).await;
    assert!(store.email(company, waiting).await.expect("read").is_some(), "it ended when it was moved");
}

/// Never more emails in one call than asked for; calling again gets through.
pub async fn pruning_goes_in_steps(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    backlog(store, company, 25, START).await;
    assert_eq!(store.expire(START.plus(2 * DAY), 100).await.expect("expire"), 25);
    let late = START.plus(100 * DAY);
    let mut total = 0;
    for _ in 0..100 {
        let pruned = store.prune(&retention(), late, 10).await.expect("prune");
        assert!(pruned.emails <= 10, "{pruned:?}");
        total += pruned.emails;
        if pruned == Pruned::default() {
            break;
        }
    }
    assert_eq!(total, 25);
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await, []);
}

/// A dead letter leaves the list after its time; the email stays FAILED. Until then it can be replayed whole.
pub async fn dead_letters_leave_their_list(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = in_status(store, company, Status::Failed, START).await;
    let all = DeadLetterFilter::default();
    prune_all(store, START.plus(6 * DAY)).await;
    assert_eq!(store.count_dead_letters(company, &all).await.expect("count"), 1);
    let content = store.content(company, id).await.expect("read");
    assert!(content.is_some(), "what can be replayed keeps its content");

    let pruned = store.prune(&retention(), START.plus(8 * DAY), 100).await.expect("prune");
    assert_eq!((pruned.dead_letters, pruned.emails), (1, 0));
    assert_eq!(store.count_dead_letters(company, &all).await.expect("count"), 0);
    assert_eq!(store.stats(START.plus(8 * DAY)).await.expect("stats").dead_letters, 0);
    let email = super::stage::read(store, company, id).await;
    assert_eq!((email.status, email.dead_at), (Status::Failed, None));
    let replayed = store.replay(company, &all, START.plus(8 * DAY), 10).await.expect("replay");
    assert_eq!(replayed.replayed, 0);
}

/// What was replayed counts from its new end.
pub async fn a_replay_starts_the_time_anew(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = in_status(store, company, Status::Failed, START).await;
    let again = START.plus(6 * DAY);
    let all = DeadLetterFilter::default();
    store.replay(company, &all, again, 10).await.expect("replay");
    prune_all(store, START.plus(500 * DAY)).await;
    assert!(store.content(company, id).await.expect("read").is_some(), "it waits again");
    attempted(store, fail("SMTP_REJECTED_550"), again).await;
    prune_all(store, START.plus(8 * DAY)).await;
    assert_eq!(store.count_dead_letters(company, &all).await.expect("count"), 1);
}

/// Keys go when their time is over, not before.
pub async fn old_keys_are_deleted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let send = |key: &str, now: Timestamp| {
        let key = Some(a_key(key, 1, key, now));
        Acceptance { key, ..acceptance(vec![an_email_at(company, now)], now) }
    };
    for (key, now) in [("old", START), ("older", START), ("young", START.plus(12 * HOUR))] {
        assert_eq!(store.accept(send(key, now)).await.expect("accept"), Accepted::Stored);
    }
    let early = store.prune(&retention(), START.plus(23 * HOUR), 100).await.expect("prune");
    assert_eq!(early.idempotency_keys, 0);
    let now = START.plus(25 * HOUR);
    let mut deleted = 0;
    for _ in 0..10 {
        let pruned = store.prune(&retention(), now, 1).await.expect("prune");
        assert!(pruned.idempotency_keys <= 1, "{pruned:?}");
        deleted += pruned.idempotency_keys;
    }
    assert_eq!(deleted, 2);
    let young = store.accept(send("young", now)).await.expect("accept");
    assert_eq!(young, Accepted::Replayed { answer: "young".into() });
    assert_eq!(store.accept(send("old", now)).await.expect("accept"), Accepted::Stored);
}

/// Pruning next to work in flight disturbs none of it.
pub async fn pruning_disturbs_nobody(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, NewEmail { expires_at: START.plus(400 * DAY), ..an_email(company) }).await;
    let claim = super::stage::claim_one(store, START).await;
    let guard = super::stage::begun(store, claim.guard, START).await;
    prune_all(store, START.plus(300 * DAY)).await;
    let now = START.plus(300 * DAY);
    let settled = super::stage::settle(store, guard, Verdict::Release { outcome_unknown: false }, now).await;
    assert_eq!(settled, crate::Settled::Done(Status::Enqueued));
    prune_all(store, now).await;
    let claim = super::stage::claim_one(store, now.plus(HOUR)).await;
    assert_eq!(claim.id(), id);
    assert!(claim.content.is_some());
}

/// What may not go yet, be it the first that was ever accepted, holds up nothing behind it.
pub async fn the_young_hold_up_nobody(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let (late, now) = (START.plus(38 * DAY), START.plus(40 * DAY));
    let mut kept = Vec::new();
    for _ in 0..10 {
        // Two that were accepted first and ended last, and one that waits.
        kept.push(ends_at(store, company, late).await);
        kept.push(ends_at(store, company, late).await);
        let waits = NewEmail { due_at: now.plus(DAY), expires_at: now.plus(2 * DAY), ..an_email(company) };
        kept.push(stored(store, waits).await);
    }
    let without_content = ends_at(store, company, START.plus(20 * DAY)).await;
    let gone = ends_at(store, company, START).await;
    for day in [0, 20, 38] {
        send_all(store, START.plus(day * DAY)).await;
    }
    for _ in 0..20 {
        store.prune(&retention(), now, 3).await.expect("prune");
    }
    assert_eq!(store.email(company, gone).await.expect("read"), None, "it ended 40 days ago");
    assert_eq!(content_of(store, company, &[without_content]).await, 0, "it ended 20 days ago");
    assert_eq!(content_of(store, company, &kept).await, kept.len(), "the others are needed or too young");
}

/// While emails keep arriving, the content of each goes soon after its time has come, and not before.
pub async fn pruning_keeps_up_with_arrivals(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let in_front = NewEmail { due_at: START.plus(DAY * 30), ..an_email(company) };
    stored(store, NewEmail { expires_at: START.plus(DAY * 31), ..in_front }).await;
    let retention = Retention { content: 10 * HOUR, ..retention() };
    let mut by_hour: Vec<Vec<EmailId>> = Vec::new();
    for hour in 0..50 {
        let now = START.plus(hour * HOUR);
        by_hour.push(backlog(store, company, 3, now).await);
        send_all(store, now).await;
        // Little more than arrives: a store that walked through the young ones would be late for the old.
        store.prune(&retention, now, 4).await.expect("prune");
        for (age, expected) in [(9, 3), (15, 0)] {
            if let Some(ids) = by_hour.iter().rev().nth(age) {
                assert_eq!(content_of(store, company, ids).await, expected, "{age} hours after, at {hour}");
            }
        }
    }
}

/// An email of the start that is due at that moment only.
async fn ends_at(store: &dyn Store, company: CompanyId, end: Timestamp) -> EmailId {
    stored(store, NewEmail { due_at: end, expires_at: end.plus(DAY), ..an_email(company) }).await
}

/// Sends whatever is due.
async fn send_all(store: &dyn Store, now: Timestamp) {
    for claim in super::stage::claim(store, now, 100).await {
        let guard = super::stage::begun(store, claim.guard, now).await;
        super::stage::settle(store, guard, sent(), now).await;
    }
}

/// How many of the emails still have their content.
async fn content_of(store: &dyn Store, company: CompanyId, ids: &[EmailId]) -> usize {
    let mut count = 0;
    for &id in ids {
        count += usize::from(store.content(company, id).await.expect("read").is_some());
    }
    count
}

/// Prunes until nothing more is found.
async fn prune_all(store: &dyn Store, now: Timestamp) {
    for _ in 0..100 {
        if store.prune(&retention(), now, 10).await.expect("prune") == Pruned::default() {
            return;
        }
    }
    panic!("pruning does not end");
}
