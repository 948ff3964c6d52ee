//! Every metric of the pipeline, named once, and the few functions that feed them. Labels come from small, fixed
//! sets; what could grow without bound (an attempt's number, a foreign code) is folded first.

use std::borrow::Cow;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use model::{Category, ErrorCode, Event, EventKind, ReportKind, Status, Timestamp, Verdict};
use provider::{SendError, Taken};
use store::{QueueStats, Reported};

use crate::validate::Validation;

pub const ENQUEUE_DURATION: &str = "email_enqueue_duration_seconds";
pub const PROCESSING_DURATION: &str = "email_processing_duration_seconds";
pub const SEND_RESULT: &str = "email_send_result_total";
pub const QUEUE_SIZE: &str = "email_queue_size";
pub const OLDEST_WAITING: &str = "email_oldest_waiting_seconds";
pub const DEAD_LETTERS: &str = "email_dlq_size";
pub const STORE_FREE: &str = "store_free_bytes";
pub const STORE_RESERVE: &str = "store_reserve_bytes";
pub const STATE_TRANSITIONS: &str = "pipeline_state_transitions_total";
pub const VALIDATION_FAILURES: &str = "pipeline_validation_failures_total";
pub const STATE_DURATION: &str = "pipeline_processing_duration_seconds";
pub const RETRIES: &str = "pipeline_retries_total";
pub const FINAL_STATE: &str = "pipeline_final_state_total";
pub const PROVIDER_CALLS: &str = "provider_calls_total";
pub const PROVIDER_CALL_DURATION: &str = "provider_call_duration_seconds";
pub const PROVIDER_RATE: &str = "provider_rate_limit_per_second";
pub const PROVIDER_BREAKER: &str = "provider_breaker_open";
pub const COMPANIES_PAUSED: &str = "companies_paused_total";
pub const WEBHOOKS_IN: &str = "webhooks_in_total";

/// Tells the recorder what each metric means. Called once, after the recorder is in place.
pub fn describe() {
    describe_histogram!(
        ENQUEUE_DURATION,
        Unit::Seconds,
        "Time from a request's arrival until its emails are on disk"
    );
    describe_histogram!(PROCESSING_DURATION, Unit::Seconds, "Time from a claim until its end is recorded");
    describe_counter!(SEND_RESULT, "Attempts by result, error code and attempt number");
    describe_gauge!(QUEUE_SIZE, "Emails that wait for a worker, now or at their due time");
    describe_gauge!(OLDEST_WAITING, Unit::Seconds, "How long the email that is due longest has been due");
    describe_gauge!(DEAD_LETTERS, "Emails among the dead letters");
    describe_gauge!(STORE_FREE, Unit::Bytes, "Room left for the database on its disk");
    describe_gauge!(STORE_RESERVE, Unit::Bytes, "With less room than this nothing is taken in or sent");
    describe_counter!(STATE_TRANSITIONS, "Events of the pipeline by kind");
    describe_counter!(VALIDATION_FAILURES, "Emails refused by a validation");
    describe_histogram!(
        STATE_DURATION,
        Unit::Seconds,
        "Time from a claim to its end, by the state it led to"
    );
    describe_counter!(RETRIES, "Retries scheduled, by category of the error");
    describe_counter!(FINAL_STATE, "Emails that reached a final state");
    describe_counter!(PROVIDER_CALLS, "Calls to providers by result: taken, refused, unknown");
    describe_histogram!(PROVIDER_CALL_DURATION, Unit::Seconds, "Time a provider took to answer");
    describe_gauge!(
        PROVIDER_RATE,
        "Emails per second that a provider is given now, all processes together; +Inf where nothing limits it"
    );
    describe_counter!(COMPANIES_PAUSED, "Companies paused for their bounces or complaints");
    describe_gauge!(PROVIDER_BREAKER, "1 while a provider rests and is only probed, else 0");
    describe_counter!(WEBHOOKS_IN, "Webhooks of providers by what became of them");
    begin_at_zero();
}

/// What is counted by words of our own is there from the start: a rate needs a value to begin with, and an alert that
/// looks at nothing is silent.
fn begin_at_zero() {
    counter!(SEND_RESULT, "status" => "success", "error_code" => "", "attempt" => bounded_attempt(1))
        .increment(0);
    for kind in EventKind::ALL {
        counter!(STATE_TRANSITIONS, "state" => kind.as_str()).increment(0);
    }
    for validation in Validation::ALL {
        counter!(VALIDATION_FAILURES, "validation" => validation.as_str()).increment(0);
    }
    for category in Category::ALL.into_iter().filter(|category| category.is_retried()) {
        counter!(RETRIES, "category" => category.as_str()).increment(0);
    }
    for status in Status::ALL.iter().filter(|status| status.is_final()) {
        counter!(FINAL_STATE, "state" => status.as_str()).increment(0);
    }
    counter!(COMPANIES_PAUSED).increment(0);
}

/// A webhook came in. `provider` is a configured name, never one that a caller made up.
pub fn webhook_in(provider: &str, result: &'static str) {
    counter!(WEBHOOKS_IN, "provider" => provider.to_owned(), "result" => result).increment(1);
}

/// The emails of one request are on disk.
pub fn enqueued(took: Duration) {
    histogram!(ENQUEUE_DURATION).record(took.as_secs_f64());
}

/// So many emails were taken in for the queue, and so many for the intake, which has yet to look at them.
pub fn taken_in(enqueued: usize, unchecked: usize) {
    transitions(EventKind::Enqueued, enqueued);
    transitions(EventKind::Accepted, unchecked);
}

/// A person or the company withdrew an email.
pub fn cancelled() {
    transition(EventKind::Cancelled.as_str());
    ended_as(Status::Cancelled);
}

/// Somebody does not want to wait for the next attempt.
pub fn retry_requested() {
    transition(EventKind::RetryRequested.as_str());
}

/// Dead letters went back into the queue.
pub fn replayed(count: u64) {
    counter!(STATE_TRANSITIONS, "state" => EventKind::Replayed.as_str()).increment(count);
}

pub fn dead_letter_dropped() {
    transition(EventKind::DeadLetterDropped.as_str());
}

/// A report was kept. One that repeats another or finds no email says nothing new.
pub fn reported(kind: ReportKind, reported: &Reported) {
    if let Reported::Applied { status, moved, .. } = reported {
        transition(kind.event().as_str());
        if *moved {
            ended_as(*status);
        }
    }
}

/// Events that are committed.
pub fn recorded(events: &[Event]) {
    for event in events {
        transition(event.kind.as_str());
    }
}

/// Emails that were claimed; the store records their events itself.
pub fn claimed(count: usize) {
    transitions(EventKind::Received, count);
}

/// An attempt is about to call its provider.
pub fn began() {
    transition(EventKind::Validated.as_str());
    transition(EventKind::SentAttempt.as_str());
}

/// Emails that the store moved to EXPIRED by itself.
pub fn expired(count: u32) {
    if count > 0 {
        counter!(STATE_TRANSITIONS, "state" => EventKind::Expired.as_str()).increment(u64::from(count));
        counter!(FINAL_STATE, "state" => Status::Expired.as_str()).increment(u64::from(count));
    }
}

pub fn validation_failed(validation: Validation) {
    counter!(VALIDATION_FAILURES, "validation" => validation.as_str()).increment(1);
}

/// An attempt's end is committed.
pub fn attempt_ended(verdict: &Verdict, status: Status, attempt: u32, took: Duration) {
    histogram!(PROCESSING_DURATION).record(took.as_secs_f64());
    histogram!(STATE_DURATION, "state" => status.as_str()).record(took.as_secs_f64());
    ended(verdict, status, attempt);
}

/// An attempt's end is committed, and nobody knows how long it took.
pub fn ended(verdict: &Verdict, status: Status, attempt: u32) {
    if let Some((result, code)) = send_result(verdict) {
        let code = code.map_or(Cow::Borrowed(""), bounded_code);
        counter!(SEND_RESULT, "status" => result, "error_code" => code, "attempt" => bounded_attempt(attempt))
            .increment(1);
    }
    if let Verdict::Retry { failure, .. } = verdict {
        retried(failure.category);
    }
    if status.is_final() {
        ended_as(status);
    }
}

/// An email reached a final state.
pub fn ended_as(status: Status) {
    counter!(FINAL_STATE, "state" => status.as_str()).increment(1);
}

/// A provider answered, or did not. The names of providers are the operator's, so they are few.
pub fn called(provider: &str, error: Option<&SendError>, took: Duration) {
    let result = match error.map(|error| error.taken) {
        None => "taken",
        Some(Taken::No) => "refused",
        Some(Taken::Unknown) => "unknown",
    };
    counter!(PROVIDER_CALLS, "provider" => provider.to_owned(), "result" => result).increment(1);
    histogram!(PROVIDER_CALL_DURATION, "provider" => provider.to_owned()).record(took.as_secs_f64());
}

/// How a provider stands, as of now.
pub fn provider_stands(provider: &str, per_sec: Option<u32>, is_open: bool) {
    gauge!(PROVIDER_RATE, "provider" => provider.to_owned()).set(per_sec.map_or(f64::INFINITY, f64::from));
    gauge!(PROVIDER_BREAKER, "provider" => provider.to_owned()).set(if is_open { 0.0 } else { 1.0 });
}

/// A company was paused for its bounces or complaints.
pub fn company_paused() {
    counter!(COMPANIES_PAUSED).increment(1);
}

/// What waits, as of now.
pub fn waiting(stats: &QueueStats, now: Timestamp) {
    let oldest = stats.oldest_due_at.map_or(Duration::ZERO, |due_at| now.since(due_at));
    gauge!(QUEUE_SIZE).set(stats.waiting() as f64);
    gauge!(OLDEST_WAITING).set(oldest.as_secs_f64());
    gauge!(DEAD_LETTERS).set(stats.dead_letters as f64);
    if let Some(room) = stats.room {
        gauge!(STORE_FREE).set(room.free_bytes as f64);
        gauge!(STORE_RESERVE).set(room.reserve_bytes as f64);
    }
}

fn transition(state: &'static str) {
    counter!(STATE_TRANSITIONS, "state" => state).increment(1);
}

fn transitions(kind: EventKind, count: usize) {
    if count > 0 {
        counter!(STATE_TRANSITIONS, "state" => kind.as_str())
            .increment(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn retried(category: Category) {
    counter!(RETRIES, "category" => category.as_str()).increment(1);
}

/// What `email_send_result_total` calls a verdict; those that say nothing about sending are not counted.
fn send_result(verdict: &Verdict) -> Option<(&'static str, Option<&ErrorCode>)> {
    match verdict {
        Verdict::Sent { .. } => Some(("success", None)),
        Verdict::Retry { failure, .. } => Some(("retryable_error", Some(&failure.code))),
        Verdict::Fail { failure, .. }
        | Verdict::Hold { failure }
        | Verdict::Expire { failure: Some(failure) } => Some(("permanent_error", Some(&failure.code))),
        Verdict::Expire { failure: None }
        | Verdict::Release { .. }
        | Verdict::PutBack { .. }
        | Verdict::Requeue { .. } => None,
    }
}

/// The code of what went wrong, for logs.
pub fn code_of(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Retry { failure, .. }
        | Verdict::Hold { failure }
        | Verdict::Fail { failure, .. }
        | Verdict::Expire { failure: Some(failure) } => Some(failure.code.as_str()),
        Verdict::Sent { .. }
        | Verdict::Expire { failure: None }
        | Verdict::Release { .. }
        | Verdict::PutBack { .. }
        | Verdict::Requeue { .. } => None,
    }
}

fn bounded_attempt(attempt: u32) -> &'static str {
    match attempt {
        0 | 1 => "1",
        2 => "2",
        3 => "3",
        4 => "4",
        5 => "5",
        _ => "6+",
    }
}

/// Replies of SMTP servers that mean something; a server may say any number it likes.
const SMTP_REPLIES: &[&str] = &[
    "421", "450", "451", "452", "454", "455", "500", "501", "502", "503", "504", "521", "523", "530", "534",
    "535", "538", "541", "550", "551", "552", "553", "554", "555", "556", "571",
];

/// Codes of ours are as many as there are in the source. Those made of a reply are folded: what no server should say
/// counts as one, and anything else as another.
fn bounded_code(code: &ErrorCode) -> Cow<'static, str> {
    if let Some(constant) = code.as_constant() {
        return Cow::Borrowed(constant);
    }
    let of_smtp = [("SMTP_REJECTED_", "SMTP_REJECTED_5yz"), ("SMTP_TRANSIENT_", "SMTP_TRANSIENT_4yz")];
    for (prefix, folded) in of_smtp {
        match code.as_str().strip_prefix(prefix) {
            Some(reply) if SMTP_REPLIES.contains(&reply) => return Cow::Owned(code.as_str().to_owned()),
            Some(_) => return Cow::Borrowed(folded),
            None => {}
        }
    }
    Cow::Borrowed("OTHER")
}

#[cfg(test)]
mod tests;
