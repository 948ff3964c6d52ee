//! `posthaste explain ID`: why an email is where it is, since when, and what comes next, in words.

use std::collections::BTreeMap;

use anyhow::Context as _;
use gateway::health::Health;
use gateway::standing::{healths, standstill};
use model::{EmailId, EventKind, RetryPolicy, Status, Timestamp};
use serde_json::json;
use store::QueueStats;

use super::out::{distance, duration, moment};
use super::show::{Record, find};
use super::{Session, parse_id};

/// Due for longer than this with nobody at work: there is no worker.
const WORKER_MISSED_AFTER_SECS: u64 = 30;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_parser = parse_id)]
    id: EmailId,
}

/// What the words are made of, besides the email itself.
struct Surroundings<'a> {
    now: Timestamp,
    lease_secs: u64,
    dead_letters_days: u64,
    policies: &'a BTreeMap<String, RetryPolicy>,
    default_policy: &'a str,
    stats: QueueStats,
    healths: BTreeMap<String, Health>,
}

#[derive(Debug, PartialEq, Eq)]
struct Explanation {
    why: String,
    since: Timestamp,
    next: String,
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let store = session.store().await?;
    let record = find(&*store, args.id).await?.with_context(|| format!("there is no email {}", args.id))?;
    let config = &session.loaded.config;
    let now = session.now();
    let around = Surroundings {
        now,
        lease_secs: config.lease.as_secs(),
        dead_letters_days: config.retention.dead_letters.as_secs() / 86_400,
        policies: &config.retry_policies,
        default_policy: &config.default_retry_policy,
        stats: store.stats(now).await?,
        healths: healths(&*store).await?,
    };
    store.close().await;
    let Explanation { why, since, next } = explain(&record, &around);
    let email = &record.email;
    let json = json!({
        "id": email.id.to_string(),
        "status": email.status.as_str(),
        "why": why,
        "since": since.to_string(),
        "next": next,
    });
    let lines = format!(
        "{} is {}\n\nwhy    {why}\nsince  {}\nnext   {next}",
        email.id,
        email.status,
        moment(since, now)
    );
    session.out.result(&json, lines)?;
    Ok(())
}

fn explain(record: &Record, around: &Surroundings<'_>) -> Explanation {
    let email = &record.email;
    let last = record.events.last().map_or(email.created_at, |event| event.at);
    let (why, since, next) = match email.status {
        Status::Accepted => (
            "It was stored as handed in, and its content is still to be checked.".to_owned(),
            email.created_at,
            format!("A worker process checks it and lets it into the queue. {}", nobody(around)),
        ),
        Status::Enqueued | Status::RetryScheduled => waiting(record, around, last),
        Status::Processing => (
            format!("A worker holds it for attempt {}{}.", email.attempts, at_provider(record)),
            last,
            format!(
                "The provider has 30 seconds to answer. Should the worker have died, another takes over within \
                 {} seconds.",
                around.lease_secs
            ),
        ),
        Status::Sent => (
            format!("{} took it{}.", provider(record), message_id(record)),
            email.sent_at.unwrap_or(last),
            "Nothing. If the provider reports a delivery, bounce or complaint, it is recorded.".to_owned(),
        ),
        Status::Failed => failed(record, around, last),
        other => ended(other, record, last),
    };
    Explanation { why, since, next: next.trim_end().to_owned() }
}

fn waiting(record: &Record, around: &Surroundings<'_>, last: Timestamp) -> (String, Timestamp, String) {
    let email = &record.email;
    let due_at = email.due_at.unwrap_or(email.created_at);
    if due_at >= Timestamp::NEVER {
        let why =
            "Nobody knows whether the provider took the last attempt, and a second copy must not be risked.";
        let next = format!(
            "It waits for the provider's report or for a person: POST /v1/emails/{}/retry sends it again.",
            email.id
        );
        return (why.to_owned(), last, next);
    }
    if record.company.disabled_at.is_some() {
        let why = format!("Its company, {}, is switched off.", record.company.name);
        return (
            why,
            last,
            "It is sent when the company is switched on again, unless it expires before.".to_owned(),
        );
    }
    let give_up =
        format!("It is given up at {} if it was not sent by then.", moment(email.expires_at, around.now));
    if due_at > around.now {
        let why = match (&email.last_failure, email.scheduled_at) {
            (Some(failure), _) => {
                format!(
                    "Attempt {} failed with {} ({}): {}.",
                    email.attempts, failure.code, failure.category, failure.reason
                )
            }
            (None, Some(at)) => format!("It is scheduled for {at}."),
            (None, None) => "It is not due yet.".to_owned(),
        };
        let next = format!("{} at {}. {give_up}", next_attempt(record, around), moment(due_at, around.now));
        return (why, last, next);
    }
    if let Some((provider, rest)) = standstill(&email.route, &around.healths) {
        let why = format!(
            "Its provider {provider} takes no emails since {}: {}. This costs the email no attempt.",
            moment(rest.since, around.now),
            rest.code
        );
        let look = moment(rest.next_probe_at, around.now);
        return (why, rest.since, format!("The provider is looked at again at {look}. {give_up}"));
    }
    let others = around.stats.waiting().saturating_sub(1);
    let busy = around.stats.by_status.get(&Status::Processing).copied().unwrap_or(0);
    let ahead = format!(
        "It is due and waits for a worker. Others that wait: {others}. Being sent right now: {busy}. {}",
        limits(record)
    );
    (
        ahead.trim_end().to_owned(),
        due_at,
        format!("{} as soon as a worker is free. {give_up} {}", next_attempt(record, around), nobody(around)),
    )
}

/// What may hold back a company's emails although workers are free.
fn limits(record: &Record) -> String {
    let settings = &record.company.settings;
    let in_flight = settings.concurrency_max.map(|limit| format!("{limit} in flight at once"));
    let per_second = settings.rate_per_sec.map(|limit| format!("{limit} started per second"));
    let limits: Vec<String> = in_flight.into_iter().chain(per_second).collect();
    match limits.is_empty() {
        true => String::new(),
        false => format!("Its company is limited to {}.", limits.join(" and ")),
    }
}

/// Which attempt comes next, and how many there may be.
fn next_attempt(record: &Record, around: &Surroundings<'_>) -> String {
    let email = &record.email;
    let chosen = email.wishes.retry_policy.as_ref().or(record.company.settings.retry_policy.as_ref());
    let name = chosen.map_or(around.default_policy, String::as_str);
    let since_replay = record.events.iter().rev().take_while(|event| event.kind != EventKind::Replayed);
    // An attempt that was given back at a shutdown does not count.
    let made = since_replay.fold(0_i64, |made, event| match event.kind {
        EventKind::Received => made + 1,
        EventKind::Released => made - 1,
        _ => made,
    });
    match around.policies.get(name) {
        Some(policy) => format!("Attempt {} of {} (policy {name})", made + 1, policy.max_attempts),
        None => format!("Attempt {}", made + 1),
    }
}

/// A word about workers that do not seem to be there.
fn nobody(around: &Surroundings<'_>) -> String {
    let busy = around.stats.by_status.get(&Status::Processing).copied().unwrap_or(0) > 0;
    let oldest = around
        .stats
        .oldest_due_at
        .map(|at| around.now.since(at))
        .filter(|age| age.as_secs() >= WORKER_MISSED_AFTER_SECS);
    match oldest {
        Some(age) if !busy => format!(
            "No worker seems to be running: something has been due for {}. Start one with `posthaste serve`.",
            duration(age)
        ),
        _ => String::new(),
    }
}

fn failed(record: &Record, around: &Surroundings<'_>, last: Timestamp) -> (String, Timestamp, String) {
    let email = &record.email;
    let reason = match &email.last_failure {
        Some(failure) => format!("{} ({}): {}", failure.code, failure.category, failure.reason),
        None => "no reason was recorded".to_owned(),
    };
    let attempts =
        if email.attempts == 1 { "1 attempt".to_owned() } else { format!("{} attempts", email.attempts) };
    let why = format!("It was given up after {attempts}: {reason}.");
    let next = match email.dead_at {
        Some(_) => format!(
            "It is among the dead letters for {} days. Send it again with: posthaste dlq replay --company {:?} {}",
            around.dead_letters_days, record.company.name, email.id
        ),
        None => "Nothing: it is no longer among the dead letters.".to_owned(),
    };
    (why, email.failed_at.unwrap_or(last), next)
}

fn ended(status: Status, record: &Record, last: Timestamp) -> (String, Timestamp, String) {
    let email = &record.email;
    let failure = email
        .last_failure
        .as_ref()
        .map(|failure| format!(" ({}: {})", failure.code, failure.reason))
        .unwrap_or_default();
    let why = match status {
        Status::Delivered => format!("{} reported it delivered.", provider(record)),
        Status::Bounced => format!("{} reported that it bounced{failure}.", provider(record)),
        Status::Complained => format!("{} reported a complaint by the recipient.", provider(record)),
        Status::Invalid => format!("Its content was refused{failure}."),
        Status::Expired => format!(
            "It was not sent within its time to live, which ended {}{failure}.",
            distance(email.expires_at, last.max(email.expires_at))
        ),
        Status::Cancelled => "The company withdrew it before it was sent.".to_owned(),
        other => format!("It is {other}."),
    };
    (why, email.delivered_at.unwrap_or(last), "Nothing: this is its end.".to_owned())
}

fn provider(record: &Record) -> &str {
    record.email.provider.as_deref().unwrap_or("The provider")
}

fn message_id(record: &Record) -> String {
    record.email.provider_message_id.as_ref().map(|id| format!(" under the id {id}")).unwrap_or_default()
}

fn at_provider(record: &Record) -> &'static str {
    let called = record.events.last().is_some_and(|event| event.kind == EventKind::SentAttempt);
    if called { ", which is at the provider right now" } else { "" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::Event;
    use model::email::LastFailure;
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
        let policies = BTreeMap::from([("fast".to_owned(), RetryPolicy::fast())]);
        let around = Surroundings {
            now: in_secs(60),
            lease_secs: 45,
            dead_letters_days: 7,
            policies: &policies,
            default_policy: "fast",
            stats,
            healths: BTreeMap::from([("main".to_owned(), resting())]),
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
        let (code, category, reason) =
            (text("SMTP_TRANSIENT_450"), text("TRANSIENT_ERROR"), text("try later"));
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
        let mut record =
            record(Status::Enqueued, &[Received, Received, Replayed, Received, Released, Received]);
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
            dead_letters: 0,
        };
        let said = words(&record, waiting.clone());
        assert!(
            said.contains(
                "Others that wait: 4. Being sent right now: 0. Its company is limited to 3 started"
            ),
            "{said}"
        );
        assert!(
            said.ends_with("something has been due for 1 min. Start one with `posthaste serve`."),
            "{said}"
        );
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
}
