//! `posthaste explain ID`: why an email is where it is, since when, and what comes next, in words.

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use anyhow::Context as _;
use gateway::gates::providers_of;
use gateway::health::{Health, Rest};
use gateway::standing::{healths, standstill};
use model::{EmailId, ErrorCode, EventKind, RetryPolicy, Status, Suppression, Timestamp};
use serde_json::json;
use store::QueueStats;

use super::out::{distance, duration, moment};
use super::show::{Record, find};
use super::{Session, parse_id};

/// Due for longer than this with nobody at work: there is no worker.
const WORKER_MISSED_AFTER_SECS: u64 = 30;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The email's id.
    #[arg(value_parser = parse_id)]
    id: EmailId,
}

/// What the words are made of, besides the email itself.
struct Surroundings<'a> {
    now: Timestamp,
    lease_secs: u64,
    dead_letters_kept: Duration,
    policies: &'a BTreeMap<String, RetryPolicy>,
    default_policy: &'a str,
    stats: QueueStats,
    healths: BTreeMap<String, Health>,
    provider_rates: &'a BTreeMap<String, u32>,
    /// The company does not write to the email's recipient.
    suppressed: Option<Suppression>,
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
        dead_letters_kept: config.retention.dead_letters,
        policies: &config.retry_policies,
        default_policy: &config.default_retry_policy,
        stats: store.stats(now).await?,
        healths: healths(&*store).await?,
        provider_rates: &config.provider_rates,
        suppressed: store
            .suppressed(record.company.id, slice::from_ref(&record.email.envelope.to))
            .await?
            .pop(),
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
        other => ended(other, record, around, last),
    };
    Explanation { why, since, next: next.trim_end().to_owned() }
}

fn waiting(record: &Record, around: &Surroundings<'_>, last: Timestamp) -> (String, Timestamp, String) {
    let email = &record.email;
    let due_at = email.due_at.unwrap_or(email.created_at);
    if let Some(stopped) = stopped(record, due_at, last) {
        return stopped;
    }
    let give_up =
        format!("It is given up at {} if it was not sent by then.", moment(email.expires_at, around.now));
    let give_up = match &around.suppressed {
        Some(suppression) => {
            format!("It will be refused then: {} {give_up}", listed(record, suppression, around))
        }
        None => give_up,
    };
    let resting = standstill(&email.route, &around.healths);
    if due_at > around.now {
        return later(record, around, due_at, last, resting, &give_up);
    }
    if let Some((provider, rest)) = resting {
        let why = format!("{} This costs the email no attempt.", rests(provider, rest, around.now));
        let look = moment(rest.next_probe_at, around.now);
        return (why, rest.since, format!("The provider is looked at again at {look}. {give_up}"));
    }
    let others = around.stats.waiting().saturating_sub(1);
    let busy = around.stats.by_status.get(&Status::Processing).copied().unwrap_or(0);
    let ahead = format!(
        "It is due and waits for a worker. Others that wait: {others}. Being sent right now: {busy}. {} {}",
        limits(record),
        provider_rate(record, around),
    );
    (
        ahead.split_whitespace().collect::<Vec<_>>().join(" "),
        due_at,
        format!("{} as soon as a worker is free. {give_up} {}", next_attempt(record, around), nobody(around)),
    )
}

/// What only a person or a report ends.
fn stopped(record: &Record, due_at: Timestamp, last: Timestamp) -> Option<(String, Timestamp, String)> {
    let (email, company) = (&record.email, &record.company);
    if due_at >= Timestamp::NEVER {
        let why =
            "Nobody knows whether the provider took the last attempt, and a second copy must not be risked.";
        let next = format!(
            "It waits for the provider's report or for a person: POST /v1/emails/{}/retry sends it again.",
            email.id
        );
        return Some((why.to_owned(), last, next));
    }
    if let Some(at) = company.disabled_at {
        let why = format!("Its company, {}, is switched off.", company.name);
        let next = "It is sent when the company is switched on again, unless it expires before.".to_owned();
        return Some((why, at.max(email.created_at), next));
    }
    let pause = company.pause.as_ref()?;
    let why = format!("Its company, {}, is paused: {}.", company.name, pause.reason.trim_end_matches('.'));
    let next = format!(
        "It is sent when the company may go on, unless it expires before: posthaste company resume {:?}",
        company.name
    );
    Some((why, pause.at.max(email.created_at), next))
}

/// Not due yet: because an attempt failed, or because it was asked for.
fn later(
    record: &Record,
    around: &Surroundings<'_>,
    due_at: Timestamp,
    last: Timestamp,
    resting: Option<(&str, &Rest)>,
    give_up: &str,
) -> (String, Timestamp, String) {
    let email = &record.email;
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
    let unless = resting.map_or_else(String::new, |(provider, rest)| {
        format!(" unless its provider still rests then. {}", rests(provider, rest, around.now))
    });
    let dot = if unless.is_empty() { "." } else { "," };
    let next =
        format!("{} at {}{dot}{unless} {give_up}", next_attempt(record, around), moment(due_at, around.now));
    (why, last, next)
}

fn rests(provider: &str, rest: &Rest, now: Timestamp) -> String {
    format!("Its provider {provider} takes no emails since {}: {}.", moment(rest.since, now), rest.code)
}

/// That the recipient is on the company's list, and how to take it off.
fn listed(record: &Record, suppression: &Suppression, around: &Surroundings<'_>) -> String {
    format!(
        "the recipient is on the company's suppression list since {} ({}); take it off with: \
         posthaste suppression lift --company {:?} {}.",
        moment(suppression.created_at, around.now),
        suppression.reason.trim_end_matches('.'),
        record.company.name,
        suppression.address.expose()
    )
}

/// How fast the provider goes whose turn it is, where that is bounded.
fn provider_rate(record: &Record, around: &Surroundings<'_>) -> String {
    let rate = |name: &str| {
        let health = around.healths.get(name).cloned().unwrap_or_default();
        let configured = around.provider_rates.get(name).copied();
        health
            .per_sec(configured, around.now)
            .map(|per_sec| (name.to_owned(), per_sec, health.slowed.is_some()))
    };
    let is_awake = |name: &&str| around.healths.get(*name).is_none_or(|health| health.rest.is_none());
    match providers_of(&record.email.route).find(is_awake).and_then(rate) {
        Some((name, per_sec, true)) => {
            format!("Its provider {name} asked for less and is given {per_sec} per second now.")
        }
        Some((name, per_sec, false)) => format!("Its provider {name} is given {per_sec} per second at most."),
        None => String::new(),
    }
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
    let is_suppressed = email
        .last_failure
        .as_ref()
        .is_some_and(|failure| failure.code == ErrorCode::RECIPIENT_SUPPRESSED.as_str());
    let first = match &around.suppressed {
        Some(suppression) if is_suppressed => format!("Still so: {} ", listed(record, suppression, around)),
        Some(suppression) => format!("Before that: {} ", listed(record, suppression, around)),
        None if is_suppressed => "The address is no longer on the list. ".to_owned(),
        None => String::new(),
    };
    let next = match email.dead_at {
        Some(at) => format!(
            "It is among the dead letters until {}. {first}Send it again with: posthaste dlq replay --company {:?} {}",
            moment(at.plus(around.dead_letters_kept), around.now),
            record.company.name,
            email.id
        ),
        None => format!("Nothing: it is no longer among the dead letters. {first}"),
    };
    (why, email.failed_at.unwrap_or(last), next)
}

fn ended(
    status: Status,
    record: &Record,
    around: &Surroundings<'_>,
    last: Timestamp,
) -> (String, Timestamp, String) {
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
    let next = match &around.suppressed {
        Some(suppression) => {
            format!(
                "Nothing: this is its end. No further email goes there: {}",
                listed(record, suppression, around)
            )
        }
        None => "Nothing: this is its end.".to_owned(),
    };
    // Opens and clicks come after the end, and are no part of it.
    let since = record.events.iter().rev().find(|event| event.kind.as_str() == status.as_str());
    (why, since.map_or(last, |event| event.at), next)
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
mod tests;
