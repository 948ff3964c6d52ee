//! Every cause of waiting and every end in words.

use std::time::Duration;

use model::email::LastFailure;
use model::{Event, Pause, SuppressionSource};
use testkit::{START, a_company, an_email};

use super::*;
use crate::cli::show::tests::as_stored;

fn in_secs(secs: u64) -> Timestamp {
    START.plus(Duration::from_secs(secs))
}

fn record(status: Status, events: &[EventKind]) -> Record {
    let company = a_company("acme");
    let mut email = as_stored(an_email(company.id), status);
    email.attempts = 1;
    let events = events.iter().map(|kind| Event::new(*kind, START)).collect();
    Record { company, email, events }
}

fn words(record: &Record, stats: QueueStats) -> String {
    words_with(record, stats, None)
}

fn words_with(record: &Record, stats: QueueStats, suppressed: Option<Suppression>) -> String {
    let policies = BTreeMap::from([("fast".to_owned(), RetryPolicy::fast())]);
    let around = Surroundings {
        now: in_secs(60),
        lease_secs: 45,
        dead_letters_kept: Duration::from_secs(7 * 86_400),
        policies: &policies,
        default_policy: "fast",
        stats,
        healths: BTreeMap::from([("main".to_owned(), resting())]),
        provider_rates: &BTreeMap::from([("relay".to_owned(), 14)]),
        suppressed,
    };
    let Explanation { why, next, .. } = explain(record, &around);
    format!("{why} | {next}")
}

fn resting() -> Health {
    let trouble = provider::Trouble::Outage;
    Health::default().after(trouble, "SES_SERVICE_UNAVAILABLE", None, 14, in_secs(50))
}

#[test]
fn a_resting_provider_is_named() {
    let mut record = record(Status::Enqueued, &[EventKind::Enqueued]);
    record.email.due_at = Some(START);
    record.email.route = "main".to_owned();
    let told = words(&record, QueueStats::default());
    assert!(told.contains("Its provider main takes no emails since"), "{told}");
    assert!(told.contains("SES_SERVICE_UNAVAILABLE") && told.contains("looked at again"), "{told}");
    record.email.route = "main>relay".to_owned();
    assert!(words(&record, QueueStats::default()).contains("waits for a worker"), "the other takes it");
}

fn failure() -> Option<LastFailure> {
    let text = |text: &str| text.to_owned();
    let (code, category, reason) = (text("SMTP_TRANSIENT_450"), text("TRANSIENT_ERROR"), text("try later"));
    Some(LastFailure { code, category, reason, at: START })
}

#[test]
fn a_retry_says_what_failed_and_when_it_is_tried_again() {
    let mut record = record(Status::RetryScheduled, &[EventKind::Received, EventKind::RetryScheduled]);
    record.email.last_failure = failure();
    record.email.due_at = Some(in_secs(90));
    let words = words(&record, QueueStats::default());
    assert!(
        words.starts_with("Attempt 1 failed with SMTP_TRANSIENT_450 (TRANSIENT_ERROR): try later."),
        "{words}"
    );
    assert!(words.contains("Attempt 2 of 5 (policy fast) at ") && words.contains("(in 30 s)"), "{words}");
}

#[test]
fn attempts_are_counted_from_the_last_replay_without_those_given_back() {
    use EventKind::{Received, Released, Replayed};
    let mut record = record(Status::Enqueued, &[Received, Received, Replayed, Received, Released, Received]);
    record.email.due_at = Some(START);
    assert!(words(&record, QueueStats::default()).contains("Attempt 2 of 5"));
}

#[test]
fn a_missing_worker_a_limit_and_a_switched_off_company_are_named() {
    let mut record = record(Status::Enqueued, &[EventKind::Enqueued]);
    record.email.due_at = Some(START);
    record.company.settings.rate_per_sec = Some(3);
    let waiting = QueueStats {
        by_status: BTreeMap::from([(Status::Enqueued, 5)]),
        oldest_due_at: Some(START),
        ..QueueStats::default()
    };
    let said = words(&record, waiting.clone());
    assert!(
        said.contains("Others that wait: 4. Being sent right now: 0. Its company is limited to 3 started"),
        "{said}"
    );
    assert!(said.ends_with("something has been due for 1 min. Start one with `posthaste serve`."), "{said}");
    record.company.disabled_at = Some(START);
    assert!(words(&record, waiting).starts_with("Its company, acme, is switched off."));
}

#[test]
fn what_is_held_waits_for_a_person() {
    let mut record = record(Status::RetryScheduled, &[EventKind::OutcomeUnknown]);
    record.email.due_at = Some(Timestamp::NEVER);
    let words = words(&record, QueueStats::default());
    assert!(words.contains("must not be risked") && words.contains("/retry sends it again"), "{words}");
}

#[test]
fn every_status_has_words() {
    for status in Status::ALL {
        let words = words(&record(status, &[]), QueueStats::default());
        assert!(!words.contains("It is S") && words.len() > 40, "{status}: {words}");
    }
}

fn on_the_list() -> Option<Suppression> {
    Some(Suppression {
        address: testkit::an_address("ana@example.com"),
        reason: "hard bounce".to_owned(),
        source: SuppressionSource::Bounce,
        email: None,
        created_at: START,
    })
}

/// A case in words, the status, whether the recipient is suppressed, what else is so, and what must be said.
type Case = (&'static str, Status, bool, fn(&mut Record), &'static [&'static str]);

const WAITING: &[Case] = &[
    (
        "scheduled",
        Status::Enqueued,
        false,
        |record| {
            record.email.scheduled_at = Some(in_secs(3_600));
            record.email.due_at = Some(in_secs(3_600));
        },
        &["It is scheduled for ", "Attempt 1 of 5 (policy fast) at ", "(in 59 min)", "It is given up at "],
    ),
    (
        "paused",
        Status::Enqueued,
        false,
        |record| {
            record.company.pause = Some(Pause { at: START, reason: "5 % of its emails bounced".to_owned() })
        },
        &["Its company, acme, is paused: 5 % of its emails bounced.", "posthaste company resume \"acme\""],
    ),
    (
        "a rate of its provider",
        Status::Enqueued,
        false,
        |record| record.email.route = "relay".to_owned(),
        &["It is due and waits for a worker.", "Its provider relay is given 14 per second at most."],
    ),
    (
        "the first provider rests, the second has a rate",
        Status::Enqueued,
        false,
        |record| record.email.route = "main>relay".to_owned(),
        &["It is due and waits for a worker.", "Its provider relay is given 14 per second at most."],
    ),
    (
        "a retry while its provider rests",
        Status::RetryScheduled,
        false,
        |record| {
            record.email.route = "main".to_owned();
            record.email.last_failure = failure();
            record.email.due_at = Some(in_secs(90));
        },
        &[
            "SMTP_TRANSIENT_450",
            "(in 30 s), unless its provider still rests then. Its provider main takes no",
        ],
    ),
    (
        "suppressed while it waits",
        Status::Enqueued,
        true,
        |_| {},
        &[
            "It will be refused then: the recipient is on the company's suppression list since ",
            "posthaste suppression lift --company \"acme\" ana@example.com",
        ],
    ),
];

const ENDED: &[Case] = &[
    (
        "suppressed",
        Status::Failed,
        true,
        refused,
        &["RECIPIENT_SUPPRESSED", "Still so: the recipient is on", "dlq replay --company \"acme\""],
    ),
    (
        "suppressed no more",
        Status::Failed,
        false,
        refused,
        &["The address is no longer on the list. Send it again with: posthaste dlq replay"],
    ),
    (
        "a dead letter",
        Status::Failed,
        false,
        |record| {
            record.email.last_failure = failure();
            record.email.dead_at = Some(START);
        },
        &[
            "It was given up after 1 attempt: SMTP_TRANSIENT_450",
            "among the dead letters until ",
            "(in 6 d 23 h)",
        ],
    ),
    (
        "dropped",
        Status::Failed,
        false,
        |record| record.email.dead_at = None,
        &["Nothing: it is no longer among the dead letters."],
    ),
    (
        "bounced",
        Status::Bounced,
        true,
        |record| record.email.provider = Some("main".to_owned()),
        &["main reported that it bounced", "No further email goes there: the recipient is on"],
    ),
];

fn refused(record: &mut Record) {
    record.email.last_failure = failure().map(|failure| LastFailure {
        code: "RECIPIENT_SUPPRESSED".to_owned(),
        category: "PERMANENT_ERROR".to_owned(),
        ..failure
    });
    record.email.dead_at = Some(START);
}

/// The promise, case by case: why it waits or ended, and what comes next.
#[test]
fn each_cause_is_told_with_what_comes_next() {
    for (case, status, is_listed, change, parts) in WAITING.iter().chain(ENDED) {
        let mut record = record(*status, &[EventKind::Enqueued]);
        record.email.due_at = Some(START);
        change(&mut record);
        let suppressed = if *is_listed { on_the_list() } else { None };
        let words = words_with(&record, QueueStats::default(), suppressed);
        for part in *parts {
            assert!(words.contains(part), "{case}: {words}");
        }
    }
}

#[test]
fn what_ended_ended_then_whatever_came_after() {
    let mut record = record(Status::Delivered, &[EventKind::Sent, EventKind::Delivered]);
    record.events.push(Event::new(EventKind::Opened, in_secs(30)));
    let policies = BTreeMap::new();
    let around = Surroundings {
        now: in_secs(60),
        lease_secs: 45,
        dead_letters_kept: Duration::from_secs(7 * 86_400),
        policies: &policies,
        default_policy: "fast",
        stats: QueueStats::default(),
        healths: BTreeMap::new(),
        provider_rates: &BTreeMap::new(),
        suppressed: None,
    };
    assert_eq!(explain(&record, &around).since, START);
}
