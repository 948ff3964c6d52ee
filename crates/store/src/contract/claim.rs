//! Laws of the claim: which emails a worker gets, what comes with them, and that nobody else gets them too. How
//! companies share the workers is in `fairness`, their limits in `limits`.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Content, EventKind, NewEmail, Recipient, Status, Verdict};
use testkit::{START, a_full_email, an_email, an_email_at, at_millis, at_secs};

use super::stage::{
    DAY, LEASE, a_company, a_worker, attempted, backlog, begun, claim, claim_one, claimed_ids, events, kinds,
    read, request, retry_at, settle, stored,
};
use crate::{ClaimRequest, Settled, Store};

/// An email is claimed from its due time on, not a millisecond earlier.
pub async fn nothing_is_claimed_before_it_is_due(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, NewEmail { due_at: at_millis(5_000), ..an_email(company) }).await;
    assert_eq!(claimed_ids(store, START, 10).await, []);
    assert_eq!(claimed_ids(store, at_millis(4_999), 10).await, []);
    let other = stored(store, an_email(company)).await;
    assert_eq!(claimed_ids(store, at_millis(4_999), 10).await, [other], "nor in the company of one that is");
    assert_eq!(claimed_ids(store, at_millis(5_000), 10).await, [id]);
}

/// A claim moves the email to PROCESSING, counts the attempt, grows the fence and records RECEIVED.
pub async fn a_claim_leases_the_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let before = read(store, company, id).await;
    let claim = claim_one(store, at_secs(3)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.attempts, email.due_at), (Status::Processing, 1, None));
    assert!(email.fence > before.fence && email.version > before.version);
    assert_eq!((claim.guard.fence, claim.guard.version), (email.fence, email.version));
    let history = events(store, company, id).await;
    let received = history.last().expect("there is a history");
    assert_eq!((received.kind, received.at), (EventKind::Received, at_secs(3)));
    assert_eq!(received.metadata.get("attempt"), Some(&1.into()));
}

/// The worker gets everything it needs to send the email, content included.
pub async fn a_claim_brings_the_whole_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = a_full_email(company);
    stored(store, email.clone()).await;
    let now = email.due_at;
    let claim = claim_one(store, now).await;
    assert_eq!((claim.id(), claim.company), (email.id, company));
    assert_eq!((&claim.request_id, claim.mode), (&email.request_id, email.mode));
    assert_eq!((claim.attempt, claim.attempt_in_series, claim.unfinished_starts), (1, 1, 0));
    assert_eq!((claim.created_at, claim.expires_at), (email.created_at, email.expires_at));
    assert_eq!((claim.claimed_at, claim.lease_until), (now, now.plus(LEASE)));
    assert_eq!(claim.envelope, email.envelope);
    let recipient = claim.recipient.map(|recipient| Recipient { id: None, ..recipient });
    assert_eq!(recipient, email.recipient);
    assert_eq!((claim.external_id, claim.entity), (email.external_id, email.entity));
    assert_eq!(claim.wishes, email.wishes);
    assert_eq!(
        (claim.trace, claim.trace.is_some()),
        (email.trace, true),
        "the trace goes on with the attempt"
    );
    assert!(claim.content == Some(email.content), "the content comes with the claim");
}

/// An email that is claimed is nobody else's, not even after its lease ran out: first it must be given back.
pub async fn a_claimed_email_is_not_claimed_again(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    claim_one(store, START).await;
    assert_eq!(claimed_ids(store, at_secs(1), 10).await, []);
    assert_eq!(claimed_ids(store, START.plus(LEASE).plus(LEASE), 10).await, []);
}

/// Each claim of an email has a higher fence than the one before, and counts as one more attempt.
pub async fn fence_and_attempts_grow_with_every_claim(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let mut fence = read(store, company, id).await.fence;
    for attempt in 1..=5 {
        let now = at_secs(u64::from(attempt));
        let claim = attempted(store, retry_at(now), now).await;
        assert!(claim.guard.fence > fence, "attempt {attempt}");
        assert_eq!((claim.attempt, claim.attempt_in_series), (attempt, attempt));
        let received = events(store, company, id).await;
        let numbers: Vec<_> = received
            .iter()
            .filter(|event| event.kind == EventKind::Received)
            .filter_map(|event| event.metadata.get("attempt").and_then(serde_json::Value::as_u64))
            .collect();
        assert_eq!(numbers, (1..=u64::from(attempt)).collect::<Vec<_>>());
        fence = claim.guard.fence;
    }
}

/// Never more than asked for; the rest is there for the next one.
pub async fn the_limit_is_respected(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut waiting: BTreeSet<_> = backlog(store, company, 25, START).await.into_iter().collect();
    for expected in [10, 10, 5, 0] {
        let ids = claimed_ids(store, START, 10).await;
        assert_eq!(ids.len(), expected);
        assert!(ids.iter().all(|id| waiting.remove(id)), "each once");
    }
}

/// Content beyond the size asked for stays where it is, but one email is always given.
pub async fn the_size_is_respected(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..6 {
        stored(store, NewEmail { content: content_of(10_000), ..an_email(company) }).await;
    }
    let worker = a_worker(store).await;
    let sized = |size_bytes_max| ClaimRequest { size_bytes_max, ..request(worker, START, 10) };
    let some = store.claim(sized(25_000)).await.expect("claim").len();
    assert!((2..=3).contains(&some), "25,000 bytes are two or three emails of 10,000, not {some}");
    assert_eq!(store.claim(sized(1)).await.expect("claim").len(), 1, "one is always given");
    let rest = store.claim(sized(1_000_000)).await.expect("claim").len();
    assert_eq!(some + 1 + rest, 6, "what did not fit waits");
}

/// Text that compression cannot make much smaller.
fn content_of(size_bytes: usize) -> Content {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'!' + u8::try_from(state % 90).expect("a small number"))
    };
    Content::Composed { html: (0..size_bytes).map(|_| letter()).collect(), text: None, attachments: vec![] }
}

/// Within a company the most urgent goes first; one that is not due yet holds nobody up.
pub async fn priority_decides_within_a_company(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for priority in [5, 10, 1, 7, 3, 9, 2] {
        stored(store, NewEmail { priority, ..an_email(company) }).await;
    }
    stored(store, NewEmail { priority: 1, due_at: at_secs(60), ..an_email(company) }).await;
    let mut order = Vec::new();
    for _ in 0..7 {
        let claims = claim(store, at_secs(1), 1).await;
        order.push(read(store, company, claims[0].id()).await.priority);
    }
    assert_eq!(order, [1, 2, 3, 5, 7, 9, 10]);
    assert_eq!(claimed_ids(store, at_secs(1), 1).await, []);
}

/// A batch takes the most urgent ones, whatever order it gives them in.
pub async fn a_batch_takes_the_most_urgent(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for priority in [9, 1, 8, 2, 7, 3] {
        stored(store, NewEmail { priority, ..an_email(company) }).await;
    }
    let mut priorities = Vec::new();
    for claim in claim(store, START, 3).await {
        priorities.push(read(store, company, claim.id()).await.priority);
    }
    priorities.sort_unstable();
    assert_eq!(priorities, [1, 2, 3]);
}

/// What has outlived its time is not given to a worker but ends as EXPIRED.
pub async fn the_expired_are_not_claimed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let old = stored(store, an_email(company)).await;
    let late = START.plus(DAY).plus(Duration::from_secs(1));
    let fresh = stored(store, an_email_at(company, late)).await;
    let mut claimed = claimed_ids(store, late, 10).await;
    claimed.extend(claimed_ids(store, late, 10).await);
    assert_eq!(claimed, [fresh]);
    let email = read(store, company, old).await;
    assert_eq!((email.status, email.attempts, email.due_at), (Status::Expired, 0, None));
    assert_eq!(kinds(store, company, old).await, [EventKind::Enqueued, EventKind::Expired]);
}

/// A backlog that has outlived its time is not worked off within one claim, while everybody else has to wait.
pub async fn a_claim_does_a_bounded_amount_of_work(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = backlog(store, company, 3_000, START).await;
    let late = START.plus(2 * DAY);
    assert_eq!(claimed_ids(store, late, 8).await, []);
    let waiting = store.stats(late).await.expect("stats").waiting();
    assert!(waiting >= 2_000, "one claim ended {} emails", 3_000 - waiting);
    for _ in 0..ids.len() {
        assert_eq!(claimed_ids(store, late, 8).await, []);
        if store.stats(late).await.expect("stats").waiting() == 0 {
            return;
        }
    }
    panic!("claims alone do not get past the expired");
}

/// The most urgent goes first also when others of its priority are met that have outlived their time.
pub async fn the_expired_do_not_upset_the_order(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..5 {
        let over = NewEmail { priority: 1, expires_at: at_secs(1), ..an_email(company) };
        stored(store, over).await;
    }
    let urgent = stored(store, NewEmail { priority: 1, due_at: at_secs(2), ..an_email(company) }).await;
    let other = stored(store, NewEmail { priority: 2, ..an_email(company) }).await;
    let mut order = Vec::new();
    for _ in 0..10 {
        order.extend(claimed_ids(store, at_secs(5), 1).await);
    }
    assert_eq!(order, [urgent, other]);
}

/// An email waiting for its next attempt is claimed when that is due, under its old id.
pub async fn a_retry_is_claimed_when_it_is_due(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, retry_at(at_millis(30_000)), at_secs(1)).await;
    assert_eq!(claimed_ids(store, at_millis(29_999), 10).await, []);
    let claim = claim_one(store, at_millis(30_000)).await;
    assert_eq!((claim.id(), claim.attempt, claim.attempt_in_series), (id, 2, 2));
}

/// A long backlog of what is not due, of the finished and of the switched-off does not hide what is due.
pub async fn the_due_are_found_among_the_many(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut delayed = Vec::new();
    for _ in 0..500 {
        delayed.push(NewEmail { priority: 1, due_at: at_secs(3600), ..an_email(company) });
    }
    store.accept(super::stage::acceptance(delayed, START)).await.expect("accept");
    backlog(store, company, 200, START).await;
    for claim in claim(store, START, 200).await {
        let guard = begun(store, claim.guard, START).await;
        assert_eq!(settle(store, guard, super::stage::sent(), START).await, Settled::Done(Status::Sent));
    }
    let id = stored(store, NewEmail { priority: 10, ..an_email(company) }).await;
    assert_eq!(claimed_ids(store, at_secs(1), 10).await, [id]);
}

/// What a worker gives back is there for the next one at once.
pub async fn what_is_given_back_is_claimed_again(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let first = claim_one(store, START).await;
    let release = Verdict::Release { outcome_unknown: false };
    assert_eq!(settle(store, first.guard, release, START).await, Settled::Done(Status::Enqueued));
    let second = claim_one(store, START).await;
    assert_eq!((second.id(), second.attempt), (id, 1), "the attempt did not count");
    assert!(second.guard.fence > first.guard.fence);
}
