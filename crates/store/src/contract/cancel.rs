//! Laws of what a company may still do with an email that is on its way: withdraw it, or have it tried now.

use model::{CompanyId, EmailId, EventKind, NewEmail, Status, Verdict};
use testkit::{START, an_email, at_secs};

use super::stage::{
    REACHABLE, a_company, begun, claim_one, claimed_ids, events, in_status, kinds, read, sent, settle, stored,
};
use crate::{Cancelled, RetriedNow, Settled, Store};

/// In every status: what waits or is claimed is withdrawn, what has ended is not, and says in which status it is.
pub async fn cancel_in_every_status(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in REACHABLE {
        let id = in_status(store, company, status, START).await;
        let before = (read(store, company, id).await, kinds(store, company, id).await);
        let answer = store.cancel(company, id, at_secs(7)).await.expect("a cancel is answered");
        let after = (read(store, company, id).await, kinds(store, company, id).await);
        if status.is_final() {
            assert_eq!(answer, Cancelled::TooLate(status));
            assert_eq!(before, after, "{status}: a refused cancel leaves no trace");
        } else {
            assert_eq!(answer, Cancelled::Done, "{status}");
            assert_eq!((after.0.status, after.0.due_at), (Status::Cancelled, None), "{status}");
            assert_eq!(after.1, [before.1, vec![EventKind::Cancelled]].concat(), "{status}");
            assert_eq!(events(store, company, id).await.last().map(|event| event.at), Some(at_secs(7)));
        }
    }
    assert_eq!(claimed_ids(store, at_secs(7_200), 100).await, [], "nothing of it is ever claimed");
}

/// Once the provider is being called it is too late, and the result stands.
pub async fn cancel_is_too_late_at_the_provider(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    let answer = store.cancel(company, id, START).await.expect("cancel");
    assert_eq!(answer, Cancelled::TooLate(Status::Processing));
    assert_eq!(settle(store, guard, sent(), START).await, Settled::Done(Status::Sent));
    assert_eq!(read(store, company, id).await.status, Status::Sent);
    assert!(!kinds(store, company, id).await.contains(&EventKind::Cancelled));
}

/// An attempt that was given back before or after its begin leaves the email free to be withdrawn.
pub async fn cancel_works_after_a_release(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    settle(store, guard, Verdict::Release { outcome_unknown: false }, START).await;
    claim_one(store, START).await;
    assert_eq!(
        store.cancel(company, id, START).await.expect("cancel"),
        Cancelled::Done,
        "claimed, not begun"
    );
}

/// Many cancels at once: one is done, and there is one line of it.
pub async fn cancel_counts_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let answers =
        super::stage::race(8, |_| async { store.cancel(company, id, START).await.expect("cancel") });
    let done = answers.iter().filter(|answer| **answer == Cancelled::Done).count();
    assert_eq!(done, 1, "{answers:?}");
    assert_eq!(kinds(store, company, id).await, [EventKind::Enqueued, EventKind::Cancelled]);
}

/// Cancel and claim at once: whoever wins, the email is not both withdrawn and sent.
pub async fn cancel_and_claim_agree(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..20 {
        let id = stored(store, an_email(company)).await;
        let outcomes = super::stage::race(2, |task| async move {
            if task == 0 {
                let claims = super::stage::claim(store, START, 1).await;
                let Some(claim) = claims.first() else { return false };
                let start = super::stage::start(claim.guard, START);
                store.begin(start).await.expect("begin") != crate::Begun::Lost
            } else {
                store.cancel(company, id, START).await.expect("cancel") == Cancelled::Done
            }
        });
        assert_ne!(outcomes[0], outcomes[1], "begun and cancelled: {outcomes:?}");
    }
}

/// In every status: what waits becomes due now, everything else says in which status it is.
pub async fn retry_now_in_every_status(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in REACHABLE {
        let id = in_status(store, company, status, START).await;
        let before = (read(store, company, id).await, kinds(store, company, id).await);
        let answer = store.retry_now(company, id, at_secs(7)).await.expect("a retry is answered");
        if status.is_waiting() {
            assert_eq!(answer, RetriedNow::Done, "{status}");
            assert_due_now(store, company, id, &before.1).await;
        } else {
            assert_eq!(answer, RetriedNow::NotWaiting(status));
            let after = (read(store, company, id).await, kinds(store, company, id).await);
            assert_eq!(before, after, "{status}: a refused retry leaves no trace");
        }
    }
}

/// It is ENQUEUED, says that somebody asked, and is claimed at once; then it is out of the way.
async fn assert_due_now(store: &dyn Store, company: CompanyId, id: EmailId, history: &[EventKind]) {
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.due_at), (Status::Enqueued, Some(at_secs(7))));
    assert_eq!(kinds(store, company, id).await, [history, &[EventKind::RetryRequested]].concat());
    let claim = claim_one(store, at_secs(7)).await;
    assert_eq!((claim.id(), claim.attempt), (id, email.attempts + 1), "attempts go on counting");
    let guard = begun(store, claim.guard, at_secs(7)).await;
    settle(store, guard, sent(), at_secs(7)).await;
}

/// Asking for what is due already does not push it back.
pub async fn retry_now_delays_nobody(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, NewEmail { due_at: at_secs(1), ..an_email(company) }).await;
    assert_eq!(store.retry_now(company, id, at_secs(60)).await.expect("retry"), RetriedNow::Done);
    let due_at = read(store, company, id).await.due_at.expect("it waits");
    assert!(due_at <= at_secs(60), "due at {due_at}");
    assert_eq!(claimed_ids(store, at_secs(60), 10).await, [id]);
}
