//! The rules as a table: each case in words, the verdict in short, the events in order.

use model::event::EventKind::{Expired, Failed, LeaseLost, OutcomeUnknown, Released, RetryScheduled, Sent};
use serde_json::{Value, json};

use super::*;
use crate::validate::Validation;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The first attempt at an email that has a day to live.
fn first() -> Facts {
    Facts { attempt: 1, attempt_in_series: 1, unfinished_starts: 1, expires_at: NOW.plus(secs(86_400)) }
}

fn attempt(n: u32) -> Facts {
    Facts { attempt: n, attempt_in_series: n, ..first() }
}

fn replayed() -> Facts {
    Facts { attempt: 7, attempt_in_series: 2, ..first() }
}

fn started(n: u32) -> Facts {
    Facts { unfinished_starts: n, ..attempt(n) }
}

fn expiring_in(seconds: u64, facts: Facts) -> Facts {
    Facts { expires_at: NOW.plus(secs(seconds)), ..facts }
}

fn error(category: Category, taken: Taken) -> Ending {
    Ending::NotSent(SendError {
        code: ErrorCode::new("SMTP_SAYS_NO"),
        category,
        original_code: Some("451".into()),
        retry_after: None,
        detail: "come back later".into(),
        taken,
        trouble: None,
        refused: None,
    })
}

fn refused(category: Category) -> Ending {
    error(category, Taken::No)
}

fn unknown(category: Category) -> Ending {
    error(category, Taken::Unknown)
}

fn asks_to_wait(seconds: u64) -> Ending {
    let Ending::NotSent(error) = refused(Category::Quota) else { unreachable!() };
    Ending::NotSent(SendError { retry_after: Some(secs(seconds)), ..error })
}

fn sent() -> Ending {
    Ending::Sent {
        provider: "main".into(),
        provider_kind: "smtp",
        message_id: Some("m-1".into()),
        duration_ms: 12,
        refused: Vec::new(),
    }
}

fn invalid() -> Ending {
    Ending::Invalid(Invalid {
        validation: Validation::Template,
        failure: failure(ErrorCode::INVALID_TEMPLATE, Category::Validation, "the html has a script"),
    })
}

fn unroutable() -> Ending {
    Ending::Unroutable(failure(ErrorCode::NO_SENDER, Category::Configuration, "no sender"))
}

fn lost(at_provider: bool) -> Ending {
    Ending::LeaseLost { at_provider }
}

fn panicked(at_provider: bool) -> Ending {
    Ending::Panicked { at_provider }
}

fn given_back(at_provider: bool) -> Ending {
    Ending::GivenBack { reason: "shutdown", at_provider }
}

/// A verdict in few words: what, when (seconds from now), under which code, `?` for an unknown outcome.
fn short(verdict: &Verdict) -> String {
    let mark = |unknown: &bool| if *unknown { "?" } else { "" };
    match verdict {
        Verdict::Sent { .. } => "sent".into(),
        Verdict::Retry { due_at, failure, outcome_unknown } => {
            format!("retry{} in {:?} {}", mark(outcome_unknown), due_at.since(NOW), failure.code)
        }
        Verdict::Hold { failure } => format!("hold {}", failure.code),
        Verdict::Fail { failure, outcome_unknown } => {
            format!("fail{} {}", mark(outcome_unknown), failure.code)
        }
        Verdict::Expire { failure } => {
            format!("expire{}", failure.as_ref().map(|f| format!(" {}", f.code)).unwrap_or_default())
        }
        Verdict::Release { outcome_unknown } => format!("release{}", mark(outcome_unknown)),
        Verdict::PutBack { due_at, .. } => format!("put back for {:?}", due_at.since(NOW)),
        Verdict::Requeue { due_at } => format!("requeue in {:?}", due_at.since(NOW)),
    }
}

type Row = (&'static str, Facts, Ending, &'static str, &'static [EventKind]);

fn check(cases: Vec<Row>, policy: &RetryPolicy, on_unknown: OnUnknown) {
    let rules = Rules { policy, on_unknown, dice: 0.0, now: NOW };
    for (case, facts, ending, expected, kinds) in cases {
        let (verdict, events) = conclude(facts, ending, &rules);
        assert_eq!(short(&verdict), expected, "{case}");
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), kinds, "{case}");
    }
}

#[test]
fn what_becomes_of_an_attempt() {
    use Category::*;
    let validated = [EventKind::ValidationFailed, Failed].as_slice();
    let cases: Vec<Row> = vec![
        ("taken", first(), sent(), "sent", &[Sent]),
        ("throttled, tries left", first(), refused(Quota), "retry in 1s SMTP_SAYS_NO", &[RetryScheduled]),
        ("down, second try", attempt(2), refused(Transient), "retry in 5s SMTP_SAYS_NO", &[RetryScheduled]),
        ("timed out, fourth", attempt(4), refused(Timeout), "retry in 120s SMTP_SAYS_NO", &[RetryScheduled]),
        ("down, none left", attempt(5), refused(Transient), "fail SMTP_SAYS_NO", &[Failed]),
        ("a replay counts anew", replayed(), refused(Quota), "retry in 5s SMTP_SAYS_NO", &[RetryScheduled]),
        ("refused for good", first(), refused(Permanent), "fail SMTP_SAYS_NO", &[Failed]),
        ("wrongly configured", first(), refused(Configuration), "fail SMTP_SAYS_NO", &[Failed]),
        ("told to wait", first(), asks_to_wait(90), "retry in 90s SMTP_SAYS_NO", &[RetryScheduled]),
        ("too late to retry", expiring_in(5, attempt(2)), refused(Quota), "expire SMTP_SAYS_NO", &[Expired]),
        ("invalid", first(), invalid(), "fail INVALID_TEMPLATE", validated),
        ("no sender", first(), unroutable(), "fail NO_SENDER", &[Failed]),
        ("overdue before the call", first(), Ending::Overdue, "expire", &[Expired]),
        ("given back", first(), given_back(false), "release", &[Released]),
        ("given back mid-call", first(), given_back(true), "release?", &[OutcomeUnknown, Released]),
    ];
    check(cases, &RetryPolicy::fast(), OnUnknown::Retry);
}

#[test]
fn what_becomes_of_an_unknown_outcome() {
    use Category::*;
    let retried = [OutcomeUnknown, RetryScheduled].as_slice();
    let given_up = [OutcomeUnknown, Failed].as_slice();
    let cases: Vec<Row> = vec![
        ("a report may still come", first(), unknown(Timeout), "retry? in 30s SMTP_SAYS_NO", retried),
        ("the policy waits longer", attempt(4), unknown(Timeout), "retry? in 120s SMTP_SAYS_NO", retried),
        ("it was the last", attempt(5), unknown(Timeout), "fail? OUTCOME_UNKNOWN", given_up),
        ("no time left", expiring_in(30, first()), unknown(Timeout), "fail? OUTCOME_UNKNOWN", given_up),
        ("refused for good, perhaps", first(), unknown(Permanent), "fail? OUTCOME_UNKNOWN", given_up),
    ];
    check(cases, &RetryPolicy::fast(), OnUnknown::Retry);
    let cases: Vec<Row> = vec![
        ("held", first(), unknown(Timeout), "hold OUTCOME_UNKNOWN", &[OutcomeUnknown]),
        ("held, the last one too", attempt(5), unknown(Timeout), "hold OUTCOME_UNKNOWN", &[OutcomeUnknown]),
        ("held at a lost lease", first(), lost(true), "hold OUTCOME_UNKNOWN", &[LeaseLost, OutcomeUnknown]),
        ("held at shutdown", first(), given_back(true), "hold OUTCOME_UNKNOWN", &[OutcomeUnknown]),
        ("known: retried", first(), refused(Quota), "retry in 1s SMTP_SAYS_NO", &[RetryScheduled]),
        ("known: given back", first(), given_back(false), "release", &[Released]),
    ];
    check(cases, &RetryPolicy::fast(), OnUnknown::Hold);
}

#[test]
fn what_becomes_of_a_lost_lease() {
    let retried = [LeaseLost, OutcomeUnknown, RetryScheduled].as_slice();
    let given_up = [LeaseLost, OutcomeUnknown, Failed].as_slice();
    let over = Facts { expires_at: NOW, ..first() };
    let last = Facts { unfinished_starts: 1, ..attempt(5) };
    let cases: Vec<Row> = vec![
        ("before the provider", first(), lost(false), "requeue in 0ns", &[LeaseLost]),
        ("before the provider, overdue", over, lost(false), "expire", &[LeaseLost, Expired]),
        ("before the provider, the last", last, lost(false), "fail LEASE_LOST", &[LeaseLost, Failed]),
        ("before it, thrice", started(3), lost(false), "fail QUARANTINED", &[LeaseLost, Failed]),
        ("at the provider", first(), lost(true), "retry? in 30s LEASE_LOST", retried),
        ("at the provider, again", started(2), lost(true), "retry? in 30s LEASE_LOST", retried),
        ("at the provider, the last", last, lost(true), "fail? OUTCOME_UNKNOWN", given_up),
        ("at the provider, thrice", started(3), lost(true), "fail? QUARANTINED", given_up),
    ];
    check(cases, &RetryPolicy::fast(), OnUnknown::Retry);
}

#[test]
fn what_becomes_of_a_panic() {
    let unknown_again = [OutcomeUnknown, RetryScheduled].as_slice();
    let cases: Vec<Row> = vec![
        ("before the provider", first(), panicked(false), "retry in 1s INTERNAL_ERROR", &[RetryScheduled]),
        ("before it, again", attempt(2), panicked(false), "retry in 5s INTERNAL_ERROR", &[RetryScheduled]),
        ("before it, thrice", attempt(3), panicked(false), "fail QUARANTINED", &[Failed]),
        ("at the provider", first(), panicked(true), "retry? in 30s INTERNAL_ERROR", unknown_again),
        ("at it, thrice", attempt(3), panicked(true), "fail? QUARANTINED", &[OutcomeUnknown, Failed]),
    ];
    check(cases, &RetryPolicy::fast(), OnUnknown::Retry);
}

#[test]
fn the_patient_policy_waits_for_hours() {
    let cases: Vec<Row> = vec![
        ("first", attempt(1), refused(Category::Quota), "retry in 900s SMTP_SAYS_NO", &[RetryScheduled]),
        ("second", attempt(2), refused(Category::Quota), "retry in 3600s SMTP_SAYS_NO", &[RetryScheduled]),
        ("third", attempt(3), refused(Category::Quota), "retry in 21600s SMTP_SAYS_NO", &[RetryScheduled]),
        ("fourth", attempt(4), refused(Category::Quota), "fail SMTP_SAYS_NO", &[Failed]),
    ];
    check(cases, &RetryPolicy::patient(), OnUnknown::Retry);
}

#[test]
fn events_carry_what_was_promised() {
    let policy = RetryPolicy::fast();
    let rules = Rules { policy: &policy, on_unknown: OnUnknown::Retry, dice: 0.0, now: NOW };
    let error =
        json!({"errorCode": "SMTP_SAYS_NO", "errorMessage": "come back later", "originalCode": "451"});
    let with = |category: &str, rest: Value| {
        let mut all = error.clone();
        all["errorCategory"] = json!(category);
        all.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        all
    };
    let cases = [
        (
            first(),
            sent(),
            json!({"providerMessageId": "m-1", "provider": "main", "durationMs": 12, "attempt": 1}),
        ),
        (
            attempt(5),
            refused(Category::Transient),
            with("TRANSIENT_ERROR", json!({"willRetry": false, "attempt": 5})),
        ),
        (
            attempt(2),
            refused(Category::Quota),
            with(
                "QUOTA_ERROR",
                json!({"willRetry": true, "nextAttemptNumber": 3, "backoffDelay": 5000, "attempt": 2}),
            ),
        ),
        (
            expiring_in(5, attempt(2)),
            refused(Category::Quota),
            with(
                "QUOTA_ERROR",
                json!({
                    "attempt": 2,
                    "expiresAt": "2026-01-01T00:00:05.000Z",
                    "wouldRetryAt": "2026-01-01T00:00:05.000Z"
                }),
            ),
        ),
        (
            first(),
            invalid(),
            json!({
                "validation": "TEMPLATE",
                "errorCode": "INVALID_TEMPLATE",
                "errorMessage": "the html has a script",
                "attempt": 1
            }),
        ),
        (first(), lost(false), json!({"attempt": 1, "atProvider": false})),
    ];
    for (facts, ending, expected) in cases {
        let (_, events) = conclude(facts, ending, &rules);
        assert_eq!(Value::Object(events[0].metadata.clone()), expected, "{}", events[0].kind);
    }
}

/// Whatever the dice say, a delay stays within a quarter of the table, no Retry-After is undercut, and an unknown
/// outcome gets its grace.
#[test]
fn jitter_stays_within_its_bounds() {
    let policy = RetryPolicy::fast();
    for step in -100..=100 {
        let dice = f64::from(step) / 100.0;
        let rules = Rules { policy: &policy, on_unknown: OnUnknown::Retry, dice, now: NOW };
        let delay = |facts, ending| match conclude(facts, ending, &rules).0 {
            Verdict::Retry { due_at, .. } => due_at.since(NOW).as_millis(),
            other => panic!("dice {dice}: {other:?}"),
        };
        let plain = delay(attempt(3), refused(Category::Quota));
        assert!((22_500..=37_500).contains(&plain), "dice {dice}: {plain}");
        assert!(delay(attempt(3), asks_to_wait(30)) >= 30_000, "dice {dice}");
        assert!(delay(attempt(3), unknown(Category::Timeout)) >= 30_000, "dice {dice}");
    }
}

/// The store counts the failure for them, not for the email's recipient.
#[test]
fn whom_the_provider_refused_is_told() {
    let Ending::NotSent(error) = refused(Category::Permanent) else { unreachable!() };
    let copy = testkit::an_address("bob@example.com");
    let error = SendError { refused: Some(copy.clone()), ..error };
    assert_eq!(Failure::from(error).refused.as_deref(), Some(&copy));
}
