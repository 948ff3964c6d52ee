//! Laws of the start of an attempt: nothing may be sent unless the store said `Yes`, and it says so only to the
//! one who holds the email.

use model::{Event, EventKind, Guard, Status, Verdict};
use testkit::{START, an_email, at_secs};

use super::stage::{
    LEASE, a_company, begun, claim_one, events, kinds, lost_leases, read, sent, settle, start, stored, swept,
};
use crate::{AttemptStart, Begun, Cancelled, Settled, Store};

/// A begin keeps the provider and its events, as they were given, and hands out the guard for what follows.
pub async fn a_begin_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let given = vec![
        Event::new(EventKind::Validated, at_secs(1)).with("durationMs", 3),
        Event::new(EventKind::SentAttempt, at_secs(2)).with("provider", "relay").with("attempt", 1),
    ];
    let start = AttemptStart { events: given.clone(), ..start(claim.guard, at_secs(2)) };
    let begun = store.begin(start).await.expect("begin");
    let email = read(store, company, id).await;
    assert_eq!(begun, Begun::Yes(Guard { id, fence: claim.guard.fence, version: email.version }));
    assert!(email.version > claim.guard.version, "what was handed out before the begin is outdated");
    assert_eq!((email.status, email.attempts), (Status::Processing, 1));
    assert_eq!(email.provider.as_deref(), Some("relay"));
    assert_eq!(events(store, company, id).await[2..], given);
}

/// The guard of the claim begins one attempt, not two.
pub async fn an_attempt_begins_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    begun(store, claim.guard, START).await;
    let before = (read(store, company, id).await, kinds(store, company, id).await);
    assert_eq!(store.begin(start(claim.guard, START)).await.expect("begin"), Begun::Lost);
    let after = (read(store, company, id).await, kinds(store, company, id).await);
    assert_eq!(before, after, "a refused begin leaves no trace");
    // Who was not told that it began, and asked again, gives it back so.
    let guard = Guard { version: claim.guard.version + 1, ..claim.guard };
    let settled = settle(store, guard, Verdict::Release { outcome_unknown: false }, START).await;
    assert_eq!(settled, Settled::Done(Status::Enqueued));
}

/// The guard of one claim begins one attempt, also when it is used many times at once.
pub async fn an_attempt_begins_once_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..5 {
        stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let answers = super::stage::race(8, |_| async { store.begin(start(claim.guard, START)).await });
        let yes = answers.iter().filter(|answer| matches!(answer, Ok(Begun::Yes(_)))).count();
        assert_eq!(yes, 1, "{answers:?}");
    }
}

/// What was cancelled is not begun.
pub async fn the_cancelled_is_not_begun(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    assert_eq!(store.cancel(company, id, START).await.expect("cancel"), Cancelled::Done);
    assert_eq!(store.begin(start(claim.guard, START)).await.expect("begin"), Begun::Lost);
    assert_eq!(read(store, company, id).await.status, Status::Cancelled);
    let expected = [EventKind::Enqueued, EventKind::Received, EventKind::Cancelled];
    assert_eq!(kinds(store, company, id).await, expected);
}

/// Cancel and begin at once: one of them wins, never both.
pub async fn cancel_and_begin_do_not_both_win(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..20 {
        let id = stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let wins = super::stage::race(2, |task| async move {
            if task == 0 {
                let begun = store.begin(start(claim.guard, START)).await.expect("begin");
                begun != Begun::Lost
            } else {
                store.cancel(company, id, START).await.expect("cancel") == Cancelled::Done
            }
        });
        assert_ne!(wins[0], wins[1], "begun and cancelled: {wins:?}");
        let expected = if wins[0] { Status::Processing } else { Status::Cancelled };
        assert_eq!(read(store, company, id).await.status, expected);
    }
}

/// A worker that was taken over begins nothing, neither before nor after its successor did.
pub async fn who_was_taken_over_begins_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let first = claim_one(store, START).await;
    let late = START.plus(LEASE).plus(LEASE);
    let lost = lost_leases(store, late).await;
    let requeue = Verdict::Requeue { due_at: late };
    assert!(matches!(store.settle(swept(&lost[0], requeue, late)).await, Ok(Settled::Done(_))));
    assert_eq!(store.begin(start(first.guard, late)).await.expect("begin"), Begun::Lost, "given back");

    let second = claim_one(store, late).await;
    assert_eq!(
        store.begin(start(first.guard, late)).await.expect("begin"),
        Begun::Lost,
        "claimed by another"
    );
    let outdated = Guard { version: second.guard.version, ..first.guard };
    assert_eq!(
        store.begin(start(outdated, late)).await.expect("begin"),
        Begun::Lost,
        "old fence, new version"
    );
    let outdated = Guard { fence: second.guard.fence, ..first.guard };
    assert_eq!(
        store.begin(start(outdated, late)).await.expect("begin"),
        Begun::Lost,
        "new fence, old version"
    );

    let guard = begun(store, second.guard, late).await;
    assert_eq!(store.begin(start(first.guard, late)).await.expect("begin"), Begun::Lost, "begun by another");
    assert_eq!(settle(store, guard, sent(), late).await, Settled::Done(Status::Sent));
    assert_eq!(read(store, company, id).await.status, Status::Sent);
}

/// What has ended is not begun, nor what never was.
pub async fn the_finished_and_the_unknown_are_not_begun(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    assert_eq!(settle(store, guard, sent(), START).await, Settled::Done(Status::Sent));
    let email = read(store, company, id).await;
    let current = Guard { id, fence: email.fence, version: email.version };
    let unknown = Guard { id: an_email(company).id, ..claim.guard };
    for guard in [claim.guard, guard, current, unknown] {
        assert_eq!(store.begin(start(guard, START)).await.expect("begin"), Begun::Lost);
    }
    assert_eq!(read(store, company, id).await, email);
}
