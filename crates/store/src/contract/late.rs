//! Laws of the late: a worker that lost its email can change nothing, whatever it brings. What it found out is
//! kept as a LATE_RESULT event, so that the provider's reports still find the email.

use model::{Claim, CompanyId, EmailId, Event, EventKind, Guard, Status, Verdict};
use testkit::{START, a_failure, an_email, at_secs};

use super::stage::{
    LEASE, a_company, begun, claim_one, events, fail, hold, kinds, lost_leases, read, retry_at, sent, settle,
    stored, swept,
};
use crate::{Cancelled, Settled, Store};

/// Whatever a worker says after its email went to another, the other keeps it and can finish it.
pub async fn the_taken_over_changes_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (number, verdict) in every_verdict().into_iter().enumerate() {
        let now = at_secs(1_000 * u64::try_from(number).expect("few verdicts"));
        let (id, stale, owner) = taken_over(store, company, now).await;
        let now = owner.claimed_at;
        let before = (read(store, company, id).await, kinds(store, company, id).await);
        assert_eq!(settle(store, stale, verdict.clone(), now).await, Settled::Late, "{verdict:?}");
        assert_eq!(read(store, company, id).await, before.0, "{verdict:?}");
        let expected = [before.1, vec![EventKind::LateResult]].concat();
        assert_eq!(kinds(store, company, id).await, expected, "{verdict:?}");

        let guard = begun(store, owner.guard, now).await;
        assert_eq!(settle(store, stale, verdict.clone(), now).await, Settled::Late, "again: {verdict:?}");
        assert_eq!(settle(store, guard, sent(), now).await, Settled::Done(Status::Sent), "{verdict:?}");
        assert_eq!(
            settle(store, stale, verdict.clone(), now).await,
            Settled::Late,
            "at the end: {verdict:?}"
        );
        assert_eq!(read(store, company, id).await.status, Status::Sent, "{verdict:?}");
    }
}

/// The provider's id for an email that was sent too late is in the history, not in the email's row.
pub async fn a_late_send_keeps_its_provider_id(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let (id, stale, owner) = taken_over(store, company, START).await;
    let verdict = Verdict::Sent {
        provider: "relay".into(),
        provider_kind: "smtp",
        message_id: Some("late-77".into()),
        duration_ms: 9,
        refused: vec![a_failure("SMTP_REJECTED_550")],
    };
    let now = owner.claimed_at;
    assert_eq!(settle(store, stale, verdict, now).await, Settled::Late);
    let late = last_event(store, company, id).await;
    assert_eq!((late.kind, late.at), (EventKind::LateResult, now));
    assert!(late.metadata.values().any(|value| value == "late-77"), "{:?}", late.metadata);
    assert_eq!(late.metadata["copiesRefused"][0]["errorCode"], "SMTP_REJECTED_550");
    assert_eq!(read(store, company, id).await.provider_message_id, None);
}

/// The guard from before the begin settles nothing any more, whatever the verdict; the one from the begin does.
pub async fn an_outdated_version_settles_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for verdict in every_verdict() {
        let id = stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let guard = begun(store, claim.guard, START).await;
        let email = read(store, company, id).await;
        assert_eq!(settle(store, claim.guard, verdict.clone(), START).await, Settled::Late, "{verdict:?}");
        assert_eq!(read(store, company, id).await, email, "{verdict:?}");
        assert_eq!(last_event(store, company, id).await.kind, EventKind::LateResult, "{verdict:?}");
        assert_eq!(settle(store, guard, sent(), START).await, Settled::Done(Status::Sent), "{verdict:?}");
    }
}

/// A result that comes after the email was given up, cancelled or held is late too.
pub async fn what_has_ended_stays_ended(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for verdict in [fail("QUARANTINED"), Verdict::Expire { failure: None }, hold(), retry_at(at_secs(9_000))]
    {
        let id = stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let guard = begun(store, claim.guard, START).await;
        let late = START.plus(LEASE).plus(LEASE);
        let lost = lost_leases(store, late).await;
        let swept = store.settle(swept(&lost[0], verdict.clone(), late)).await.expect("settle");
        assert!(matches!(swept, Settled::Done(_)), "{verdict:?}");
        let email = read(store, company, id).await;
        assert_eq!(settle(store, guard, sent(), late).await, Settled::Late, "{verdict:?}");
        assert_eq!(read(store, company, id).await, email, "{verdict:?}");
    }
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    assert_eq!(store.cancel(company, id, START).await.expect("cancel"), Cancelled::Done);
    assert_eq!(settle(store, claim.guard, sent(), START).await, Settled::Late);
    assert_eq!(read(store, company, id).await.status, Status::Cancelled);
}

/// A result for an email that is not there is late, and no error.
pub async fn a_result_for_nothing_is_late(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let guard = Guard { id: an_email(company).id, fence: 1, version: 1 };
    assert_eq!(settle(store, guard, sent(), START).await, Settled::Late);
}

/// A worker that has not heard that its email is recorded as sent reports it again: that is no late result, and no second
/// one. Another report under the same guard is.
pub async fn a_report_made_again_is_recorded_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let guard = begun(store, claim_one(store, START).await.guard, START).await;
    let report = super::stage::settlement(guard, sent(), at_secs(1));
    assert_eq!(store.settle(report.clone()).await, Ok(Settled::Done(Status::Sent)));
    let recorded = (read(store, company, id).await, kinds(store, company, id).await);
    assert_eq!(store.settle(report).await, Ok(Settled::Done(Status::Sent)));
    assert_eq!((read(store, company, id).await, kinds(store, company, id).await), recorded);
    assert_eq!(settle(store, guard, sent(), at_secs(2)).await, Settled::Late);
    assert_eq!(last_event(store, company, id).await.kind, EventKind::LateResult);
}

/// So is any other end that was recorded, as long as nothing else has happened to the email. What another has made of it
/// since then stays, and the report is late.
pub async fn an_end_told_again_is_recorded_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let put_back = Verdict::PutBack { due_at: at_secs(9_000), route: None };
    let ends = every_verdict()
        .into_iter()
        .chain([put_back, Verdict::Fail { failure: a_failure("A"), outcome_unknown: true }]);
    for verdict in ends {
        let id = stored(store, an_email(company)).await;
        let guard = begun(store, claim_one(store, START).await.guard, START).await;
        let report = super::stage::settlement(guard, verdict.clone(), at_secs(1));
        let told = store.settle(report.clone()).await.expect("settle");
        assert!(matches!(told, Settled::Done(_)), "{verdict:?}");
        let recorded = (read(store, company, id).await, kinds(store, company, id).await);
        for _twice in 0..2 {
            assert_eq!(store.settle(report.clone()).await, Ok(told), "{verdict:?}");
            assert_eq!(
                (read(store, company, id).await, kinds(store, company, id).await),
                recorded,
                "{verdict:?}"
            );
        }
        let other = super::stage::settlement(guard, verdict.clone(), at_secs(2));
        assert_eq!(store.settle(other).await, Ok(Settled::Late), "another moment, {verdict:?}");
        if store.cancel(company, id, at_secs(1)).await == Ok(Cancelled::Done) {
            assert_eq!(store.settle(report).await, Ok(Settled::Late), "cancelled since, {verdict:?}");
            assert_eq!(last_event(store, company, id).await.kind, EventKind::LateResult, "{verdict:?}");
        }
    }
}

/// A worker that settles while the sweep does: one of them wins, and the email has one end.
pub async fn worker_and_sweep_do_not_both_win(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for round in 0..20 {
        let id = stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let guard = begun(store, claim.guard, START).await;
        let late = START.plus(LEASE).plus(LEASE);
        let lost = lost_leases(store, late).await.remove(0);
        let settlements =
            [super::stage::settlement(guard, sent(), late), swept(&lost, fail("QUARANTINED"), late)];
        let settled = super::stage::race(2, |task| {
            let settlement = settlements[task].clone();
            async { store.settle(settlement).await.expect("settle") }
        });
        let status = read(store, company, id).await.status;
        let expected = if settled[0] == Settled::Late {
            [Settled::Late, Settled::Done(Status::Failed)]
        } else {
            [Settled::Done(Status::Sent), Settled::Late]
        };
        assert_eq!(settled, expected, "round {round}");
        assert!(settled.contains(&Settled::Done(status)), "round {round}: {status}");
    }
}

/// An email whose first worker began it and lost it to a second: its id, the first one's guard, the second's claim.
async fn taken_over(store: &dyn Store, company: CompanyId, now: model::Timestamp) -> (EmailId, Guard, Claim) {
    let id = stored(store, testkit::an_email_at(company, now)).await;
    let first = claim_one(store, now).await;
    let stale = begun(store, first.guard, now).await;
    let late = now.plus(LEASE).plus(LEASE);
    let lost = lost_leases(store, late).await;
    assert_eq!(lost.len(), 1, "{lost:?}");
    let settled = store.settle(swept(&lost[0], retry_at(late), late)).await.expect("settle");
    assert_eq!(settled, Settled::Done(Status::RetryScheduled));
    (id, stale, claim_one(store, late).await)
}

fn every_verdict() -> [Verdict; 7] {
    [
        sent(),
        retry_at(at_secs(100_000)),
        hold(),
        fail("SMTP_REJECTED_550"),
        Verdict::Expire { failure: None },
        Verdict::Release { outcome_unknown: false },
        Verdict::Requeue { due_at: START },
    ]
}

async fn last_event(store: &dyn Store, company: CompanyId, id: EmailId) -> Event {
    events(store, company, id).await.pop().expect("there is a history")
}
