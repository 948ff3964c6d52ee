//! Laws of settling: every verdict leads to its status, its columns and its events. What comes too late is in
//! `late`, what is held in `hold`.

use model::email::LastFailure;
use model::{Category, ErrorCode, Event, EventKind, Failure, ReportKind, Status, Verdict};
use testkit::{START, a_failure, an_email, at_secs};

use super::dead_letters::replay;
use super::feedback::{report, reported};
use super::stage::{
    a_company, attempted, begun, claim_one, events, fail, read, retry_at, sent, settle, settlement, stored,
};
use crate::{DeadLetterFilter, Settled, Settlement, Store};

/// SENT: when, by whom, and under which id of the provider.
pub async fn sent_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, at_secs(1)).await;
    let verdict = Verdict::Sent {
        provider: "second".into(),
        provider_kind: "smtp",
        message_id: Some("<m-1@relay>".into()),
        duration_ms: 250,
        refused: Vec::new(),
    };
    assert_eq!(settle(store, guard, verdict, at_secs(2)).await, Settled::Done(Status::Sent));
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.sent_at), (Status::Sent, Some(at_secs(2))));
    assert_eq!(email.provider.as_deref(), Some("second"));
    assert_eq!(email.provider_message_id.as_deref(), Some("<m-1@relay>"));
    assert_eq!((email.failed_at, email.dead_at, email.due_at, email.delivered_at), (None, None, None, None));
    assert_eq!((email.attempts, email.outcome_unknown), (1, false));
    assert!(email.version > guard.version);
}

/// A provider that names no id has taken the email all the same.
pub async fn sent_without_an_id_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let verdict = Verdict::Sent {
        provider: "relay".into(),
        provider_kind: "smtp",
        message_id: None,
        duration_ms: 1,
        refused: Vec::new(),
    };
    attempted(store, verdict, START).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.provider_message_id), (Status::Sent, None));
}

/// The id of SES is found in its own column too; the id of another provider is not, also where SES was there before.
pub async fn the_id_of_ses_has_its_own_place(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let sent_by = |provider_kind, message_id: Option<&str>| Verdict::Sent {
        provider: "main".into(),
        provider_kind,
        message_id: message_id.map(str::to_owned),
        duration_ms: 1,
        refused: Vec::new(),
    };
    let cases = [
        ("by SES", sent_by("ses", Some("0100-a")), Some("0100-a"), Some("0100-a")),
        ("by SES, without an id", sent_by("ses", None), None, None),
        ("by another", sent_by("resend", Some("re-1")), Some("re-1"), None),
    ];
    for (case, verdict, provider_message_id, ses_message_id) in cases {
        let id = stored(store, an_email(company)).await;
        attempted(store, verdict, at_secs(1)).await;
        let email = read(store, company, id).await;
        assert_eq!(email.provider_message_id.as_deref(), provider_message_id, "{case}");
        assert_eq!(email.ses_message_id.as_deref(), ses_message_id, "{case}");
    }
    let id = stored(store, an_email(company)).await;
    attempted(store, sent_by("ses", Some("0100-b")), at_secs(1)).await;
    reported(store, report("r1", ReportKind::Failed, id), at_secs(2)).await;
    assert_eq!(read(store, company, id).await.ses_message_id.as_deref(), Some("0100-b"));
    assert_eq!(replay(store, company, &DeadLetterFilter::default(), at_secs(3)).await, 1);
    attempted(store, retry_at(at_secs(4)), at_secs(3)).await;
    assert_eq!(
        read(store, company, id).await.ses_message_id.as_deref(),
        Some("0100-b"),
        "nothing is known yet"
    );
    attempted(store, sent_by("resend", Some("re-2")), at_secs(4)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.provider_message_id.as_deref(), email.ses_message_id), (Some("re-2"), None));
}

/// RETRY_SCHEDULED: due again, with the failure that made it so.
pub async fn retry_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, retry_at(at_secs(30)), at_secs(2)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.due_at), (Status::RetryScheduled, Some(at_secs(30))));
    assert_eq!((email.attempts, email.outcome_unknown), (1, false));
    assert_eq!((email.sent_at, email.failed_at, email.dead_at), (None, None, None));
    let expected = LastFailure {
        code: "NETWORK_ERROR".into(),
        category: "TRANSIENT_ERROR".into(),
        reason: a_failure("NETWORK_ERROR").message,
        at: at_secs(2),
    };
    assert_eq!(email.last_failure, Some(expected));
    assert_eq!(email.provider.as_deref(), Some("relay"), "the provider of the last attempt");
}

/// FAILED: given up, a dead letter from now on.
pub async fn failed_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let failure = Failure {
        code: ErrorCode::from_string("SMTP_REJECTED_550".into()),
        category: Category::Permanent,
        message: "no such user".into(),
        original_code: Some("550 5.1.1".into()),
        retry_after: None,
        refused: None,
    };
    attempted(store, Verdict::Fail { failure, outcome_unknown: false }, at_secs(2)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.failed_at), (Status::Failed, Some(at_secs(2))));
    assert_eq!((email.dead_at, email.due_at), (Some(at_secs(2)), None));
    let failure = email.last_failure.expect("it says why");
    assert_eq!((failure.code.as_str(), failure.category.as_str()), ("SMTP_REJECTED_550", "PERMANENT_ERROR"));
    assert_eq!((failure.reason.as_str(), failure.at), ("no such user", at_secs(2)));
    assert!(!email.outcome_unknown);
}

/// EXPIRED by a worker: with the failure that used up the time, if there was one.
pub async fn expired_is_recorded(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for failure in [None, Some(a_failure("SMTP_TRANSIENT_450"))] {
        let id = stored(store, an_email(company)).await;
        attempted(store, Verdict::Expire { failure: failure.clone() }, at_secs(2)).await;
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.due_at, email.sent_at), (Status::Expired, None, None));
        assert_eq!(email.dead_at, None, "no dead letter: it cannot be replayed");
        let code = email.last_failure.map(|failure| failure.code);
        assert_eq!(code.as_deref(), failure.as_ref().map(|failure| failure.code.as_str()));
    }
}

/// What is put back untouched waits for its later turn as if it had never been claimed: no attempt counts, and
/// the starts that nobody finished are as many as before.
pub async fn what_is_put_back_was_never_claimed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    claim_one(store, START).await;
    let lost = store.lost_leases(at_secs(3_600), 10).await.expect("lost leases").remove(0);
    let requeue = Verdict::Requeue { due_at: at_secs(3_600) };
    store.settle(super::stage::swept(&lost, requeue, at_secs(3_600))).await.expect("swept");
    for round in 0..3 {
        let now = at_secs(3_600 + round * 10);
        let claim = claim_one(store, now).await;
        assert_eq!((claim.attempt, claim.attempt_in_series, claim.unfinished_starts), (2, 2, 1));
        let put_back = Verdict::PutBack { due_at: at_secs(3_605 + round * 10), route: None };
        assert_eq!(settle(store, claim.guard, put_back, now).await, Settled::Done(Status::Enqueued));
        let email = read(store, company, id).await;
        assert_eq!((email.attempts, email.due_at), (1, Some(at_secs(3_605 + round * 10))));
    }
}

/// A release gives the attempt back, in both counts, and the email is due at once.
pub async fn a_release_gives_the_attempt_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, retry_at(at_secs(1)), START).await;
    for round in 0..3 {
        let now = at_secs(10 + round);
        let claim = claim_one(store, now).await;
        assert_eq!((claim.attempt, claim.attempt_in_series, claim.unfinished_starts), (2, 2, 0));
        let release = Verdict::Release { outcome_unknown: false };
        assert_eq!(settle(store, claim.guard, release, now).await, Settled::Done(Status::Enqueued));
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.attempts), (Status::Enqueued, 1));
        assert!(email.due_at.is_some_and(|due_at| due_at <= now), "due at once: {:?}", email.due_at);
        assert!(!email.outcome_unknown);
    }
}

/// A requeue is due when it says, and its attempt stands.
pub async fn a_requeue_keeps_the_attempt(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let requeue = Verdict::Requeue { due_at: at_secs(20) };
    assert_eq!(settle(store, claim.guard, requeue, at_secs(2)).await, Settled::Done(Status::Enqueued));
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.attempts, email.due_at), (Status::Enqueued, 1, Some(at_secs(20))));
    assert_eq!(super::stage::claimed_ids(store, at_secs(19), 10).await, []);
    assert_eq!(claim_one(store, at_secs(20)).await.attempt, 2);
}

/// That an outcome was unknown once is known for ever, whatever comes after.
pub async fn an_unknown_outcome_stays_on_record(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let unknown = [
        Verdict::Retry { due_at: at_secs(1), failure: a_failure("SMTP_TIMEOUT"), outcome_unknown: true },
        Verdict::Release { outcome_unknown: true },
    ];
    for verdict in unknown {
        let id = stored(store, an_email(company)).await;
        attempted(store, verdict, START).await;
        assert!(read(store, company, id).await.outcome_unknown);
        attempted(store, retry_at(at_secs(2)), at_secs(1)).await;
        assert!(read(store, company, id).await.outcome_unknown, "a known outcome later does not undo it");
        attempted(store, sent(), at_secs(2)).await;
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.outcome_unknown), (Status::Sent, true));
    }
    let id = stored(store, an_email(company)).await;
    let failed = Verdict::Fail { failure: a_failure("OUTCOME_UNKNOWN"), outcome_unknown: true };
    attempted(store, failed, START).await;
    assert!(read(store, company, id).await.outcome_unknown);
}

/// The last failure is the last one; a later success leaves it on record.
pub async fn the_last_failure_is_the_last(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, retry_at(at_secs(1)), START).await;
    let other =
        Verdict::Retry { due_at: at_secs(2), failure: a_failure("SMTP_TIMEOUT"), outcome_unknown: false };
    attempted(store, other, at_secs(1)).await;
    let failure = read(store, company, id).await.last_failure.expect("it failed");
    assert_eq!((failure.code.as_str(), failure.at), ("SMTP_TIMEOUT", at_secs(1)));
    attempted(store, fail("SMTP_REJECTED_554"), at_secs(2)).await;
    let failure = read(store, company, id).await.last_failure.expect("it failed");
    assert_eq!((failure.code.as_str(), failure.at), ("SMTP_REJECTED_554", at_secs(2)));
}

/// Events are kept in the order they are given in, with their own times and metadata, for every verdict.
pub async fn events_are_kept_as_given(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let verdicts = [
        retry_at(at_secs(1_000)),
        super::stage::hold(),
        Verdict::Expire { failure: None },
        Verdict::Requeue { due_at: at_secs(1_000) },
        fail("SMTP_REJECTED_550"),
        sent(),
    ];
    for verdict in verdicts {
        let id = stored(store, an_email(company)).await;
        let claim = claim_one(store, START).await;
        let guard = begun(store, claim.guard, START).await;
        let given = vec![
            Event::new(EventKind::LeaseLost, at_secs(3)).with("worker", "w-1"),
            Event::new(EventKind::OutcomeUnknown, at_secs(3)).with("attempt", 1).with("none", ()),
            Event::new(EventKind::RetryScheduled, at_secs(2))
                .with("willRetry", true)
                .with("backoffDelay", 1_250.5)
                .with("errorMessage", "it's \"so\" — é\n"),
        ];
        let settlement = settlement(guard, verdict.clone(), at_secs(4));
        let settled = store.settle(Settlement { events: given.clone(), ..settlement }).await;
        assert!(matches!(settled, Ok(Settled::Done(_))), "{verdict:?}");
        let kept = events(store, company, id).await;
        assert_eq!(kept[kept.len() - given.len()..], given, "{verdict:?}");
        assert_eq!(kept.len(), 4 + given.len(), "and nothing besides: {verdict:?}");
    }
}

/// What was settled is settled: the same settlement again changes nothing and gets the same answer.
pub async fn a_settlement_counts_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    let settlement = settlement(guard, retry_at(at_secs(60)), START);
    let settled = store.settle(settlement.clone()).await.expect("settle");
    assert_eq!(settled, Settled::Done(Status::RetryScheduled));
    let recorded = (read(store, company, id).await, events(store, company, id).await);
    for _twice in 0..2 {
        assert_eq!(store.settle(settlement.clone()).await.expect("settle"), settled);
        assert_eq!((read(store, company, id).await, events(store, company, id).await), recorded);
    }
}
