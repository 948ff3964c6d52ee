//! Laws of the held (their outcome is unknown and a second copy must not be risked) and of the end of time: what
//! outlives its time to live ends as EXPIRED, a held one as FAILED.

use std::time::Duration;

use model::{ErrorCode, EventKind, NewEmail, Status, Timestamp};
use testkit::{START, an_email, at_secs};

use super::stage::{
    DAY, HOUR, a_company, attempted, begun, claim_one, claimed_ids, hold, in_status, kinds, read, retry_at,
    sent, settle, stored,
};
use crate::{DeadLetterFilter, RetriedNow, Settled, Store};

/// A held email waits, and no claim ever gets it.
pub async fn the_held_is_never_claimed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let long = NewEmail { expires_at: START.plus(400 * DAY), ..an_email(company) };
    let id = stored(store, long).await;
    attempted(store, hold(), at_secs(1)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.due_at), (Status::RetryScheduled, Some(Timestamp::NEVER)));
    assert!(email.outcome_unknown);
    assert_eq!(email.last_failure.map(|failure| failure.code).as_deref(), Some("SMTP_TIMEOUT"));
    for days in [1, 30, 399] {
        assert_eq!(claimed_ids(store, START.plus(days * DAY), 10).await, []);
        assert_eq!(store.expire(START.plus(days * DAY), 10).await.expect("expire"), 0);
    }
    assert_eq!(read(store, company, id).await.status, Status::RetryScheduled);
}

/// A person can let it go: then it is due at once and goes on as any other.
pub async fn a_person_lets_the_held_go(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, hold(), at_secs(1)).await;
    assert_eq!(store.retry_now(company, id, at_secs(9)).await.expect("retry"), RetriedNow::Done);
    assert_eq!(read(store, company, id).await.status, Status::Enqueued);
    let claim = claim_one(store, at_secs(9)).await;
    assert_eq!((claim.id(), claim.attempt), (id, 2));
    let guard = begun(store, claim.guard, at_secs(9)).await;
    assert_eq!(settle(store, guard, sent(), at_secs(9)).await, Settled::Done(Status::Sent));
    assert!(read(store, company, id).await.outcome_unknown, "that stays on record");
}

/// Past its time a held email is a dead letter: FAILED, with the code that says the outcome is unknown.
pub async fn the_held_fails_when_its_time_is_over(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, hold(), at_secs(1)).await;
    let late = START.plus(DAY).plus(HOUR);
    assert_eq!(store.expire(late, 10).await.expect("expire"), 1);
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.due_at), (Status::Failed, None));
    assert_eq!((email.failed_at, email.dead_at), (Some(late), Some(late)));
    let code = email.last_failure.map(|failure| failure.code);
    assert_eq!(code.as_deref(), Some(ErrorCode::OUTCOME_UNKNOWN.as_str()));
    assert_eq!(kinds(store, company, id).await.last(), Some(&EventKind::Failed));
    let dead = store.count_dead_letters(company, &DeadLetterFilter::default()).await.expect("count");
    assert_eq!(dead, 1);
}

/// A claim after its time does not set a held email free either.
pub async fn a_late_claim_does_not_free_the_held(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, hold(), at_secs(1)).await;
    assert_eq!(claimed_ids(store, START.plus(DAY).plus(HOUR), 10).await, []);
    let status = read(store, company, id).await.status;
    assert!(matches!(status, Status::RetryScheduled | Status::Failed), "{status}");
}

/// Whatever waits past its time ends as EXPIRED: due, delayed, or between two attempts, due after its time or not.
pub async fn the_waiting_expire(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let retrying = in_status(store, company, Status::RetryScheduled, START).await;
    stored(store, an_email(company)).await;
    let retrying_late = attempted(store, retry_at(START.plus(3 * DAY)), START).await.id();
    let delayed = stored(store, NewEmail { due_at: START.plus(2 * DAY), ..an_email(company) }).await;
    let due = stored(store, an_email(company)).await;
    let young = stored(store, NewEmail { expires_at: START.plus(2 * DAY), ..an_email(company) }).await;
    let late = START.plus(DAY).plus(Duration::from_millis(1));

    assert_eq!(store.expire(START.plus(HOUR), 10).await.expect("expire"), 0, "nothing before its time");
    assert_eq!(store.expire(late, 10).await.expect("expire"), 4);
    for id in [retrying, retrying_late, delayed, due] {
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.due_at, email.dead_at), (Status::Expired, None, None));
        assert_eq!(kinds(store, company, id).await.last(), Some(&EventKind::Expired));
    }
    assert_eq!(claimed_ids(store, late, 10).await, [young]);
    assert_eq!(store.expire(late, 10).await.expect("expire"), 0);
}

/// What is in flight or has ended does not expire.
pub async fn what_is_not_waiting_does_not_expire(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut others = Vec::new();
    for status in super::stage::REACHABLE {
        if !matches!(status, Status::Accepted | Status::Enqueued | Status::RetryScheduled) {
            others.push((status, in_status(store, company, status, START).await));
        }
    }
    let late = START.plus(30 * DAY);
    assert_eq!(store.expire(late, 100).await.expect("expire"), 0);
    for (status, id) in others {
        assert_eq!(read(store, company, id).await.status, status);
    }
}

/// Expiry goes in steps of the size asked for, and says when it is through.
pub async fn expiry_goes_in_steps(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = super::stage::backlog(store, company, 25, START).await;
    let late = START.plus(2 * DAY);
    for expected in [10, 10, 5, 0] {
        assert_eq!(store.expire(late, 10).await.expect("expire"), expected);
    }
    for id in ids {
        assert_eq!(kinds(store, company, id).await, [EventKind::Enqueued, EventKind::Expired]);
    }
}

/// The time to live runs for a company that is switched off too.
pub async fn the_switched_off_expire(store: &dyn Store) {
    let company = super::stage::a_company_with(store, "off", model::CompanySettings::default()).await;
    let id = stored(store, an_email(company.id)).await;
    let off = model::Company { disabled_at: Some(START), ..company.clone() };
    assert!(store.update_company(off).await.expect("update"));
    assert_eq!(store.expire(START.plus(2 * DAY), 10).await.expect("expire"), 1);
    assert_eq!(read(store, company.id, id).await.status, Status::Expired);
}
