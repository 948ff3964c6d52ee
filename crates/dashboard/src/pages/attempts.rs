//! The attempts of an email, read out of its history: which provider, what came of it, and what comes next.

use maud::{Markup, html};
use model::{EventKind, Timestamp};
use serde_json::Value;

use super::text;
use crate::layout::moment;
use crate::words;

/// One attempt, as far as it is known.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attempt {
    number: u64,
    began_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    provider: Option<String>,
    ended_as: Option<EventKind>,
    cause: Option<String>,
    /// How long the next one waited, in milliseconds.
    backoff_ms: Option<u64>,
}

/// Nothing where the email was never tried: then the history says all there is.
pub fn attempts(events: &[Value], now: Timestamp) -> Markup {
    let attempts = read(events);
    html! {
        @if !attempts.is_empty() {
            section aria-labelledby="attempts-title" {
                h2 #attempts-title { "Attempts" }
                ol.attempts { @for attempt in &attempts { (line(attempt, now)) } }
            }
        }
    }
}

fn line(attempt: &Attempt, now: Timestamp) -> Markup {
    let took = attempt.began_at.zip(attempt.ended_at).map(|(from, to)| words::duration(to.since(from)));
    let next = attempt
        .ended_at
        .zip(attempt.backoff_ms)
        .map(|(ended_at, backoff)| ended_at.plus(std::time::Duration::from_millis(backoff)))
        // Said while it is still to come; after it the next attempt speaks for itself.
        .filter(|next| *next > now);
    let (mood, word) = match attempt.ended_as {
        Some(kind) => (words::event_mood(kind), words::event(kind)),
        None => ("working", "Under way"),
    };
    html! {
        li data-key={ "attempt-" (attempt.number) } {
            div.what {
                strong { (attempt.number) "." }
                span class={ "pill " (mood) } { (word) }
                @if let Some(provider) = &attempt.provider { span { (provider) } }
                span.when.soft {
                    @if let Some(at) = attempt.began_at { (moment(at, now)) }
                    @if let Some(took) = took { ", took " (took) }
                }
            }
            @if let Some(cause) = &attempt.cause { p { (cause) } }
            @if let Some(next) = next { p.soft { "Next try " (moment(next, now)) } }
        }
    }
}

/// An attempt begins when a worker takes the email, and ends with the first event that says how.
fn read(events: &[Value]) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    for event in events {
        let Ok(kind) = text(event, "type").parse::<EventKind>() else { continue };
        let (at, metadata) = (words::time(&event["createdAt"]), &event["metadata"]);
        if kind == EventKind::Received {
            let number = metadata["attempt"].as_u64().unwrap_or(attempts.len() as u64 + 1);
            attempts.push(Attempt { number, began_at: at, ..Attempt::default() });
            continue;
        }
        let Some(attempt) = attempts.last_mut() else { continue };
        if let Some(provider) = metadata["provider"].as_str() {
            attempt.provider.get_or_insert_with(|| provider.to_owned());
        }
        let ends = matches!(
            kind,
            EventKind::Sent
                | EventKind::RetryScheduled
                | EventKind::Failed
                | EventKind::OutcomeUnknown
                | EventKind::LeaseLost
                | EventKind::Released
                | EventKind::AlreadySent
                | EventKind::Expired
        );
        if ends && attempt.ended_as.is_none() {
            attempt.ended_as = Some(kind);
            attempt.ended_at = at;
            attempt.cause = cause(metadata);
        }
        // An unknown outcome is said first, and what follows from it after.
        attempt.backoff_ms = attempt.backoff_ms.or_else(|| metadata["backoffDelay"].as_u64());
    }
    attempts
}

fn cause(metadata: &Value) -> Option<String> {
    let words = metadata["errorMessage"].as_str().or_else(|| metadata["reason"].as_str());
    match (metadata["errorCode"].as_str(), words) {
        (Some(code), Some(words)) => Some(format!("{code}: {words}")),
        (code, words) => code.or(words).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::at_secs;

    use super::*;

    #[test]
    fn each_attempt_has_its_end_and_its_cause() {
        let event = |kind: &str, secs, metadata: Value| json!({ "type": kind, "createdAt": at_secs(secs).to_rfc3339(), "metadata": metadata });
        let events = [
            event("ENQUEUED", 0, json!({})),
            event("RECEIVED", 1, json!({ "attempt": 1 })),
            event("SENT_ATTEMPT", 2, json!({ "provider": "main" })),
            event(
                "RETRY_SCHEDULED",
                3,
                json!({ "errorCode": "SMTP_TRANSIENT_450", "errorMessage": "later", "backoffDelay": 5_000 }),
            ),
            event("RECEIVED", 8, json!({ "attempt": 2 })),
            event("SENT_ATTEMPT", 9, json!({ "provider": "second" })),
            event("SENT", 10, json!({})),
            event("DELIVERED", 60, json!({ "provider": "other" })),
            event("RECEIVED", 70, json!({ "attempt": 3 })),
        ];
        let found = read(&events);
        let brief: Vec<_> = found
            .iter()
            .map(|attempt| {
                (
                    attempt.number,
                    attempt.provider.as_deref(),
                    attempt.ended_as,
                    attempt.cause.as_deref(),
                    attempt.backoff_ms,
                )
            })
            .collect();
        let expected = [
            (
                1,
                Some("main"),
                Some(EventKind::RetryScheduled),
                Some("SMTP_TRANSIENT_450: later"),
                Some(5_000),
            ),
            (2, Some("second"), Some(EventKind::Sent), None, None),
            (3, None, None, None, None),
        ];
        assert_eq!(brief, expected);
        assert_eq!(found[1].ended_at, Some(at_secs(10)), "a report afterwards is no end of an attempt");
        assert!(read(&events[..1]).is_empty());
    }
}
